/* Looks driver functions up by name and version, and prints in which object they lie. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static void ask(void *library, const char *name, const char *version) {
  Dl_info info;
  void *function = dlvsym(library, name, version);
  const char *file = function && dladdr(function, &info) ? strrchr(info.dli_fname, '/') : "/none";
  printf("%s %s: %s\n", name, version, file + 1);
}

int main(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library)
    return 1;
  ask(library, "cuInit", "DRIVER_1");
  ask(library, "cuInit", "DRIVER_2");
  ask(library, "cuDeviceGet", "DRIVER_1");
  return 0;
}
