/* Finding the simulated driver's entry points at run time, for the driver.c of each stand-in: which
   ones, and how a failure is told, is its own. */
#ifndef OFFLOAD_PYTORCH_FIND_DRIVER_H
#define OFFLOAD_PYTORCH_FIND_DRIVER_H
#include <cudaTypedefs.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>

/* Name, the CUDA version that is asked for, and where the address goes. */
struct driver_entry {
  const char *name;
  int version;
  void **place;
};

/* False, with the reason in `problem`, where there is no driver, another one or an older one. */
static inline bool find_driver(const struct driver_entry *entries, size_t count,
                               void *(**host_view)(void *), char *problem, size_t problem_bytes) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) {
    snprintf(problem, problem_bytes, "no CUDA driver: %s", dlerror());
    return false;
  }
  PFN_cuGetProcAddress_v12000 get = NULL;
  *(void **)&get = dlsym(library, "cuGetProcAddress_v2");
  *(void **)host_view = dlsym(library, "gpusim_host_view");
  if (get == NULL || *host_view == NULL) {
    snprintf(problem, problem_bytes,
             "the libraries of integration/pytorch are for simulated GPUs and libcuda.so.1 is "
             "another driver; take their folder out of LD_LIBRARY_PATH");
    return false;
  }
  for (size_t i = 0; i < count; i++)
    if (get(entries[i].name, entries[i].place, entries[i].version, CU_GET_PROC_ADDRESS_DEFAULT,
            NULL) != CUDA_SUCCESS ||
        *entries[i].place == NULL) {
      snprintf(problem, problem_bytes, "libcuda.so.1 has no %s; a driver of CUDA 12.0 is needed",
               entries[i].name);
      return false;
    }
  return true;
}
#endif
