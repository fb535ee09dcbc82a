/* OFFLOAD_METRICS: figures of this process as Prometheus reads them (text exposition format 0.0.4), for node_exporter's textfile
   collector, which takes files whose names end in .prom, or for whatever serves a file. Counters are those of counters.def. Caller: the
   recorder (shim/record.c). */
#ifndef OFFLOAD_METRICS_H
#define OFFLOAD_METRICS_H
#include "config.h"

/* Replaces the file; nothing where none was asked for. Errors are told once. `device`: ordinal of the device that steps, -1: none did.
   `running`: false as the process ends. Any thread, one at a time. */
void metrics_write(const struct config *, int device, bool running);
#endif
