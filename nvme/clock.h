/* The clock of everything that waits until a time, gives up or is timed: monotonic, in nanoseconds. The lowest of the folders has it; policy
   and shim use it, too. Any thread. */
#ifndef OFFLOAD_CLOCK_H
#define OFFLOAD_CLOCK_H
#include <stdint.h>
#include <time.h>

static inline uint64_t clock_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
#endif
