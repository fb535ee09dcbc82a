/* Loads two libraries with kernels, each with a runtime of its own, both hidden from the rest. */
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **names) {
  for (int i = 1; i < count; i++)
    if (!dlopen(names[i], RTLD_NOW | RTLD_LOCAL)) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
  return 0;
}
