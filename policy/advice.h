/* Advice in words with numbers: from what was seen of a job to sentences that say what to change and what it brings. A pure function:
   called by the shim before a report is written, by `offload plan`, `check` and `report`. The sentences' kinds are listed in advice.def. */
#ifndef OFFLOAD_ADVICE_H
#define OFFLOAD_ADVICE_H
#include "cost.h"

#define ADVICE_TARGET 0.05

enum advice_kind {
#define ADVICE(name, when) ADVICE_##name,
#include "advice.def"
#undef ADVICE
  ADVICE_KINDS
};

/* What is known of a job; 0, NULL and false: not known, or not so. */
struct advice_facts {
  struct cost_input input; /* elements 0: no step was seen */
  struct cost cost;        /* of it */
  double step_seconds;     /* whole step, forward and backward and what offload adds included */
  double
      exposed_seconds; /* what of it offload adds, where both are told to the user: as measured of a job, or foretold of an observed one */
  bool measured;       /* these two are, of enough steps; otherwise 0 is "not known" */
  double tokens;       /* of a step, where known */
  double target;       /* share of a step that offload may cost; 0: ADVICE_TARGET */
  const char *set_way; /* what OFFLOAD_STEP forces: "cpu", "stream", "direct"; else NULL */
  uint64_t device_bytes, device_used_bytes; /* used: with whatever is there at present */
  uint64_t state_bytes, parameter_bytes, gradient_bytes; /* of this rank, wherever they are */
  uint64_t budget_bytes;                                 /* of host memory */
  uint64_t kept_bytes; /* of state: what may move, and the budget and drives lack room for */
  bool drives_named, drives_full,
      drives_decline; /* as pieces are used by others, or their partners stay */
  const char *budget_limited_by;
  unsigned ranks;             /* of the node */
  bool replicated;            /* every rank steps all parameters (DDP) */
  uint64_t foreach_bytes;     /* state of foreach Adam that fused=True would let move */
  uint64_t foreign_bytes;     /* of optimizers that are known and not taken over */
  const char *foreign_name;   /* "bitsandbytes 8-bit Adam", ... */
  const char *unknown_kernel; /* works as an optimizer does, by what it uses (shim/unknown.h) */
  size_t unknown_ranges;      /* of one size that a launch of it names */
  uint64_t unknown_bytes, unknown_state_bytes; /* of a step; of these, what nothing else uses */
  bool no_optimizer; /* the process ended, or ran long, without a step of any known optimizer */
  bool expandable_segments, async_allocator,
      memory_fraction; /* PyTorch's allocator settings that keep memory where it is */
  bool wsl, seccomp;
  uint64_t memlock_bytes; /* RLIMIT_MEMLOCK where it bounds something; 0: it doesn't */
  int driver;             /* cuDriverGetVersion, 12040 */
};

struct advice {
  enum advice_kind kind;
  char text[384];
};
enum { ADVICE_MOST = 16 };

/* The sentences that apply, the most useful first. Returns how many. */
size_t advice_give(const struct advice_facts *, struct advice advice[ADVICE_MOST]);
const char *advice_kind_name(enum advice_kind); /* "accumulate", ...: stable, for JSON */
#endif
