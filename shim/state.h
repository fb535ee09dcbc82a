/* What is known to be optimizer state, and where it should live. The step tells which tensors a
   recognised launch names; from that come coverage, the beginning of a new step, what moves to the
   host and what goes home.

   Per context: a step begins when a launch names a state address that the present step has already
   named, or nothing is known yet. At
   that moment the last step's coverage is complete: a piece wholly covered by it, whose partners (of m
   v, and the maximum of v where there is one) can follow, moves; a host piece that it did not cover, or that something foreign
   touched, goes home if there is room. All under the enqueue lock, behind events on the streams
   that touched the piece; never while any capture is open. */
#ifndef OFFLOAD_STATE_H
#define OFFLOAD_STATE_H
#include "foreach.h"
#include "graphs.h"
#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One tensor of a recognised launch, whole: its states. */
enum { TENSOR_STATES = 3 };
struct state_tensor {
  uintptr_t states[TENSOR_STATES]; /* exp_avg, exp_avg_sq, max_exp_avg_sq; 0: it has none */
  size_t bytes;                    /* of each */
  size_t first; /* byte of each at which this launch's blocks begin: not 0 only for a tensor split
                   over launches, whose later parts must not look like a new step */
};

/* Tells that a recognised launch on `stream` (already normalised for per-thread) names these
   tensors. Moves pieces when a new step begins. Returns CUDA_SUCCESS even when nothing could move
   (a reason is reported); an error only when memory is in a state that can't be put back, then the
   hooks have stopped. Under the enqueue lock, before anything of the launch is enqueued. */
CUresult state_launch(const struct state_tensor *tensors, size_t count, CUstream stream);

/* Steps begun in all contexts; 0 before the first recognised launch. */
uint64_t state_step(void);

/* Function handles may be re-used from now on: forget the parameter sizes known for them. */
void state_forget_functions(void);

/* A launch that is not recognised: looks for addresses of state among its parameters. Costs a load
   when there is no state. `blocks` is gridDim.x; parameters as in cuLaunchKernel: exactly one of
   kernel_parameters and extra is used. What of it is on drives is brought in: another answer than CUDA_SUCCESS is the call's,
   which must not be made. The same below. */
CUresult state_foreign_launch(CUfunction function, unsigned blocks, CUstream stream,
                              void **kernel_parameters, void **extra);

/* A call that told by state_foreign_access what its kernels work on begins and ends on this thread: kernels of lists in memory that are
   launched meanwhile reach nothing else. */
void state_told(bool begins);

/* The layout of a function's first parameter, if it is a kernel of PyTorch's foreach operators that adds to what its list names
   and writes nothing else; or NULL. */
const struct foreach_list *state_adding_list(CUfunction);

/* A kernel node of a graph: whatever its parameters name, the graph holds. */
CUresult state_graph_launch(struct graph_holder, CUfunction function, void **kernel_parameters,
                            void **extra);

/* A copy or memset that touches [address, address+bytes); reads leave state in place, writes send
 * it home. */
CUresult state_foreign_access(uintptr_t address, size_t bytes, CUstream stream, bool writes);

/* A stream is about to be destroyed: events take its place in what moving waits for. */
void state_stream_destroyed(CUstream stream);

/* The allocation [base, base+bytes) is freed: forget tensors in it. */
void state_forget(uintptr_t base, size_t bytes);

/* A context and its memory are gone. Under the enqueue lock. */
void state_forget_context(CUcontext context);

/* Device memory is short on this thread: moves known state out now. Bytes freed. Under the enqueue
 * lock. */
size_t state_evict(size_t wanted_bytes);
#endif
