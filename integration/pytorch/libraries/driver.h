/* The CUDA driver as the libraries reach it: found and called as programs do it, so that whatever
   is preloaded before the driver meets these calls. Each library has a copy of this room. */
#ifndef OFFLOAD_PYTORCH_DRIVER_H
#define OFFLOAD_PYTORCH_DRIVER_H
#include <cudaTypedefs.h>

struct library_driver {
#define ENTRY(name, version) PFN_##name##_v##version name;
#include "integration/pytorch/libraries/driver.def"
#undef ENTRY
  /* The simulator's own view of device memory (tests/gpusim/gpusim.h); an address that isn't a
     device's is its own. */
  void *(*host_view)(void *device_pointer);
};
extern struct library_driver driver;

/* Finds the driver, once per process, and initialises nothing. Any thread.
   CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, after a line on stderr, where there is no simulated
   driver. */
CUresult driver_open(void);
#endif
