/* Whether another process of this machine still lives. */
#ifndef OFFLOAD_NCCL_PROCESS_H
#define OFFLOAD_NCCL_PROCESS_H
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* A process for good: numbers are given again, times of start aren't. */
struct process_identity {
  pid_t number;
  uint64_t start_ticks; /* since boot, /proc/PID/stat, field 22 */
};

/* Of the calling process; false when /proc isn't there. */
bool process_self(struct process_identity *self);
/* A zombie doesn't live: nobody will hear of it again. */
bool process_lives(const struct process_identity *process);
#endif
