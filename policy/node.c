/* See node.h. */
#define _GNU_SOURCE
#include "node.h"
#include "cpus.h"
#include "groups.h"
#include "report.h"
#include "share.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool asked;
static _Atomic unsigned said; /* ranks that the launcher named */
static _Atomic uint64_t
    counted; /* live ranks, and the changes they were counted at, in the upper half */

static uint64_t job_of(const struct config *config) {
  return config->ranks.job ? config->ranks.job : (uint64_t)getsid(0);
}

void node_join(const struct config *config) {
  if (atomic_load_explicit(&asked, memory_order_acquire))
    return;
  pthread_mutex_lock(&mutex);
  if (!atomic_load_explicit(&asked, memory_order_relaxed)) {
    struct registry_entry entry = {
        .device = -1,
        .local_rank = config->ranks.local_rank < 0 ? 0 : (uint32_t)config->ranks.local_rank,
        .local_ranks = config->ranks.local_ranks,
        .job = job_of(config)};
    char problem[640] = "";
    snprintf(entry.program, sizeof entry.program, "%s", program_invocation_short_name);
    registry_root(config->sysroot);
    atomic_store_explicit(&said, config->ranks.local_ranks, memory_order_relaxed);
    if (!registry_join(&entry, problem, sizeof problem))
      report_reason("this process doesn't know of others that share host memory, cores and drives, "
                    "but for what its launcher says (%u local ranks): there is no registry (%s)",
                    config->local_ranks, problem);
    atomic_store_explicit(&asked, true, memory_order_release);
  }
  pthread_mutex_unlock(&mutex);
}

bool node_asked(void) {
  return atomic_load_explicit(&asked, memory_order_relaxed);
}

unsigned ranks_sharers(void) {
  const unsigned named = atomic_load_explicit(&said, memory_order_relaxed);
  const uint32_t changes = registry_changes();
  uint64_t known = atomic_load_explicit(&counted, memory_order_relaxed);
  if (registry_joined() && (!known || known >> 32 != changes)) {
    struct registry_sums sums;
    registry_sum(&sums);
    known = (uint64_t)changes << 32 | sums.live;
    atomic_store_explicit(&counted, known, memory_order_relaxed);
  }
  const unsigned live = (unsigned)(known & UINT32_MAX), most = live > named ? live : named;
  return most ? most : 1;
}

unsigned node_threads(const struct config *config, unsigned workers) {
  const unsigned sharers = ranks_sharers(),
                 ranks = sharers > config->local_ranks ? sharers : config->local_ranks,
                 threads = cpus_threads(ranks, config->sysroot) / (workers ? workers : 1);
  return threads ? threads : 1;
}

void node_forked(void) {
  registry_forked();
  share_forked();
  groups_forked();
  mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

void node_leave(void) {
  registry_leave();
}
