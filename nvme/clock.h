/* The clock of everything here that measures or gives up: monotonic, so that setting the system's time moves nothing. */
#ifndef OFFLOAD_NVME_CLOCK_H
#define OFFLOAD_NVME_CLOCK_H
#include <stdint.h>
#include <time.h>

static inline uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
#endif
