/* The report's "switch" object: the signal that ends offloading at run time (OFFLOAD_SIGNAL), and what happened when it came. The shim
   tells from any thread; a copy is kept under a lock. */
#ifndef OFFLOAD_REPORT_SWITCH_H
#define OFFLOAD_REPORT_SWITCH_H
#include "config.h"
#include "json.h"

struct report_switch {
  bool used;                                             /* the signal came and was acted upon */
  bool whole;                                            /* and nothing is left to come home */
  uint64_t step;                                         /* after which it was */
  uint64_t home_bytes;                                   /* that came home by it */
  uint64_t host_bytes, drive_bytes;                      /* that are not home yet */
  uint64_t released_device_bytes, released_pinned_bytes; /* of staging and scratch */
};
void report_switch(const struct report_switch *);
struct report_switch report_switch_now(void);

/* Whether the signal has a handler of ours, or why not. */
void report_switch_watched(bool watched, const char *why);

/* For report.c. */
void report_switch_json(struct json *, const struct config *);
/* In a forked child the lock may have been taken by a thread that it doesn't have. */
void report_switch_forget(void);
#endif
