/* Preloaded into a job: a thread that forks at given moments, as a data loader's does, whatever the other threads are doing then. The
   children live on until someone ends them. Only in a program of the name FORKER_PROGRAM. FORKER_AT_US=N,N,...: microseconds since
   the start; each child's number is a line of FORKER_CHILDREN. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int children = -1;
static struct timespec started;

static void *fork_at(void *list) {
  char *at = list;
  for (char *end; *at; at = *end ? end + 1 : end) {
    const unsigned long us = strtoul(at, &end, 10);
    if (end == at)
      break;
    struct timespec until = {started.tv_sec + (time_t)(us / 1000000),
                             started.tv_nsec + (long)(us % 1000000) * 1000};
    if (until.tv_nsec >= 1000000000) {
      until.tv_nsec -= 1000000000;
      until.tv_sec++;
    }
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0)
      ;
    if (fork() != 0)
      continue;
    char line[32];
    const int bytes = snprintf(line, sizeof line, "%d\n", (int)getpid());
    if (write(children, line, (size_t)bytes) != bytes)
      _exit(1);
    for (;;)
      (void)pause();
  }
  return NULL;
}

__attribute__((constructor)) static void start(void) {
  static char list[256];
  const char *moments = getenv("FORKER_AT_US"), *path = getenv("FORKER_CHILDREN"),
             *program = getenv("FORKER_PROGRAM");
  pthread_t thread;
  sigset_t all, before;
  if (!moments || !path || !program || strcmp(program, program_invocation_short_name) != 0)
    return;
  (void)snprintf(list, sizeof list, "%s", moments);
  children = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  (void)clock_gettime(CLOCK_MONOTONIC, &started);
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, &before);
  if (children < 0 || pthread_create(&thread, NULL, fork_at, list) != 0)
    abort();
  (void)pthread_detach(thread);
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}
