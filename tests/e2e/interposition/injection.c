/* What profilers put into CUDA_INJECTION64_PATH: the driver loads it inside the first cuInit and
   calls InitializeInjection, which looks driver functions up and calls them, cuInit too. */
#define _GNU_SOURCE
#include "way.h"
#include <dlfcn.h>

int InitializeInjection(void);
int InitializeInjection(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  CUresult (*resolve)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
  CUresult (*allocate)(CUdeviceptr *, size_t) = NULL;
  CUresult (*initialise)(unsigned) = NULL;
  CUresult (*get_version)(int *) = NULL;
  CUdeviceptr pointer = 0;
  int version = 0, found = 0;
  *(void **)&resolve = driver ? dlsym(driver, "cuGetProcAddress_v2") : NULL;
  if (!resolve) {
    printf("injection: no driver\n");
    return 0;
  }
  for (int i = 0; i < WAY_NAMES; i++) {
    void *function = NULL;
    found += !resolve(way_names[i].base, &function, way_names[i].version, 0, NULL) && function;
  }
  (void)resolve("cuMemAlloc", (void **)&allocate, 12000, 0, NULL);
  (void)resolve("cuInit", (void **)&initialise, 12000, 0, NULL);
  (void)resolve("cuDriverGetVersion", (void **)&get_version, 12000, 0, NULL);
  if (!allocate || !initialise || !get_version)
    return 0;
  printf("injection: %d of %d found\n", found, (int)WAY_NAMES);
  printf("injection: init %d\n", (int)initialise(0));
  printf("injection: version %d %d\n", (int)get_version(&version), version);
  printf("injection: allocation without a context %d\n", (int)allocate(&pointer, WAY_BYTES));
  return 1;
}
