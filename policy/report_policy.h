/* The report's objects "policy" and "steps": which way each function's steps go and why, what was foretold of every way and what was
   measured, and the last steps one by one. Told by shim/choose.c, under the enqueue lock; copies are kept here under a lock of their own.
   Times are whole nanoseconds. */
#ifndef OFFLOAD_REPORT_POLICY_H
#define OFFLOAD_REPORT_POLICY_H
#include "json.h"
#include <stdbool.h>
#include <stdint.h>

enum {
  REPORT_POLICIES = 64,       /* functions, on each device its own */
  REPORT_POLICY_WAYS = 4,     /* cpu, stream, direct, stay */
  REPORT_POLICY_CHANGES = 16, /* the last ones */
  REPORT_POLICY_TEXT = 256,
  REPORT_STEPS = 64 /* the last ones */
};

/* Words point at what lasts as long as the process. */
struct report_policy_way {
  const char *way, *bound; /* bound: what needs the most time of it */
  bool possible;
  uint64_t exposed_ns, hidden_ns;
};
struct report_policy_change {
  uint64_t step;
  const char *from, *to;
  char why[REPORT_POLICY_TEXT];
};
struct report_policy {
  char function[64];
  int device;
  const char *way;   /* of its last step */
  const char *asked; /* OFFLOAD_STEP */
  char why[REPORT_POLICY_TEXT];
  char advice[REPORT_POLICY_TEXT]; /* another way than the one asked for is foretold cheaper; "" */
  const char *rates;               /* "assumed", "told", "measured" */
  uint64_t elements, elements_host, elements_drive; /* of a step */
  struct report_policy_way ways[REPORT_POLICY_WAYS];
  uint64_t measured_ns,
      foretold_ns; /* the optimizer on the program's stream, by the present way; measured 0: not known */
  uint64_t change_count;
  unsigned changes_kept;
  struct report_policy_change
      changes[REPORT_POLICY_CHANGES]; /* in the order in which they were made */
};

struct report_step {
  uint64_t step; /* of its device */
  int device;
  const char *way;       /* "cpu", "stream", "direct", "stay", "mixed" */
  uint64_t step_ns;      /* the whole step, first launch to first launch */
  uint64_t optimizer_ns; /* on the program's stream, first launch to last; 0: not known */
  uint64_t foretold_ns;  /* the same, foretold; 0: it wasn't */
  uint64_t stay_ns;      /* the same with all state on the device, foretold */
  uint64_t cpu_ns;       /* of the CPU step */
  uint64_t link_down_bytes, link_up_bytes;
};

/* Keeps a copy of what is known of a function on a device; `row` counts from 0 and stays that function's. */
void report_policy(unsigned row, const struct report_policy *);
/* A step that was measured. */
void report_step(const struct report_step *);
/* The last of them; false: there is none. */
bool report_step_last(struct report_step *);

/* What offload added to it on the program's stream, measured and foretold. Nothing to a step by "stay", of which nothing was moved, however
   long it took beside what was foretold. The step is timed by the program's launches, the optimizer by
   the device, which may be a step behind: what was added is never told to be more than the whole. */
uint64_t report_step_exposed_ns(const struct report_step *);
uint64_t report_step_foretold_ns(const struct report_step *);

/* The medians that the report tells: of the last steps whose optimizer was measured; where none was, of the last steps. */
struct report_medians {
  unsigned measured; /* steps; 0: exposed_ns isn't known */
  uint64_t step_ns;  /* 0: no step was seen whole */
  uint64_t exposed_ns;
};
struct report_medians report_steps_medians(void);

/* For report.c. In a forked child the lock may have been taken by a thread that it doesn't have. */
void report_policy_json(struct json *);
void report_steps_json(struct json *);
void report_policy_forget(void);
#endif
