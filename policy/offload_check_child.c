/* What `offload check` does in child processes, so that a driver that crashes or hangs, a library that doesn't load and a slow
   interpreter harm nobody; and small helpers of the checks. */
#define _GNU_SOURCE
#include "../nvme/clock.h"
#include "check.h"
#include "words.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int64_t now_ms(void) {
  return (int64_t)(clock_now_ns() / 1000000);
}

static _Noreturn void become(char *const *argv, const char *preload, int output) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nowhere < 0 || dup2(nowhere, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0 ||
      dup2(nowhere, STDERR_FILENO) < 0)
    _exit(127);
  if (*preload ? setenv("LD_PRELOAD", preload, 1) : unsetenv("LD_PRELOAD"))
    _exit(127);
  setenv("OFFLOAD_MODE", "off", 1); /* where /etc/ld.so.preload names it */
  execv(argv[0], argv);
  _exit(127);
}

/* Reads until the other end is closed; false when the time is up. */
static bool read_all(int from, int64_t deadline, char *output, size_t output_bytes) {
  char dropped[256] = "";
  size_t used = 0;
  for (;;) {
    struct pollfd ready = {.fd = from, .events = POLLIN};
    const int64_t left = deadline - now_ms();
    const int answer = left > 0 ? poll(&ready, 1, (int)left) : 0;
    if (answer < 0 && errno == EINTR)
      continue;
    if (answer <= 0)
      return false;
    const bool full = used + 1 >= output_bytes;
    const ssize_t got =
        read(from, full ? dropped : output + used, full ? sizeof dropped : output_bytes - used - 1);
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      return true;
    if (!full)
      used += (size_t)got;
    output[used] = 0;
  }
}

enum check_end check_run(char *const *argv, const char *preload, int timeout_ms, char *output,
                         size_t output_bytes, int *number) {
  int pipe_ends[2], status = 0;
  output[0] = 0;
  *number = 0;
  fflush(stdout);
  if (pipe2(pipe_ends, O_CLOEXEC))
    return END_NOT_RUN;
  const pid_t child = fork();
  if (child == 0)
    become(argv, preload, pipe_ends[1]);
  close(pipe_ends[1]);
  bool in_time = true;
  if (child > 0) {
    const int64_t deadline = now_ms() + timeout_ms;
    in_time = read_all(pipe_ends[0], deadline, output, output_bytes);
    /* It may have closed its output and live on. */
    while (in_time && waitpid(child, &status, WNOHANG) == 0) {
      in_time = now_ms() < deadline;
      if (in_time)
        (void)poll(NULL, 0, 2);
    }
    if (!in_time) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
    }
  }
  close(pipe_ends[0]);
  if (child < 0)
    return END_NOT_RUN;
  if (!in_time)
    return END_TIMEOUT;
  *number = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
  if (WIFSIGNALED(status))
    return END_SIGNAL;
  return *number == 127 ? END_NOT_RUN : END_EXITED;
}

const char *check_preload_without_ours(void) {
  static char kept[8192];
  const char *preload = getenv("LD_PRELOAD");
  size_t used = 0;
  kept[0] = 0;
  for (const char *at = preload ? preload : ""; *at;) {
    at += strspn(at, ": ");
    const size_t length = strcspn(at, ": ");
    if (length && !memmem(at, length, "liboffload", sizeof "liboffload" - 1) &&
        used + length + 2 < sizeof kept)
      used += (size_t)snprintf(kept + used, sizeof kept - used, "%s%.*s", used ? ":" : "",
                               (int)length, at);
    at += length;
  }
  return kept;
}

const char *check_size(uint64_t bytes) {
  static char texts[8][WORDS_BYTES];
  static unsigned next;
  return words_bytes((double)bytes, texts[next++ % 8]);
}

bool check_is_there(const char *root, const char *path) {
  char whole[PATH_MAX];
  return snprintf(whole, sizeof whole, "%s%s", root, path) < (int)sizeof whole &&
         !access(whole, F_OK);
}

bool check_list_has(const char *list, unsigned number) {
  while (*list) {
    char *end;
    const unsigned long first = strtoul(list, &end, 10);
    if (end == list)
      return false;
    unsigned long last = first;
    if (*end == '-')
      last = strtoul(end + 1, &end, 10);
    if (number >= first && number <= last)
      return true;
    list = end + (*end == ',');
    if (*end != ',')
      return false;
  }
  return false;
}
