/* See measure_run.h. What runs in the guard and, until exec, in the program uses system calls alone: memory and thread-local
   storage are the calling thread's, and libc's functions may be the program's own. */
#define _GNU_SOURCE
#include "measure_run.h"
#include "../nvme/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

enum { STACK_BYTES = 64 << 10, DESCRIPTORS_MOST = 1 << 16, KERNEL_SIGNALS = 64 };

struct guarding {
  struct run_program *run;
  pid_t parent, guard;
  char *stack; /* of the program, until exec */
  int pipe[2];
};

/* Not past the death of the thread that made this process. */
static void die_with(pid_t parent) {
  syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (syscall(SYS_getppid) != parent)
    syscall(SYS_exit_group, 1);
}

static void close_all(void) {
  struct rlimit limit;
  if (!syscall(SYS_close_range, 0u, ~0u, 0u))
    return;
  if (syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &limit) || limit.rlim_cur > DESCRIPTORS_MOST)
    limit.rlim_cur = DESCRIPTORS_MOST;
  for (unsigned i = 0; i < limit.rlim_cur; i++)
    syscall(SYS_close, i);
}

/* The program's handlers mean nothing here, and what it ignores stays ignored over exec. */
static void default_signals(void) {
  static const uint64_t none[4]; /* the kernel's sigaction: SIG_DFL, no flags */
  for (int i = 1; i <= KERNEL_SIGNALS; i++)
    syscall(SYS_rt_sigaction, i, none, NULL, sizeof(uint64_t));
}

static const uint64_t no_signals;

static int in_program(void *argument) {
  struct guarding *guarding = argument;
  die_with(guarding->guard);
  syscall(SYS_setsid);
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &no_signals, NULL, sizeof no_signals);
  syscall(SYS_dup3, guarding->pipe[1], STDOUT_FILENO, 0);
  syscall(SYS_dup3, guarding->pipe[1], STDERR_FILENO, 0);
  syscall(SYS_execve, guarding->run->path, guarding->run->arguments, guarding->run->environment);
  guarding->run->error = errno;
  syscall(SYS_exit_group, 127);
  return 127;
}

/* Until the output ends; false when time is over. */
static bool read_output(struct run_program *run, int file, uint64_t until_ns) {
  static const size_t most = RUN_OUTPUT_BYTES;
  char rest[256];
  for (size_t used = 0;;) {
    const uint64_t now = clock_now_ns();
    if (now >= until_ns)
      return false;
    struct timespec left = {.tv_sec = (time_t)((until_ns - now) / 1000000000),
                            .tv_nsec = (long)((until_ns - now) % 1000000000)};
    struct pollfd ready = {.fd = file, .events = POLLIN};
    const long got = syscall(SYS_ppoll, &ready, 1, &left, NULL, 0);
    if (got < 0 && errno != EINTR)
      return false;
    if (got <= 0)
      continue;
    const long bytes = used < most ? syscall(SYS_read, file, run->output + used, most - used)
                                   : syscall(SYS_read, file, rest, sizeof rest);
    if (bytes <= 0)
      return bytes == 0;
    if (used < most)
      used += (size_t)bytes;
    run->output[used] = 0;
  }
}

static int in_guard(void *argument) {
  struct guarding *guarding = argument;
  struct run_program *run = guarding->run;
  const uint64_t until_ns = clock_now_ns() + (uint64_t)run->seconds * 1000000000u;
  die_with(guarding->parent);
  close_all();
  default_signals();
  guarding->guard = (pid_t)syscall(SYS_getpid);
  for (int i = 0; i <= STDERR_FILENO; i++)
    syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR, 0);
  if (syscall(SYS_pipe2, guarding->pipe, O_CLOEXEC)) {
    run->error = errno;
    return 1;
  }
  const pid_t program =
      clone(in_program, guarding->stack + STACK_BYTES, CLONE_VM | CLONE_VFORK | SIGCHLD, guarding);
  if (program < 0) {
    run->error = errno;
    return 1;
  }
  syscall(SYS_close, guarding->pipe[1]);
  const bool ended = run->error || read_output(run, guarding->pipe[0], until_ns);
  if (!ended)
    syscall(SYS_kill, program, SIGKILL);
  int status = -1;
  while (syscall(SYS_wait4, program, &status, 0, NULL) < 0 && errno == EINTR)
    ;
  if (!ended)
    run->error = ETIME;
  run->status = run->error ? -1 : status;
  return 0;
}

void run_program(struct run_program *run) {
  const size_t bytes = 2ul * STACK_BYTES;
  run->output[0] = 0;
  run->status = -1;
  run->error = 0;
  char *stacks =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stacks == MAP_FAILED) {
    run->error = errno;
    return;
  }
  struct guarding guarding = {.run = run, .parent = getpid(), .stack = stacks};
  const pid_t guard =
      clone(in_guard, stacks + bytes, CLONE_VM | CLONE_VFORK, &guarding); /* no exit signal */
  if (guard < 0)
    run->error = errno;
  else
    while (waitpid(guard, NULL, (int)__WCLONE) < 0 && errno == EINTR)
      ;
  munmap(stacks, bytes);
}
