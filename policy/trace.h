/* OFFLOAD_TRACE: what the last steps did and when, as spans on tracks (trace.def), in the JSON that Chrome and Perfetto read. Spans are kept
   in a ring of TRACE_SPANS, so memory and file are bounded and the last steps are what is there. Times are CLOCK_MONOTONIC's, so that the
   files of a node's ranks fit together. Callers: the step's rooms in the shim, any thread; the recorder writes. */
#ifndef OFFLOAD_TRACE_H
#define OFFLOAD_TRACE_H
#include "config.h"
#include <stdatomic.h>

enum trace_track {
#define TRACK(name, label, of) TRACE_##name,
#include "trace.def"
#undef TRACK
  TRACE_TRACKS
};

enum { TRACE_SPANS = 64 << 10 };

struct trace_span {
  enum trace_track track;
  int device;       /* for tracks of a device */
  const char *name; /* lasts as long as the process */
  uint64_t begin_ns, end_ns;
  uint64_t step;            /* 0: not known */
  uint64_t bytes, elements; /* 0: none */
};

/* Spans are kept from now on. False without memory for them. Idempotent. */
bool trace_start(void);

extern _Atomic bool trace_started;
static inline bool trace_on(void) {
  return atomic_load_explicit(&trace_started, memory_order_relaxed);
}

/* Keeps a span; one that ends before it begins is of no length. Nothing unless trace_on. */
void trace_add(const struct trace_span *);
/* One that could not be timed is counted. */
void trace_lost(uint64_t spans);

/* Replaces the file; nothing where none was asked for. Errors are told once. */
void trace_write(const struct config *);
#endif
