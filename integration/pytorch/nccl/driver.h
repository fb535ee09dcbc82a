/* The CUDA driver as the stand-in reaches it: the way the real library's runtime does, so that what
   is preloaded meets every call. */
#ifndef OFFLOAD_NCCL_DRIVER_H
#define OFFLOAD_NCCL_DRIVER_H
#include "integration/pytorch/nccl/nccl.h"
#include <cudaTypedefs.h>

struct nccl_driver {
#define ENTRY(name, version) PFN_##name##_v##version name;
#include "integration/pytorch/nccl/driver.def"
#undef ENTRY
  /* The simulator's own view of device memory (tests/gpusim/gpusim.h). */
  void *(*host_view)(void *device_pointer);
};
extern struct nccl_driver driver;

/* Opens the driver and calls cuInit, once per process. Any thread; no lock may be held. */
ncclResult_t driver_open(void);
/* CUDA_SUCCESS is ncclSuccess; else the error's text names `call`. */
ncclResult_t driver_check(CUresult result, const char *call);
#define CHECK_CUDA(call) driver_check(driver.call, #call)
#endif
