/* Threads of the CPU step: affinity, quotas of control groups from recorded trees (tests/data/<tree>),
   shares of the node's ranks. */
#define _GNU_SOURCE
#include "policy/cpus.h"
#include "tests/lib/tap.h"
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void test_rule(void) {
  static const struct {
    unsigned allowed, present, quota, ranks, threads;
    const char *sentence;
  } cases[] = {
      {64, 64, 0, 1, 62, "two CPUs are left to the program"},
      {3, 64, 0, 1, 1, "of three CPUs one is the step's"},
      {2, 2, 0, 1, 1, "of two CPUs one is the step's all the same"},
      {1, 1, 0, 1, 1, "one CPU gives one thread"},
      {64, 64, 16, 1, 14, "a quota of 16 CPUs bounds 64 that may be used"},
      {8, 64, 16, 1, 6, "a quota above what may be used bounds nothing"},
      {64, 64, 1, 1, 1, "a quota of one CPU gives one thread"},
      {64, 64, 0, 8, 6, "eight ranks that may use all 64 CPUs have eight each"},
      {8, 64, 0, 8, 6, "eight ranks with eight CPUs of their own keep them"},
      {16, 64, 0, 8, 1, "ranks whose sixteen CPUs can't all be their own share"},
      {64, 64, 32, 8, 2, "a quota is shared by the ranks"},
      {4, 64, 0, 128, 1, "more ranks than CPUs have a thread each"},
      {64, 64, 0, 0, 62, "no number of ranks is one rank"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const unsigned threads =
        cpus_threads_of(cases[i].allowed, cases[i].present, cases[i].quota, cases[i].ranks);
    if (!tap_ok(threads == cases[i].threads, "%s", cases[i].sentence))
      printf("# %u instead of %u\n", threads, cases[i].threads);
  }
}

/* Of this thread, as the tree lets it be: no tree names fewer CPUs than one. */
static void test_groups(unsigned allowed) {
  static const struct {
    const char *tree;
    unsigned present, quota;
    const char *sentence;
  } trees[] = {
      {"cgroup_v2_nested", 16, 6,
       "v2: the tightest quota of three nested groups counts, whole CPUs"},
      {"cgroup_v1", 0, 2, "v1 in a container: the quota of its own group, a half CPU left out"},
      {"cgroup_v2_namespace", 0, 1, "a quota of half a CPU is one"},
      {"cgroup_hybrid", 0, 0, "without files for CPUs nothing bounds the affinity"},
  };
  for (size_t i = 0; i < sizeof trees / sizeof *trees; i++) {
    char root[512];
    snprintf(root, sizeof root, "tests/data/%s", trees[i].tree);
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    const unsigned present = trees[i].present ? trees[i].present : (unsigned)online;
    bool same = true;
    for (unsigned ranks = 1; ranks <= 3; ranks++)
      same = same &&
             cpus_threads(ranks, root) == cpus_threads_of(allowed, present, trees[i].quota, ranks);
    tap_ok(same, "%s", trees[i].sentence);
  }
}

/* More CPUs than this machine has: what the affinity call says is made up. */
static unsigned pretended;

int sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set) {
  (void)pid;
  if (bytes * 8 < pretended)
    return errno = EINVAL, -1;
  CPU_ZERO_S(bytes, set);
  for (size_t i = 0; i < pretended; i++)
    CPU_SET_S(i, bytes, set);
  return 0;
}

int main(void) {
  test_rule();
  static const unsigned counts[] = {1, 5, 48, 3000};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
    pretended = counts[i];
    printf("# %u CPUs allowed\n", pretended);
    test_groups(pretended);
  }
  pretended = 12;
  setenv("OMP_NUM_THREADS", "3", 1);
  setenv("OMP_THREAD_LIMIT", "3", 1);
  const unsigned before = cpus_threads(1, "tests/data/cgroup_hybrid");
  pretended = 7;
  tap_ok(before == 10 && cpus_threads(1, "tests/data/cgroup_hybrid") == 5,
         "a changed affinity counts from the next worker on, and OMP_NUM_THREADS never");
  return tap_done();
}
