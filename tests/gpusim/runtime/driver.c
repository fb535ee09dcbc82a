/* The table of driver entry points, for legacy streams and, compiled a second time, for per-thread
   streams.

   Called by state.c only. The tables are written once, under its once-lock, before any other room
   reads them. */
#define _GNU_SOURCE
#include "runtime.h"
#include <cudaTypedefs.h>
#include <dlfcn.h>

struct driver_entries driver;

#ifndef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define ENTRY(name, version)                                                                       \
  _Static_assert(__builtin_types_compatible_p(PFN_##name##_v##version, __typeof__(&name)),         \
                 #name " was not introduced in this version");
#include "driver.def"
#undef ENTRY
#endif

/* Stands for a missing function. It reads no argument, so every C calling convention that we run on
 * allows it. */
static CUresult not_in_this_driver(void) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

/* Per-thread forms were introduced with 7.0 and are asked for by flag. */
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
enum { FLAGS = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, OLDEST = 7000 };
#else
enum { FLAGS = CU_GET_PROC_ADDRESS_DEFAULT, OLDEST = 0 };
#endif

static void resolve(resolver *get, const char *name, int version, void **slot) {
  void *function = NULL;
  if (get(name, &function, version < OLDEST ? OLDEST : version, FLAGS, NULL) != CUDA_SUCCESS ||
      function == NULL)
    function = (void *)not_in_this_driver;
  *slot = function;
}

void driver_resolve(resolver *get) {
#define ENTRY(name, version) resolve(get, #name, version, (void **)&driver.name);
#include "driver.def"
#undef ENTRY
}

#ifndef CUDA_API_PER_THREAD_DEFAULT_STREAM
bool driver_open(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL)
    return false;
  resolver *get = NULL;
  *(void **)&get = dlsym(library, "cuGetProcAddress_v2");
  if (get == NULL)
    return false;
  driver_resolve(get);
  driver_resolve_per_thread(get);
  return true;
}
#endif
