/* A library for tests of `offload run`: leaves a mark in the environment, so that a program can tell it was loaded. */
#include <stdlib.h>

__attribute__((constructor)) static void mark(void) {
  setenv("PRELOADED_MARK", "1", 1);
}
