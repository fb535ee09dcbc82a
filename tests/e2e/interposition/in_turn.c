/* Opens libraries with kernels one after another, each of which has a runtime of its own and lies
   where the one before it lay. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>

int main(int count, char **names) {
  ElfW(Addr) before = 0;
  int moved = 0;
  for (int i = 1; i < count; i++) {
    struct link_map *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
    moved |= before && before != library->l_addr;
    before = library->l_addr;
    (void)dlclose(library);
  }
  printf("%s\n", moved ? "elsewhere" : "at the same place");
  return moved;
}
