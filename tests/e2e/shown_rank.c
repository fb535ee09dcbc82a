/* A process that shows itself in the node's registry as a rank that steps, until it is ended: what `offload top` is tested with.
   shown_rank RANK RANKS JOB EXPOSED_MS NOTE: steps of 345.1 ms on an 80 GiB device, a step each 50 ms. */
#define _GNU_SOURCE
#include "policy/registry.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEP_US = 50000, ARGUMENTS = 6 };

int main(int argc, char **argv) {
  char problem[1024] = "";
  if (argc != ARGUMENTS) {
    fprintf(stderr, "usage: shown_rank RANK RANKS JOB EXPOSED_MS NOTE\n");
    return 2;
  }
  const uint32_t rank = (uint32_t)strtoul(argv[1], NULL, 10);
  struct registry_entry entry = {.pid = getpid(),
                                 .device = (int32_t)rank,
                                 .local_rank = rank,
                                 .local_ranks = (uint32_t)strtoul(argv[2], NULL, 10),
                                 .job = strtoull(argv[3], NULL, 16),
                                 .program = "train.py"};
  snprintf(entry.gpu, sizeof entry.gpu, "0000:%x1:00.0", rank + 4);
  registry_root(getenv("OFFLOAD_SYSROOT"));
  if (!registry_join(&entry, problem, sizeof problem)) {
    fprintf(stderr, "shown_rank: %s\n", problem);
    return 1;
  }
  struct registry_state state = {.moved_bytes = 12ull << 30,
                                 .drive_bytes = (uint64_t)rank << 30,
                                 .state_bytes = 14ull << 30,
                                 .device_used_bytes = (40 + 8ull * rank) << 30,
                                 .device_total_bytes = 80ull << 30,
                                 .step_ns = 345100000 + rank * 1000000,
                                 .exposed_ns = strtoull(argv[4], NULL, 10) * 1000000,
                                 .foretold_ns = 11900000,
                                 .link_down_bytes = 3ull << 30,
                                 .link_up_bytes = 3ull << 30,
                                 .parameters_key = 77 + rank,
                                 .way = "cpu",
                                 .mode = "full"};
  snprintf(state.note, sizeof state.note, "%s", argv[5]);
  for (;;) {
    state.steps++;
    registry_show(&state);
    if (state.steps == 1) {
      puts("shown");
      fflush(stdout);
    }
    usleep(STEP_US);
  }
}
