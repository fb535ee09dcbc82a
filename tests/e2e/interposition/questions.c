/* Asks the loader and the driver for what isn't there, or asks it wrongly, and prints what they
   say: the same lines with and without the preload. */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#undef cuGetProcAddress

CUresult cuGetProcAddress(const char *, void **, int, cuuint64_t);

static void ask(void *library, const char *name) {
  (void)dlerror();
  void *found = dlsym(library, name);
  const char *error = dlerror();
  printf("%s: %s, %s\n", name, found ? "found" : "not found", error ? error : "no error");
}

static void ask_proc(const char *name, int version, cuuint64_t flags) {
  void *function = (void *)1;
  CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)77;
  CUresult result = cuGetProcAddress_v2(name, &function, version, flags, &status);
  printf("v2 %s %d %d: %d, %s, status %d\n", name ? name : "NULL", version, (int)flags, result,
         function == (void *)1 ? "untouched"
         : function            ? "found"
                               : "NULL",
         (int)status);
  function = (void *)1;
  result = cuGetProcAddress(name, &function, version, flags);
  printf("v1 %s %d: %d, %s\n", name ? name : "NULL", version, result,
         function == (void *)1 ? "untouched"
         : function            ? "found"
                               : "NULL");
}

int main(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  void *math = dlopen("libm.so.6", RTLD_NOW);
  if (!library || !math)
    return 1;
  ask(library, "cuInit");
  ask(library, "cuNoSuchFunction");
  ask(library, "cudnnCreate");
  ask(library, "cu");
  ask(library, "c");
  ask(library, "");
  ask(math, "cuInit");
  ask(math, "cos");
  ask(RTLD_DEFAULT, "cuNoSuchFunction");
  ask(RTLD_NEXT, "cuNoSuchFunction");
  ask(RTLD_NEXT, "malloc");
  printf("dlvsym of no version: %s\n", dlvsym(math, "cos", "NO_SUCH_1") ? "found" : "not found");
  ask_proc("", 0, 0);
  ask_proc("cuNoSuchFunction", 12000, 0);
  ask_proc("cuMemAlloc", 999000, 0);
  ask_proc("cuMemAlloc", 1000, 0);
  ask_proc("cuMemAlloc_v2", 12000, 0);
  ask_proc("cuInit", 12000, 2);
  printf("no place for the answer: %d\n", cuGetProcAddress_v2("cuInit", NULL, 12000, 0, NULL));
  printf("no status: %d\n", cuGetProcAddress_v2("cuInit", &library, 12000, 0, NULL));
  return 0;
}
