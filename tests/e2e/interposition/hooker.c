/* Another preloaded library that hooks dlsym, written as most are: the real one is found with dlvsym
   among the versions that glibc has had, what lies in the driver is exchanged by name, everything
   else is called and not jumped to. It counts the allocations it sees. */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

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

void *dlsym(void *restrict handle, const char *restrict name) {
  lookups++;
  if (handle != RTLD_NEXT && handle != RTLD_DEFAULT) {
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
