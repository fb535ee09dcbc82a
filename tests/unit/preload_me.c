/* A library for tests of `offload run`: leaves a mark in the environment, so that a program can tell it was loaded, and
   exports what the real one is known by. */
#include <stdlib.h>

int cuInit(unsigned flags);
int cuInit(unsigned flags) {
  return (int)flags;
}

__attribute__((constructor)) static void mark(void) {
  setenv("PRELOADED_MARK", "1", 1);
}
