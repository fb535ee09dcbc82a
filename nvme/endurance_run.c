/* Starts a program in a process that is not ours, without what it would notice: no fork handlers, no SIGCHLD, no child that its
   wait() could meet, no descriptor and no variable inherited (our own LD_PRELOAD among them). Called by endurance_smart.c.

   A child that borrows our memory, as vfork's does, starts a second one, which becomes the program, and ends at once, so that init
   inherits the second. The first ends without a signal: only we can wait for it. Between clone and execve only system calls are made. */
#define _GNU_SOURCE
#include "clock.h"
#include "endurance_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK_BYTES = 64 << 10, CLOSE_RANGE = 436, GRACE_MS = 500, FIRST_OTHER = 3 };

struct start {
  const char *program;
  char *const *arguments;
  int output, nothing; /* both above the standard ones */
  unsigned seconds;
  char *stack; /* of the second child */
  bool failed;
};

static void close_from(int first) {
  struct rlimit files;
  if (!syscall(CLOSE_RANGE, (unsigned)first, ~0u, 0))
    return;
  const int end =
      getrlimit(RLIMIT_NOFILE, &files) || files.rlim_cur > 1 << 20 ? 1 << 20 : (int)files.rlim_cur;
  for (int fd = first; fd < end; fd++)
    (void)close(fd);
}

/* A sanitizer does not know the stack that these two are on. */
#define ALONE __attribute__((no_sanitize("address"), no_sanitize("thread")))

static ALONE int become(void *argument) {
  struct start *start = argument;
  static char *const environment[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", NULL};
  const struct sigaction initial = {.sa_handler = SIG_DFL};
  sigset_t none;
  sigemptyset(&none);
  /* Handlers would run in memory that is the program's. */
  for (int number = 1; number < NSIG; number++)
    (void)sigaction(number, &initial, NULL);
  if (dup2(start->nothing, STDIN_FILENO) >= 0 && dup2(start->output, STDOUT_FILENO) >= 0 &&
      dup2(start->nothing, STDERR_FILENO) >= 0) {
    close_from(FIRST_OTHER);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)alarm(start->seconds); /* outlives execve */
    (void)execve(start->program, start->arguments, environment);
  }
  start->failed = true;
  _exit(EXIT_FAILURE);
}

static ALONE int leave(void *argument) {
  struct start *start = argument;
  if (clone(become, start->stack, CLONE_VM | CLONE_VFORK, start) < 0)
    start->failed = true;
  _exit(EXIT_SUCCESS);
}

static bool begin(struct start *start) {
  char *stacks = malloc((size_t)2 * STACK_BYTES);
  sigset_t all, before;
  if (!stacks)
    return false;
  start->stack = stacks + STACK_BYTES;
  sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, &before);
  const int child = clone(leave, stacks + (size_t)2 * STACK_BYTES, CLONE_VM | CLONE_VFORK, start);
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  while (child > 0 && waitpid(child, NULL, (int)__WCLONE) < 0 && errno == EINTR)
    ;
  free(stacks);
  return child > 0 && !start->failed;
}

static int64_t now_ms(void) {
  return (int64_t)(clock_now_ns() / 1000000);
}

static bool take(int fd, int64_t until_ms, char *output, size_t output_bytes) {
  size_t used = 0;
  for (int64_t now; used < output_bytes && (now = now_ms()) < until_ms;) {
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    if (poll(&ready, 1, (int)(until_ms - now)) <= 0)
      continue;
    const ssize_t got = read(fd, output + used, output_bytes - used);
    if (!got) { /* by itself, or by the alarm */
      output[used] = 0;
      return now_ms() < until_ms - GRACE_MS;
    }
    if (got < 0 && errno != EINTR)
      return false;
    used += got > 0 ? (size_t)got : 0;
  }
  return false;
}

/* Where standard ones are closed, a new descriptor would take their number. */
static int above(int fd) {
  if (fd < 0 || fd >= FIRST_OTHER)
    return fd;
  const int moved = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_OTHER);
  (void)close(fd);
  return moved;
}

bool endurance_run(const char *program, char *const arguments[], unsigned limit_ms, char *output,
                   size_t output_bytes) {
  const int error = errno;
  int cancel, ends[2] = {-1, -1};
  bool whole = false;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
  const int nothing = above(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!pipe2(ends, O_CLOEXEC)) {
    ends[0] = above(ends[0]);
    ends[1] = above(ends[1]);
  }
  struct start start = {.program = program,
                        .arguments = arguments,
                        .output = ends[1],
                        .nothing = nothing,
                        .seconds = (limit_ms + 999) / 1000};
  const int64_t until_ms = now_ms() + limit_ms + GRACE_MS;
  const bool begun = nothing >= 0 && ends[0] >= 0 && ends[1] >= 0 && begin(&start);
  if (ends[1] >= 0)
    (void)close(ends[1]);
  if (begun)
    whole = take(ends[0], until_ms, output, output_bytes);
  if (ends[0] >= 0)
    (void)close(ends[0]);
  if (nothing >= 0)
    (void)close(nothing);
  (void)pthread_setcancelstate(cancel, NULL);
  errno = error;
  return whole;
}
