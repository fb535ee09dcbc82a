/* Processes by /proc/PID/stat: no descriptor is kept, and forked children hold nobody alive. */
#include "integration/pytorch/nccl/process.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool read_status(pid_t number, char *state, uint64_t *start_ticks) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", (int)number);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return false;
  ssize_t bytes = read(file, text, sizeof text - 1);
  close(file);
  if (bytes <= 0)
    return false;
  text[bytes] = '\0';
  /* The second field is the name in brackets and may hold anything. */
  char *at = strrchr(text, ')');
  if (at == NULL || at[1] != ' ')
    return false;
  at += 2;
  *state = *at;
  for (int field = 3; field < 22 && at != NULL; field++) {
    at = strchr(at, ' ');
    if (at != NULL)
      at++;
  }
  if (at == NULL)
    return false;
  *start_ticks = strtoull(at, NULL, 10);
  return true;
}

bool process_self(struct process_identity *self) {
  char state;
  self->number = getpid();
  return read_status(self->number, &state, &self->start_ticks);
}

bool process_lives(const struct process_identity *process) {
  char state;
  uint64_t start_ticks;
  return read_status(process->number, &state, &start_ticks) &&
         start_ticks == process->start_ticks && state != 'Z' && state != 'X';
}
