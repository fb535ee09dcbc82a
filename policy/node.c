/* See node.h. One mutex guards what this rank knows of itself and of the others; under it those of share.c, registry.c and the report
   are taken. */
#define _GNU_SOURCE
#include "node.h"
#include "../nvme/clock.h"
#include "budget.h"
#include "cpus.h"
#include "groups.h"
#include "leaf.h"
#include "replicas.h"
#include "report.h"
#include "report_memory.h"
#include "report_node.h"
#include "report_policy.h"
#include "share.h"
#include "words.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool asked;
static _Atomic unsigned said; /* ranks that the launcher named */
static _Atomic uint64_t
    counted; /* live ranks, and the changes they were counted at, in the upper half */

static struct report_node seen;                       /* under the mutex */
static struct registry_entry present[REGISTRY_SLOTS]; /* the same; large */
static struct {
  struct node_step step;
  uint64_t count, shown_ns,
      elements[3]; /* steps; when it was shown; totals by cpu, stream, direct then */
  char way[16];
  bool replicas_told, switched;
  unsigned declining_told; /* ranks */
  struct {
    int32_t pid;
    uint64_t started_ns;
  } declining[REPORT_NODE_RANKS];
} own;

static uint64_t job_of(const struct config *config) {
  return config->ranks.job ? config->ranks.job : (uint64_t)getsid(0);
}

static void join(const struct config *config) {
  struct registry_entry entry = {
      .device = -1,
      .local_rank = config->ranks.local_rank < 0 ? 0 : (uint32_t)config->ranks.local_rank,
      .local_ranks = config->ranks.local_ranks,
      .job = job_of(config)};
  char problem[sizeof seen.problem] = "";
  snprintf(entry.program, sizeof entry.program, "%s", program_invocation_short_name);
  snprintf(entry.state.mode, sizeof entry.state.mode, "%s", config_mode_name(config->mode));
  registry_root(config->sysroot);
  atomic_store_explicit(&said, config->ranks.local_ranks, memory_order_relaxed);
  seen.registered = registry_join(&entry, problem, sizeof problem);
  if (!seen.registered)
    report_reason("this process knows of no others that share host memory, cores and drives but "
                  "those that its launcher "
                  "names (%u on this node): there is no registry of ranks (%s)",
                  config->local_ranks, problem);
  memcpy(seen.problem, problem, sizeof problem);
}

void node_join(const struct config *config) {
  if (atomic_load_explicit(&asked, memory_order_acquire))
    return;
  pthread_mutex_lock(&mutex);
  if (!atomic_load_explicit(&asked, memory_order_relaxed)) {
    join(config);
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

/* ---- what it shows ---- */

static uint64_t total(const _Atomic uint64_t *counter) {
  return atomic_load_explicit(counter, memory_order_relaxed);
}

/* Under the mutex. How steps went since the last look. */
static void note_way(void) {
  const struct report_totals *t = &report.totals;
  const uint64_t now[3] = {total(&t->elements_cpu), total(&t->elements_stream),
                           total(&t->elements_direct)};
  static const char *const names[3] = {"cpu", "stream", "direct"};
  char way[sizeof own.way] = "";
  size_t used = 0;
  for (unsigned i = 0; i < 3; i++) {
    if (now[i] != own.elements[i] && used < sizeof way)
      used += (size_t)snprintf(way + used, sizeof way - used, "%s%s", used ? "+" : "", names[i]);
    own.elements[i] = now[i];
  }
  if (used >= sizeof way)
    snprintf(way, sizeof way, "cpu+stream+dir.");
  if (*way)
    memcpy(own.way, way, sizeof way);
}

/* Where a sentence of more than `most` bytes ends well: behind a clause of its second half, else behind a word. */
static size_t cut_of(const char *sentence, size_t most) {
  size_t end = most;
  for (size_t i = most; i > most / 2; i--)
    if (strchr(",;", sentence[i]) && sentence[i + 1] == ' ')
      return i;
  while (end && sentence[end] != ' ')
    end--;
  return end;
}

/* Why nothing, or not all, moves: the last reason that speaks of it, else the last one. */
static void note_why(char *note, size_t bytes, const struct registry_state *state) {
  const unsigned count = atomic_load_explicit(&report.reason_count, memory_order_acquire);
  const bool nothing = !state->moved_bytes && !state->drive_bytes;
  const char *why = "";
  note[0] = 0;
  if (state->moved_bytes + state->drive_bytes >= state->state_bytes)
    return;
  for (unsigned i = 0; i < count; i++)
    if (strstr(report.reasons[i], "no state moves") || strstr(report.reasons[i], "on the device"))
      why = report.reasons[i];
  if (!*why && nothing && count)
    why = report.reasons[count - 1];
  if ((size_t)snprintf(note, bytes, "%s", why) < bytes)
    return;
  const size_t cut = cut_of(note, bytes - sizeof "..."); /* and seen to be */
  snprintf(note + cut, bytes - cut, "...");
}

/* Under the mutex. */
static void show(const struct config *config) {
  const struct report_totals *t = &report.totals;
  struct share_figures share;
  struct registry_state state = {
      .steps = own.count,
      .moved_bytes = total(&t->moved_bytes),
      .drive_bytes = total(&t->drive_bytes),
      .state_bytes = own.step.state_bytes,
      .parameter_bytes = own.step.parameter_bytes,
      .parameters_key = own.step.parameters_key,
      .reduces = own.step.reduces,
  };
  memcpy(state.prints, own.step.prints, sizeof state.prints);
  struct report_step last;
  if (report_step_last(&last)) {
    state.step_ns = last.step_ns;
    state.exposed_ns = report_step_exposed_ns(&last);
    state.foretold_ns = report_step_foretold_ns(&last);
    state.link_down_bytes = last.link_down_bytes;
    state.link_up_bytes = last.link_up_bytes;
  }
  (void)report_memory_device_now(&state.device_used_bytes, &state.device_total_bytes);
  share_figures(&share);
  state.budget_bytes = share.limit_bytes;
  note_way();
  const bool moved = state.moved_bytes || state.drive_bytes;
  snprintf(state.way, sizeof state.way, "%s", moved && *own.way ? own.way : "none");
  snprintf(state.mode, sizeof state.mode, "%s",
           own.switched ? "off" : config_mode_name(config->mode));
  if (own.switched)
    snprintf(state.note, sizeof state.note,
             "switched off by a signal: all state is home, steps are no longer seen");
  else
    note_why(state.note, sizeof state.note, &state);
  registry_show(&state);
}

/* ---- what it sees ---- */

static bool same(const struct registry_entry *a, const struct registry_entry *b) {
  return a->pid == b->pid && a->started_ns == b->started_ns;
}

/* Under the mutex. Those that have left are kept as they were seen last. */
static void merge(size_t count) {
  for (unsigned k = 0; k < seen.count; k++)
    seen.live[k] = false;
  for (size_t i = 0; i < count; i++) {
    unsigned k = 0;
    while (k < seen.count && !same(&seen.ranks[k], &present[i]))
      k++;
    if (k == REPORT_NODE_RANKS)
      continue;
    seen.count += k == seen.count;
    seen.ranks[k] = present[i];
    seen.live[k] = true;
  }
}

/* Under the mutex. The rank that speaks for its job: the launcher's first, else who came first. */
static bool leads(const struct config *config) {
  if (config->ranks.local_ranks)
    return config->ranks.local_rank <= 0;
  for (unsigned k = 1; k < seen.count; k++)
    if (seen.live[k] && seen.ranks[k].job == seen.ranks[0].job &&
        seen.ranks[k].started_ns < seen.ranks[0].started_ns)
      return false;
  return true;
}

static bool told_already(const struct registry_entry *rank) {
  for (unsigned i = 0; i < own.declining_told; i++)
    if (own.declining[i].pid == rank->pid && own.declining[i].started_ns == rank->started_ns)
      return true;
  return false;
}

/* Under the mutex. */
static void say_declining(void) {
  for (unsigned k = 1; k < seen.count; k++) {
    const struct registry_entry *rank = &seen.ranks[k];
    if (rank->job != seen.ranks[0].job || !report_node_declines(rank) || told_already(rank) ||
        own.declining_told == REPORT_NODE_RANKS)
      continue;
    own.declining[own.declining_told].pid = rank->pid;
    own.declining[own.declining_told++].started_ns = rank->started_ns;
    if (rank->local_ranks)
      report_notice("rank %u of this node (process %d) steps and moves nothing: %s",
                    rank->local_rank, (int)rank->pid,
                    *rank->state.note ? rank->state.note : "it gives no reason");
    else
      report_notice("process %d, which shares this node, steps and moves nothing: %s",
                    (int)rank->pid, *rank->state.note ? rank->state.note : "it gives no reason");
  }
}

/* Under the mutex. Only where a launcher tells of a job. */
static void count_replicas(const struct config *config) {
  const struct registry_entry *first = &seen.ranks[0];
  unsigned replicas = 1;
  for (unsigned k = 1; k < seen.count; k++)
    replicas += seen.live[k] && replicas_same(first, &seen.ranks[k]);
  if (config->ranks.job && replicas > 1 && replicas > seen.replicas) {
    seen.replicas = replicas;
    seen.replicated_bytes = first->state.state_bytes;
  }
}

static void say_replicas(void) {
  char each[WORDS_BYTES], all[WORDS_BYTES];
  if (own.replicas_told || seen.replicas < 2)
    return;
  own.replicas_told = true;
  words_bytes((double)seen.replicated_bytes, each);
  words_bytes((double)seen.replicas * (double)seen.replicated_bytes, all);
  report_notice("%u ranks keep the same state, %s each, %s of this node in all; ZeRO-1 "
                "(ZeroRedundancyOptimizer, DeepSpeed stage 1) or FSDP keeps it once",
                seen.replicas, each, all);
}

/* Under the mutex. */
static void look(const struct config *config) {
  struct registry_sums sums;
  struct share_figures share;
  const size_t count = registry_list(present, REGISTRY_SLOTS);
  registry_sum(&sums);
  share_figures(&share);
  seen.registered = sums.live != 0;
  if (seen.registered)
    merge(count);
  unsigned of_job = 0;
  for (unsigned k = 0; k < seen.count; k++)
    of_job += seen.ranks[k].job == seen.ranks[0].job;
  seen.sharers = ranks_sharers();
  seen.missing = seen.registered && config->ranks.local_ranks > of_job
                     ? config->ranks.local_ranks - of_job
                     : 0;
  seen.machine_bytes = share.measured ? budget_bound(config, share.machine_bytes) : UINT64_MAX;
  seen.group_bytes = share.measured ? budget_bound(config, share.group_bytes) : UINT64_MAX;
  seen.claimed_bytes = sums.machine.state_bytes;
  seen.staging_bytes = sums.machine.all_bytes - sums.machine.state_bytes;
  seen.threads = sums.threads;
  count_replicas(config);
  if (leads(config)) {
    say_declining();
    say_replicas();
  }
  report_node(&seen);
}

/* Under the mutex. What was claimed in advance, or has come home, goes back to the others. */
static void settle(unsigned threads) {
  share_settle();
  share_drives(total(&report.totals.drive_bytes));
  share_threads(threads);
}

bool node_step(const struct config *config, const struct node_step *step) {
  enum { FIRST_STEPS = 8, INTERVAL_NS = 100000000 };
  const uint64_t now = clock_now_ns();
  node_join(config);
  pthread_mutex_lock(&mutex);
  own.count++;
  const bool due = own.count <= FIRST_STEPS || now - own.shown_ns >= INTERVAL_NS;
  if (due) {
    own.step = *step;
    own.shown_ns = now;
    settle(step->threads);
    show(config);
    look(config);
  }
  pthread_mutex_unlock(&mutex);
  return due;
}

void node_switched(const struct config *config) {
  if (!node_asked())
    return;
  pthread_mutex_lock(&mutex);
  own.switched = true;
  settle(0);
  show(config);
  look(config);
  pthread_mutex_unlock(&mutex);
}

void node_finish(const struct config *config) {
  if (!node_asked() || !leaf_lock(&mutex))
    return;
  look(
      config); /* what it shows stays as of its last step: by now the program has freed its state */
  if (seen.count && seen.ranks[0].pid == getpid() &&
      total(&report.totals.steps) > seen.ranks[0].state.steps) {
    seen.ranks[0].state.steps =
        total(&report.totals.steps); /* it shows a step when the next begins */
    report_node(&seen);
  }
  pthread_mutex_unlock(&mutex);
}

unsigned node_replicas(uint64_t *bytes) {
  pthread_mutex_lock(&mutex);
  *bytes = seen.replicated_bytes;
  const unsigned replicas = seen.replicas;
  pthread_mutex_unlock(&mutex);
  return replicas > 1 ? replicas : 1;
}

/* ---- cores, ends ---- */

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
