/* See cpus.h. Called by the shim's worker as it starts, under the enqueue lock, and by tests. */
#define _GNU_SOURCE
#include "cpus.h"
#include "groups.h"
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LEFT_TO_THE_PROGRAM = 2, CPUS_MOST = 65536 };

unsigned cpus_threads_of(unsigned allowed, unsigned present, unsigned quota, unsigned local_ranks) {
  const unsigned ranks = local_ranks ? local_ranks : 1;
  const bool own = (uint64_t)allowed * ranks <= present;
  unsigned cpus = own ? allowed : allowed / ranks;
  if (quota && quota / ranks < cpus)
    cpus = quota / ranks;
  return cpus > LEFT_TO_THE_PROGRAM ? cpus - LEFT_TO_THE_PROGRAM : 1;
}

/* As large a set as the kernel wants; 1 when it can't be had. */
static unsigned allowed_cpus(void) {
  for (int count = 1024; count <= CPUS_MOST; count *= 2) {
    const size_t bytes = CPU_ALLOC_SIZE((size_t)count);
    cpu_set_t *set = malloc(bytes); /* CPU_ALLOC is no function of musl's */
    if (!set)
      return 1;
    const int failure = sched_getaffinity(0, bytes, set) ? errno : 0;
    const int cpus = failure ? 1 : CPU_COUNT_S(bytes, set);
    free(set);
    if (failure != EINVAL) /* EINVAL: the kernel's set is larger */
      return (unsigned)cpus;
  }
  return 1;
}

/* CPUs of a list like "0-3,8"; 0 when it is none. */
static unsigned listed(const char *list) {
  unsigned cpus = 0;
  while (*list >= '0' && *list <= '9') {
    const char *dash = list + strspn(list, "0123456789");
    const uint64_t first = number_of(list), last = *dash == '-' ? number_of(dash + 1) : first;
    if (last < first || last >= CPUS_MOST)
      return 0;
    cpus += (unsigned)(last - first + 1);
    list += strcspn(list, ",");
    list += *list == ',';
  }
  return cpus;
}

/* What the groups leave: of a quota the tightest level's, of a set of CPUs the nearest level's. */
struct found {
  unsigned quota, present;
};

static void take_quota(struct found *found, uint64_t quota, uint64_t period) {
  if (quota == UNLIMITED || quota == 0 || period == UNLIMITED || period == 0)
    return;
  const uint64_t whole = quota / period;
  const unsigned cpus = whole < 1 ? 1 : whole < CPUS_MOST ? (unsigned)whole : CPUS_MOST;
  if (!found->quota || cpus < found->quota)
    found->quota = cpus;
}

static void take_list(struct found *found, const char *root, const char *directory,
                      const char *file) {
  if (found->present)
    return;
  const char *line = line_in(root, directory, file);
  found->present = line ? listed(line) : 0;
}

/* "max 100000" or "250000 100000" */
static void visit_v2(const char *root, const char *directory, void *argument) {
  take_list(argument, root, directory, "cpuset.cpus.effective");
  const char *line = line_in(root, directory, "cpu.max"), *period = line ? strchr(line, ' ') : NULL;
  if (period)
    take_quota(argument, number_of(line), number_of(period));
}

/* A quota of -1 is none. */
static void visit_v1(const char *root, const char *directory, void *argument) {
  take_quota(argument, number_in(root, directory, "cpu.cfs_quota_us"),
             number_in(root, directory, "cpu.cfs_period_us"));
}

static void visit_v1_set(const char *root, const char *directory, void *argument) {
  take_list(argument, root, directory, "cpuset.effective_cpus");
  take_list(argument, root, directory, "cpuset.cpus");
}

unsigned cpus_threads(unsigned local_ranks, const char *root) {
  static const struct group_kind v2 = {"cgroup2", NULL}, v1 = {"cgroup", "cpu"},
                                 v1_set = {"cgroup", "cpuset"};
  struct found found = {0, 0};
  if (!root)
    root = "";
  groups_begin();
  groups_visit(&v2, root, visit_v2, &found);
  groups_visit(&v1, root, visit_v1, &found);
  groups_visit(&v1_set, root, visit_v1_set, &found);
  groups_end();
  if (!found.present) {
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    found.present = online > 0 ? (unsigned)online : 1;
  }
  return cpus_threads_of(allowed_cpus(), found.present, found.quota, local_ranks);
}
