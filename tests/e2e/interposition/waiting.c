/* Uses CUDA for the first time in a thread for which a constructor is waiting
   (waiting_library.c): linked against the driver, so that nothing of this needs the loader without a
   preload. The words: the library; `lookup` to look all functions up, `use` to use the driver. */
#define _GNU_SOURCE
#include "way.h"
#include <dlfcn.h>
#include <unistd.h>

void *at_load(void *);
static const char *what;
static int failed = 1;

static int look_up(void) {
  int missing = 0;
  for (int i = 0; i < WAY_NAMES; i++) {
    void *function = NULL;
    missing |= cuGetProcAddress_v2(way_names[i].base, &function, way_names[i].version, 0, NULL) ||
               !function;
    printf("%s %s\n", way_names[i].base, function ? "found" : "missing");
  }
  return missing;
}

void *at_load(void *unused) {
  failed = strcmp(what, "use") ? look_up() : way_use_linked();
  return unused;
}

int main(int count, char **words) {
  if (count != 3)
    return 2;
  what = words[2];
  (void)alarm(20); /* who waits for ever is stopped */
  if (!dlopen(words[1], RTLD_NOW | RTLD_LOCAL))
    printf("%s\n", dlerror());
  return failed;
}
