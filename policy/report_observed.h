/* The report's "observed" object and the last line of OFFLOAD_MODE=observe: what would move, and what that would cost. The shim tells from
   any thread; a copy is kept under a lock. */
#ifndef OFFLOAD_REPORT_OBSERVED_H
#define OFFLOAD_REPORT_OBSERVED_H
#include "json.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct report_observed {
  uint64_t state_bytes; /* that a step names; 0: nothing was observed */
  uint64_t tensors;
  uint64_t
      movable_bytes; /* of these, in pieces that hold nothing else, in allocations that may move */
  bool possible;     /* the driver makes host memory for it */
  uint64_t budget_bytes; /* of host memory */
  uint64_t move_bytes;   /* that would move: within the budget and OFFLOAD_FREE */
  bool foretold;         /* what follows is known */
  const char *way;       /* that a run would take from what is known */
  uint64_t exposed_ns, hidden_ns;
  const char *rates; /* "measured", "told", "assumed" */
};
void report_observed(const struct report_observed *);

/* "would move 1.50 GiB of 2.00 GiB ...", or false when nothing was observed. *nothing: nothing would move. */
bool report_observed_text(char *text, size_t bytes, bool *nothing);

/* For report.c. */
void report_observed_json(struct json *);
/* In a forked child the lock may have been taken by a thread that it doesn't have. */
void report_observed_forget(void);
#endif
