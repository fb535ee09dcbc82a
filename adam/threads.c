/* How many threads the OpenMP runtime may be asked for (threads.h).

   The runtime ends the process when it can't start a thread, and gives no way to ask before. So
   what would make it fail is looked for here: places without a CPU of ours, and, by starting as
   many threads with the same stack and all alive together, limits of processes and memory. Where
   they are short the team takes half of what there was: the program needs threads too. */
#define _GNU_SOURCE
#include "threads.h"
#include <errno.h>
#include <omp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LEAVE_ATTEMPTS = 20000 }; /* of 50 microseconds: a second */

/* Bytes as OMP_STACKSIZE writes them; kibibytes without a unit. False for what isn't such. */
static bool read_stack_size(const char *text, size_t *bytes) {
  static const char units[] = "BKMG";
  char *end;
  errno = 0;
  const unsigned long long number = strtoull(text, &end, 10);
  if (errno || end == text || strchr(text, '-'))
    return false;
  end += strspn(end, " \t");
  unsigned shift = 10;
  if (*end) {
    const char *unit = strchr(units, *end >= 'a' ? *end - 'a' + 'A' : *end);
    if (!unit || end[1 + strspn(end + 1, " \t")])
      return false;
    shift = (unsigned)(unit - units) * 10;
  }
  if (number > SIZE_MAX >> shift)
    return false;
  *bytes = (size_t)number << shift;
  return true;
}

/* The largest stack that the environment asks the runtime's threads to have; 0: the usual one. */
static bool stack_size(size_t *bytes, char *why, size_t why_bytes) {
  static const char *const names[] = {"OMP_STACKSIZE", "GOMP_STACKSIZE", "OMP_STACKSIZE_ALL"};
  *bytes = 0;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const char *text = getenv(names[i]);
    size_t one;
    if (!text)
      continue;
    if (!read_stack_size(text, &one)) {
      snprintf(why, why_bytes,
               "the CPU step has one thread: %s=%.40s can't be read; set a size like 4M", names[i],
               text);
      return false;
    }
    *bytes = one > *bytes ? one : *bytes;
  }
  return true;
}

/* Whether the runtime can put a thread on every place that the environment names. */
static bool places_reachable(const cpu_set_t *allowed, size_t allowed_bytes) {
  const int places = omp_get_num_places();
  for (int i = 0; i < places; i++) {
    const int count = omp_get_place_num_procs(i);
    int *cpus = count > 0 ? malloc((size_t)count * sizeof *cpus) : NULL;
    bool reachable = false;
    if (cpus)
      omp_get_place_proc_ids(i, cpus);
    for (int k = 0; cpus && k < count; k++)
      reachable |= CPU_ISSET_S((size_t)cpus[k], allowed_bytes, allowed) != 0;
    free(cpus);
    if (!reachable)
      return false;
  }
  return true;
}

/* ---- threads that only live ---- */

struct crowd {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int here;
  bool dismissed;
};

struct guest {
  struct crowd *crowd;
  pthread_t thread;
  pid_t id;
};

static void *stay(void *argument) {
  struct guest *guest = argument;
  struct crowd *crowd = guest->crowd;
  pthread_mutex_lock(&crowd->lock);
  guest->id = (pid_t)syscall(SYS_gettid);
  crowd->here++;
  pthread_cond_broadcast(&crowd->changed);
  while (!crowd->dismissed)
    pthread_cond_wait(&crowd->changed, &crowd->lock);
  pthread_mutex_unlock(&crowd->lock);
  return NULL;
}

/* A joined thread may still count against the limits for a moment: until its number is free. */
static void wait_until_left(const struct guest *guest) {
  const struct timespec pause = {.tv_nsec = 50000};
  for (int i = 0; i < LEAVE_ATTEMPTS && !syscall(SYS_tgkill, getpid(), guest->id, 0); i++)
    nanosleep(&pause, NULL);
}

/* Of `wanted` threads more than this one, how many can be alive together. */
static int try_threads(int wanted, size_t stack_bytes) {
  struct crowd crowd = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, false};
  struct guest *guests = calloc((size_t)wanted, sizeof *guests);
  pthread_attr_t attributes;
  int made = 0;
  if (!guests || pthread_attr_init(&attributes)) {
    free(guests);
    return 0;
  }
  if (stack_bytes)
    (void)pthread_attr_setstacksize(&attributes, stack_bytes); /* too small: ignored there too */
  for (; made < wanted; made++) {
    guests[made].crowd = &crowd;
    if (pthread_create(&guests[made].thread, &attributes, stay, &guests[made]))
      break;
  }
  pthread_attr_destroy(&attributes);
  pthread_mutex_lock(&crowd.lock);
  while (crowd.here < made)
    pthread_cond_wait(&crowd.changed, &crowd.lock);
  crowd.dismissed = true;
  pthread_cond_broadcast(&crowd.changed);
  pthread_mutex_unlock(&crowd.lock);
  for (int i = 0; i < made; i++) {
    pthread_join(guests[i].thread, NULL);
    wait_until_left(&guests[i]);
  }
  free(guests);
  return made;
}

int threads_to_be_had(int wanted, const cpu_set_t *allowed, size_t allowed_bytes, char *why,
                      size_t why_bytes) {
  size_t stack_bytes;
  if (wanted == 1 || !stack_size(&stack_bytes, why, why_bytes))
    return 1;
  if (!places_reachable(allowed, allowed_bytes)) {
    snprintf(why, why_bytes,
             "the CPU step has one thread: GOMP_CPU_AFFINITY or OMP_PLACES names CPUs that this "
             "process may not use; unset it");
    return 1;
  }
  const int more = try_threads(wanted - 1, stack_bytes);
  if (more == wanted - 1)
    return wanted;
  snprintf(why, why_bytes,
           "the CPU step has %d of %d threads: the system let only %d be started; "
           "raise its limit of processes (ulimit -u, pids), lower OMP_STACKSIZE or OFFLOAD_THREADS",
           1 + more / 2, wanted, more);
  return 1 + more / 2;
}
