/* P8: K streams each wait for a word of their own, then the last one's word is set: does its work
   run while the others wait? CUDA_DEVICE_MAX_CONNECTIONS sets how many hardware queues there are to
   share; it is read when the driver starts, so that each value needs a process. */
#include "probe.h"
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 64, PATIENCE_MS = 300 };
static CUstream streams[MOST];
static uint32_t *waited, *reached; /* pinned; a line of 64 bytes for each stream */

static uint32_t *line(uint32_t *words, int stream) {
  return words + 16 * stream;
}

/* In each stream: wait, then a kernel that stores. */
static bool last_one_runs(int count) {
  for (int i = 0; i < count; i++) {
    *line(waited, i) = *line(reached, i) = 0;
    MUST(cuStreamWaitValue32_v2, streams[i], (CUdeviceptr)(uintptr_t)line(waited, i), 1,
         CU_STREAM_WAIT_VALUE_GEQ);
    must_succeed(fill((CUdeviceptr)(uintptr_t)line(reached, i), 1, 1, 0, streams[i]), "probe_fill",
                 __FILE__, __LINE__);
  }
  __atomic_store_n(line(waited, count - 1), 1, __ATOMIC_RELEASE);
  bool runs = word_reaches(line(reached, count - 1), 1, PATIENCE_MS);
  for (int i = 0; i < count; i++)
    __atomic_store_n(line(waited, i), 1, __ATOMIC_RELEASE);
  for (int i = 0; i < count; i++)
    MUST(cuStreamSynchronize, streams[i]);
  return runs;
}

static void ask(void) {
  static const int counts[] = {2, 3, 4, 8, 9, 16, 17, 32, 33, 64};
  const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  int independent = 1;
  bool all = true;
  start();
  fact_text("CUDA_DEVICE_MAX_CONNECTIONS", "%s", connections != NULL ? connections : "unset");
  waited = host_alloc(4 * KIB);
  reached = host_alloc(4 * KIB);
  for (int i = 0; i < MOST; i++)
    MUST(cuStreamCreate, &streams[i], CU_STREAM_NON_BLOCKING);
  /* the first launch may load the kernel, which can wait for other work */
  must_succeed(fill((CUdeviceptr)(uintptr_t)reached, 1, 1, 0, streams[0]), "probe_fill", __FILE__,
               __LINE__);
  MUST(cuCtxSynchronize);
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
    step(named("letting %d streams wait", counts[i]));
    bool runs = last_one_runs(counts[i]);
    fact_bool(named("last_of_%d_runs", counts[i]), runs);
    all = all && runs;
    independent = all ? counts[i] : independent;
  }
  fact_signed("independent_streams_at_least", independent);
}

void probe_connections(void) {
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  ask();
}

void probe_connections_1(void) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
  ask();
}
