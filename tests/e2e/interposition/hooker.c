/* Another preloaded library that hooks dlsym, written as most are: the real one is found with dlvsym
   among the versions that glibc has had, what lies in the driver is exchanged by name, everything
   else is called and not jumped to. It counts the allocations it sees. The first lookup of the name in HOOKER_STOPS_AT takes until
   the program says so (finding.c). */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *lookup_function(void *, const char *);
typedef CUresult allocate_function(CUdeviceptr *, size_t);
typedef CUresult resolve_function(const char *, void **, int, cuuint64_t,
                                  CUdriverProcAddressQueryResult *);
static long allocations, lookups;

static lookup_function *real_dlsym(void) {
  static const char *const versions[] = {"GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.34"};
  static lookup_function *real;
  for (unsigned i = 0; !real && i < sizeof versions / sizeof *versions; i++)
    real = (lookup_function *)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
  return real;
}

static void *driver_function(const char *name) {
  static void *driver;
  if (!driver)
    driver = dlopen("libcuda.so.1", RTLD_NOW);
  return driver ? real_dlsym()(driver, name) : NULL;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
  static allocate_function *real;
  if (!real)
    *(void **)&real = driver_function("cuMemAlloc_v2");
  allocations++;
  return real ? real(pointer, bytes) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
  static resolve_function *real;
  if (!real)
    *(void **)&real = driver_function("cuGetProcAddress_v2");
  CUresult result = real ? real(name, function, version, flags, status) : CUDA_ERROR_UNKNOWN;
  if (result == CUDA_SUCCESS && name && !strcmp(name, "cuMemAlloc") && version >= 3020)
    *function = (void *)cuMemAlloc_v2;
  return result;
}

static _Atomic bool stopped, may_go_on;
bool hooker_stopped(void);
void hooker_go_on(void);
bool hooker_stopped(void) {
  return atomic_load(&stopped);
}
void hooker_go_on(void) {
  atomic_store(&may_go_on, true);
}

static void stop_at(const char *name) {
  const char *at = getenv("HOOKER_STOPS_AT");
  if (!at || strcmp(name, at) != 0 || atomic_exchange(&stopped, true))
    return;
  while (!atomic_load(&may_go_on))
    (void)usleep(1000);
}

void *dlsym(void *restrict handle, const char *restrict name) {
  lookups++;
  if (handle != RTLD_NEXT && handle != RTLD_DEFAULT) {
    stop_at(name);
    if (!strcmp(name, "cuMemAlloc_v2"))
      return (void *)cuMemAlloc_v2;
    if (!strcmp(name, "cuGetProcAddress_v2"))
      return (void *)cuGetProcAddress_v2;
  }
  return real_dlsym()(handle, name);
}

__attribute__((destructor)) static void say(void) {
  fprintf(stderr, "hooker: %ld lookups, %ld allocations\n", lookups, allocations);
}
