/* OFFLOAD_METRICS: figures of this process as Prometheus reads them (text exposition format 0.0.4), for node_exporter's textfile
   collector, which takes files whose names end in .prom, or for whatever serves a file. Counters are those of counters.def. Caller: the
   recorder (shim/record.c). */
#ifndef OFFLOAD_METRICS_H
#define OFFLOAD_METRICS_H
#include "config.h"

/* What is so now and isn't in the report's counters. */
struct metrics_now {
  bool running;        /* false: the process ends */
  int device;          /* ordinal of the device that stepped last; -1: none */
  bool step_known;     /* step_ns */
  uint64_t step_ns;    /* from the last step's begin to the one's before */
  bool exposed_known;  /* exposed_ns */
  uint64_t exposed_ns; /* of it, what the step of moved state added */
};

/* Replaces the file; nothing where none was asked for. Errors are told once. Any thread, one at a time. */
void metrics_write(const struct config *, const struct metrics_now *);
#endif
