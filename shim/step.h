/* The step's GPU side: decides for each recognised launch how it is carried out, and enqueues it.

   `direct`: the program's kernel over host-resident pages. `stream`: m and v staged through a device ring, the program's
   kernel on them. `cpu`: gradients down, moments on the CPU, updates up, applied by a small kernel. Invariant: no value
   wait is enqueued before everything that releases it, in program order over all streams; the host-side job record is part
   of that. Everything that can fail happens before the first enqueue of a launch. */
#ifndef OFFLOAD_STEP_H
#define OFFLOAD_STEP_H
#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

/* A launch as the hooks saw it, whichever entry point it came through. */
struct launch {
  CUfunction function;
  unsigned grid[3], block[3];
  unsigned shared_bytes;
  CUstream stream;
  bool per_thread; /* came through a _ptsz entry: stream 0 is the per-thread stream */
  bool plain;      /* no launch attributes, not cooperative */
  void **kernel_parameters, **extra;
};

/* True when the launch was taken over and *result is what the program gets; false: hand it to the driver unchanged. */
bool step_launch(const struct launch *, CUresult *result);

/* Function handles may be re-used from now on: forget what was recognised. */
void step_forget_functions(void);

/* A context goes away: drains what is in flight in it and forgets our streams, modules and staging there. Under the enqueue
   lock, which is kept from before the real call until after it: a step that began in between would work with memory that
   goes. Either before the call, or after it (`gone`) and step_context_may_end before. */
void step_forget_context(CUcontext context, bool gone);
void step_context_may_end(CUcontext context);

/* A kernel's name was registered with the runtime or looked up: whether it is a known Adam kernel; step_adam_seen remembers. */
bool step_kernel_seen(const char *name);
bool step_adam_seen(void);

/* The current context's device ran out of memory: staging goes back to it, if steps let go of it within a
   moment. Bytes freed. Takes the enqueue lock. */
size_t step_give_back(void);

/* The process exits: bounded wait for what is in flight, then releases it as failed. `handler`: exit may have been called on top of a call of the
   driver, which then isn't asked. */
void step_finish(bool handler);
#endif
