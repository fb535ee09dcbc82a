/* Finding the driver's entry points. Written once under `once`, read by everybody afterwards. */
#include "integration/pytorch/nccl/driver.h"
#include "integration/pytorch/nccl/error.h"
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

struct nccl_driver driver;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static ncclResult_t opened;

static ncclResult_t find_entries(PFN_cuGetProcAddress_v12000 get) {
  const char *missing = NULL;
#define ENTRY(name, version)                                                                       \
  if (get(#name, (void **)&driver.name, version, CU_GET_PROC_ADDRESS_DEFAULT, NULL) !=             \
          CUDA_SUCCESS ||                                                                          \
      driver.name == NULL)                                                                         \
    missing = #name;
#include "integration/pytorch/nccl/driver.def"
#undef ENTRY
  if (missing != NULL)
    return nccl_fail(ncclSystemError, "libcuda.so.1 has no %s; a driver of CUDA 12.0 is needed",
                     missing);
  return ncclSuccess;
}

static ncclResult_t open_once(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL)
    return nccl_fail(ncclSystemError, "no CUDA driver: %s", dlerror());
  PFN_cuGetProcAddress_v12000 get = NULL;
  *(void **)&get = dlsym(library, "cuGetProcAddress_v2");
  *(void **)&driver.host_view = dlsym(library, "gpusim_host_view");
  if (get == NULL || driver.host_view == NULL)
    return nccl_fail(ncclSystemError,
                     "this libnccl.so.2 is a stand-in for simulated GPUs and the driver here is "
                     "another; take its folder out of LD_LIBRARY_PATH");
  ncclResult_t result = find_entries(get);
  return result != ncclSuccess ? result : CHECK_CUDA(cuInit(0));
}

static void open_driver(void) {
  opened = open_once();
}

ncclResult_t driver_open(void) {
  pthread_once(&once, open_driver);
  return opened;
}

ncclResult_t driver_check(CUresult result, const char *call) {
  const char *name = NULL;
  if (result == CUDA_SUCCESS)
    return ncclSuccess;
  driver.cuGetErrorName(result, &name);
  return nccl_fail(ncclUnhandledCudaError, "%.*s: %s", (int)strcspn(call, "("), call,
                   name != NULL ? name : "unknown CUDA error");
}
