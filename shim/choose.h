/* Which way each function's steps go: brings together what a step names (plan.h), the machine's rates, the cost model
   (policy/cost.h), the decision (policy/decide.h) and what steps took (meter.h), for each function and context. A step of a function
   goes one way from its first launch to its last, so far as that way is possible.

   Callers: step.c, under the enqueue lock but for choose_prepare. */
#ifndef OFFLOAD_CHOOSE_H
#define OFFLOAD_CHOOSE_H
#include "../policy/cost.h"
#include "plan.h"

/* What can't be done under the enqueue lock: has rates that disagree with the steps measured again. */
void choose_prepare(void);

/* What a launch's blocks of ours should go by: the first way, and where the CPU can't, the second (`stream` or `direct`). */
struct choice_ways {
  enum cost_way first, second;
};
struct choice_ways choose_ways(struct plan *);
/* How it went, COST_STAY where nothing of it was ours: once for each launch that was asked about, behind it. */
void choose_took(const struct plan *, enum cost_way);

/* What is known of the function with the most moved state, for advice (facts.c): false before a step was seen whole. */
struct choice_facts {
  struct cost_input input;
  struct cost cost;
  enum cost_way way;  /* of the last step */
  enum cost_way next; /* what OFFLOAD_STEP=auto asks of the present one */
};
bool choose_facts(struct choice_facts *);

/* The context ends, or is `gone`. */
void choose_forget_context(CUcontext, bool gone);

/* The process ends: what the last steps did is told, with no call of the driver. */
void choose_finish(void);
#endif
