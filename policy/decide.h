/* Which way a function's steps go: chosen by what the cost model foretells, corrected by what steps took, changed only where that pays for
   long enough. A state machine without a clock, a driver or a file: it is told the step's number, what is foretold and what was measured.
   One for each function and device; callers lock (shim/choose.c holds the enqueue lock).

   What is compared is the optimizer's time on the program's stream: what a step has there with all state on the device, and what is
   exposed beyond that.

   Rules that tests hold it to: the first choice is the cheapest; a way is left only when another is at least DECIDE_GAIN_PERCENT cheaper in
   DECIDE_BETTER steps one after another, and not before it was kept for its dwell, which doubles at each return to a way that was left
   before; a way that is tried for the first time and takes more than DECIDE_WORSE_PERCENT of what the one before it took is left as soon
   as DECIDE_MEASURED_LEAST steps say so; what a way took is forgotten some time after it was left, so that it may be tried again. So the changes of a run of N steps are no more than the logarithm of N. */
#ifndef OFFLOAD_DECIDE_H
#define OFFLOAD_DECIDE_H
#include "cost.h"

enum {
  DECIDE_GAIN_PERCENT = 15,
  DECIDE_BETTER = 4,
  DECIDE_DWELL = 16,
  DECIDE_WORSE_PERCENT = 150,
  DECIDE_MEASURED = 8, /* steps whose median corrects what is foretold */
  DECIDE_MEASURED_LEAST = 5,
  DECIDE_DISAGREES_PERCENT =
      150,               /* measured beyond this of what was foretold, or below its inverse */
  DECIDE_DISAGREES = 32, /* in so many steps one after another: the rates are wrong */
  DECIDE_FORGET_DWELLS =
      64, /* a way that was left so long ago is known no better than by what is foretold */
  DECIDE_SWITCHES = 16, /* that are kept, the last ones */
  DECIDE_WHY_BYTES = 256
};

struct decide_switch {
  uint64_t step;
  enum cost_way from, to;
  char why[DECIDE_WHY_BYTES];
};

struct decide {
  bool chosen; /* by what is foretold, or by force */
  bool forced;
  enum cost_way way;
  enum cost_way candidate; /* cheaper in `better` steps one after another */
  unsigned better;
  uint64_t since, dwell; /* the step in which the way was taken; the steps that it is kept */
  bool left[COST_DIRECT + 1], tried[COST_DIRECT + 1];
  uint64_t left_at[COST_DIRECT + 1];
  double ratios[COST_DIRECT + 1][DECIDE_MEASURED]; /* measured by foretold, in turn */
  uint64_t measured[COST_DIRECT + 1];              /* how many there were */
  unsigned disagreed;                              /* steps one after another */
  uint64_t switch_count;
  struct decide_switch switches[DECIDE_SWITCHES]; /* switch_count mod DECIDE_SWITCHES is the next */
  char why[DECIDE_WHY_BYTES];                     /* of the present way, a sentence */
};

/* Seconds of the optimizer on the program's stream. */
double decide_foretold(const struct cost *, enum cost_way);
/* The same, corrected by what that way's steps took. */
double decide_expected(const struct decide *, const struct cost *, enum cost_way);
/* Measured by foretold, the median of the way's last steps; 0: not known yet. */
double decide_ratio(const struct decide *, enum cost_way);

/* The way of this step. `undecided`: NULL, or why nothing is to be foretold (no rates, too little work): then the way stays what
   it is, at first `cpu`, else `stream`. Only ways that the cost names possible are taken, and `stream` where there is none. */
enum cost_way decide_step(struct decide *, const struct cost *, uint64_t step,
                          const char *undecided);

/* The step takes this way whatever is foretold; `why` is a sentence. */
void decide_force(struct decide *, enum cost_way, uint64_t step, const char *why);

/* A step that went this way took so long; ratios of nothing are left out. */
void decide_measured(struct decide *, enum cost_way, double foretold_seconds,
                     double measured_seconds);

/* The rates disagree with the steps: they should be measured anew, and decide_rates_changed told. */
bool decide_disagrees(const struct decide *);
void decide_rates_changed(struct decide *);

/* "12.3 ms" without the program's locale. */
enum { DECIDE_TIME_BYTES = 32 };
const char *decide_time(double seconds, char text[DECIDE_TIME_BYTES]);
#endif
