/* Finding the driver's entry points. Written once under `once`, read by everybody afterwards. */
#include "integration/pytorch/libraries/driver.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

struct library_driver driver;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static CUresult opened = CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;

static void open_driver(void) {
  const char *missing = NULL;
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) {
    fprintf(stderr, "no CUDA driver: %s\n", dlerror());
    return;
  }
  PFN_cuGetProcAddress_v12000 get = NULL;
  *(void **)&get = dlsym(library, "cuGetProcAddress_v2");
  *(void **)&driver.host_view = dlsym(library, "gpusim_host_view");
  if (get == NULL || driver.host_view == NULL) {
    fprintf(stderr, "the libraries of integration/pytorch are for simulated GPUs and libcuda.so.1 "
                    "is another driver; "
                    "take their folder out of LD_LIBRARY_PATH\n");
    return;
  }
#define ENTRY(name, version)                                                                       \
  if (get(#name, (void **)&driver.name, version, CU_GET_PROC_ADDRESS_DEFAULT, NULL) !=             \
          CUDA_SUCCESS ||                                                                          \
      driver.name == NULL)                                                                         \
    missing = #name;
#include "integration/pytorch/libraries/driver.def"
#undef ENTRY
  if (missing != NULL)
    fprintf(stderr, "libcuda.so.1 has no %s; a driver of CUDA 12.0 is needed\n", missing);
  else
    opened = CUDA_SUCCESS;
}

CUresult driver_open(void) {
  pthread_once(&once, open_driver);
  return opened;
}
