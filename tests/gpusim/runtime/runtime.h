/* What the rooms of the simulated GPU's runtime share. Nothing here is exported.

   The runtime stands on the public driver API alone and reaches it as NVIDIA's does: libcuda.so.1
   by dlopen, cuGetProcAddress_v2 by dlsym, everything else by name and version. So a preloaded
   library meets the same calls.

   Rooms: driver.c (the table of entry points), state.c (initialisation, contexts, the last error),
   error.c (names and texts), registration.c (what nvcc's generated code calls), kernel.c
   (functions, variables, libraries), launch.c, copy.c, stream.c (work that is ordered by a stream),
   memory.c (allocations), objects.c (streams and events as objects), device.c.

   driver.c, launch.c, copy.c and stream.c are compiled twice: the second time with
   CUDA_API_PER_THREAD_DEFAULT_STREAM, with which the CUDA headers rename every function in them to
   its _ptsz or _ptds form, and the driver's functions with it. Whatever has no such form belongs
   into another room. */
#ifndef GPUSIM_RUNTIME_H
#define GPUSIM_RUNTIME_H
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define driver driver_per_thread
#define driver_resolve driver_resolve_per_thread
#define driver_entries driver_entries_per_thread
#endif

/* ---- driver.c ---- */

/* The driver's functions: driver.cuMemAlloc(...) is cuMemAlloc_v2. Valid once runtime_init has
 * succeeded. */
struct driver_entries {
#define ENTRY(name, version) __typeof__(&name) name;
#include "driver.def"
#undef ENTRY
};
extern struct driver_entries driver;

typedef CUresult resolver(const char *name, void **function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *status);
/* Fills the table. An entry that an older driver lacks answers CUDA_ERROR_NOT_SUPPORTED. */
void driver_resolve(resolver *);
#ifndef CUDA_API_PER_THREAD_DEFAULT_STREAM
void driver_resolve_per_thread(resolver *);
/* Opens the driver and fills both tables. False when there is no driver. */
bool driver_open(void);
#endif

/* ---- state.c ---- */

/* Initialises the driver, once per process; the same answer ever after. */
cudaError_t runtime_init(void);
/* The same, and makes the primary context of the thread's device current if no context is. */
cudaError_t runtime_enter(void);
/* The device of the calling thread. */
int runtime_device(void);
int runtime_device_count(void);
bool runtime_device_valid(int device);
/* The primary context of a device, retained once per process. */
CUresult runtime_primary_context(int device, CUcontext *context);
/* Forgets it, after a reset. */
void runtime_primary_context_forget(int device);
/* Makes `device` the calling thread's. */
CUresult runtime_set_device(int device);

/* Records an error as the thread's last one and returns it. */
cudaError_t runtime_fail(cudaError_t);
/* The same for a driver's result: the codes of both APIs are equal where they mean the same. */
cudaError_t runtime_result(CUresult);
/* For the generated stubs: says so with GPUSIM_TRACE=1. */
int gpusim_runtime_unsupported(const char *name);

#define RUNTIME_INIT()                                                                             \
  do {                                                                                             \
    cudaError_t init_error = runtime_init();                                                       \
    if (init_error != cudaSuccess)                                                                 \
      return runtime_fail(init_error);                                                             \
  } while (0)

#define RUNTIME_ENTER()                                                                            \
  do {                                                                                             \
    cudaError_t enter_error = runtime_enter();                                                     \
    if (enter_error != cudaSuccess)                                                                \
      return runtime_fail(enter_error);                                                            \
  } while (0)

/* ---- registration.c ---- */

/* The kernel, function or variable that nvcc registered for a host address. Errors: the runtime's
   cudaErrorInvalidDeviceFunction or cudaErrorInvalidSymbol for an unknown address, else the
   driver's. */
cudaError_t runtime_kernel(const void *host, CUkernel *kernel);
cudaError_t runtime_function(const void *host, CUfunction *function);
cudaError_t runtime_variable(const void *host, CUdeviceptr *address, size_t *bytes);

static inline CUdeviceptr device_address(const void *pointer) {
  return (CUdeviceptr)(uintptr_t)pointer;
}
#endif
