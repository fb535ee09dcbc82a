/* Device memory made the way NCCL makes it: a physical handle, a mapping and access, or cuMemAlloc where
   there is no virtual memory management. A context must be current. */
#ifndef OFFLOAD_NCCL_MEMORY_H
#define OFFLOAD_NCCL_MEMORY_H
#include "integration/pytorch/nccl/driver.h"

ncclResult_t memory_allocate(CUdeviceptr *address, size_t bytes, int device);
ncclResult_t memory_free(CUdeviceptr address);
#endif
