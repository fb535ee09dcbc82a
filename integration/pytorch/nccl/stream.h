/* A communicator's work on CUDA streams. */
#ifndef OFFLOAD_NCCL_STREAM_H
#define OFFLOAD_NCCL_STREAM_H
#include "integration/pytorch/nccl/communicator.h"

/* A call and the stream that it was made for. */
struct stream_call {
  struct collective call;
  CUstream stream;
};

/* Kernels and events; the communicator's context must be current. */
ncclResult_t stream_load(struct ncclComm *communicator);
void stream_unload(struct ncclComm *communicator);

/* Enqueues the calls of a group, at least one, and returns. */
ncclResult_t stream_submit(struct ncclComm *communicator, const struct stream_call *calls,
                           size_t count);
#endif
