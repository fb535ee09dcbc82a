/* The recorder: a thread that writes what was asked for (OFFLOAD_REPORT, OFFLOAD_METRICS, OFFLOAD_TRACE) every so often while the program runs, so that a process
   that is killed leaves a record not older than that. There is none unless a file was asked for, and none before the first recognised
   step. It calls no CUDA, takes no lock of the shim's and has all signals blocked; a forked child has none. */
#ifndef OFFLOAD_RECORD_H
#define OFFLOAD_RECORD_H
#include <stddef.h>

/* A step begins; the last whole one named so much state. Starts the recorder at the first, and notes how much memory the current
   context's device has in use, a few times a second at most. Under the enqueue lock; little more than a look at the clock
   when nothing is recorded. */
void record_step(size_t state_bytes);

/* The process ends: the recorder stops, waited for a moment only, the last sample is taken and the last metrics and the trace are written. Whoever
   writes files next does so alone. May be called on top of any other code, by a signal's handler. */
void record_finish(void);
#endif
