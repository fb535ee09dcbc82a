/* How long steps take, each context's by itself: the whole step, from a first launch to the next, by the host's clock, and the optimizer's
   part on the program's stream, between two CUDA events of ours, one in front of a step's first launch and one behind its last. Nothing
   ever waits for them: they are asked when later steps begin, and a step whose events are not over by the time that they are needed
   again is left out. So are a context's first steps, and those in which pieces moved or a kernel was calibrated.

   Callers: choose.c, under the enqueue lock; no capture is open. Costs two records of events for a step of one launch, one more for
   each further launch. */
#ifndef OFFLOAD_METER_H
#define OFFLOAD_METER_H
#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

struct meter_step {
  uint64_t step;                                   /* of the context */
  uint64_t step_ns;                                /* the whole step */
  uint64_t optimizer_ns;                           /* on the program's stream; 0: not known */
  uint64_t cpu_ns, link_down_bytes, link_up_bytes; /* of the process meanwhile */
};

/* A launch of this step of the context is about to be enqueued on `stream`. */
void meter_launch(CUcontext, uint64_t step, CUstream stream);
/* It was. */
void meter_launched(CUcontext, CUstream stream);

/* The oldest step that is over and was not read yet; false where there is none. */
bool meter_read(CUcontext, struct meter_step *);

/* The context ends, or is `gone` with its events. */
void meter_forget(CUcontext, bool gone);
#endif
