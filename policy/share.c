/* See share.h. The room of the node, and of the control group that bounds this rank, is what can be had now and what live ranks have
   pinned. Where it isn't known whether pinned pages are charged to a limit, adding them could count room twice, so that what was found
   earlier, by this rank or by others that live, bounds it: unless more than that is free now.

   Claims are made in portions, and what isn't used of them is given back at the end of a step, so that a rank with little leaves room. */
#include "share.h"
#include "budget.h"
#include "leaf.h"
#include "node.h"
#include "ranks.h"
#include "registry.h"
#include "report.h"
#include <pthread.h>
#include <stdio.h>

static const uint64_t measured_bytes = (uint64_t)256 << 20; /* pinned between two measurements */
static const uint64_t portion_bytes = (uint64_t)64 << 20;   /* claimed at once */
static const uint64_t no_bound = UINT64_MAX;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* protects what follows */
static struct {
  bool measured, told, alone_told;
  uint64_t until_next;      /* bytes until it is measured again */
  uint64_t state, staging;  /* bytes pinned, or about to be */
  uint64_t claimed;         /* for state; no less than `state` */
  struct budget_rooms room; /* of all ranks */
  struct budget budget;     /* of this one, with what it has pinned */
  uint64_t drives;
  unsigned threads;
} own;

static uint64_t less(uint64_t a, uint64_t b) {
  return a > b ? a - b : 0;
}

/* One limit's room for all ranks: free now, pinned by them, and what was found before (0: nothing). */
static uint64_t whole_room(uint64_t now, uint64_t pinned, uint64_t before, uint64_t others) {
  if (now == no_bound)
    return now;
  uint64_t room = now > no_bound - 1 - pinned ? no_bound - 1 : now + pinned;
  if (before && before < room)
    room = before;
  if (others && others < room)
    room = others;
  return room > now ? room : now;
}

/* Ranks that part the group's room: those of the job that aren't known to be bounded by another one. */
static unsigned group_ranks(const struct registry_sums *sums, unsigned ranks) {
  const unsigned elsewhere = sums->job_live - sums->job_group_live;
  return ranks > elsewhere ? ranks - elsewhere : 1;
}

/* Under the mutex. */
static void measure(const struct config *config) {
  struct registry_sums
      sums; /* before the rooms: what is pinned between the two is then counted as used, not twice as free */
  struct budget_rooms now;
  registry_sum(&sums);
  if (!sums.live)
    sums.machine.pinned_bytes = sums.group.pinned_bytes = own.state + own.staging;
  budget_rooms(BUDGET_DRIVER_PAGES, config->sysroot, &now);
  const struct budget_rooms before = own.measured ? own.room : (struct budget_rooms){0};
  if (!own.measured) {
    own.room.group = now.group;
    registry_found(&(struct registry_room){0}, now.group);
    registry_sum(&sums); /* now that it is known whose group is ours */
    if (!sums.live)
      sums.machine.pinned_bytes = sums.group.pinned_bytes = own.state + own.staging;
  }
  own.room.machine_bytes = whole_room(now.machine_bytes, sums.machine.pinned_bytes,
                                      before.machine_bytes, sums.machine.room_bytes);
  own.room.group_bytes = whole_room(now.group_bytes, sums.group.pinned_bytes, before.group_bytes,
                                    sums.group.room_bytes);
  own.room.locked_bytes = now.locked_bytes == no_bound ? no_bound : now.locked_bytes + own.state;
  if (before.locked_bytes && before.locked_bytes < own.room.locked_bytes)
    own.room.locked_bytes = before.locked_bytes;
  registry_found(
      &(struct registry_room){
          own.room.machine_bytes == no_bound ? 0 : own.room.machine_bytes,
          own.room.group_bytes == no_bound ? 0 : own.room.group_bytes,
      },
      own.room.group);
  const unsigned ranks = config->ranks.local_ranks ? config->ranks.local_ranks : 1;
  own.budget = budget_of(config, &own.room, ranks, group_ranks(&sums, ranks));
  own.measured = true;
  own.until_next = measured_bytes;
  report_budget(own.budget.bytes, own.budget.limited_by);
}

static void measure_when_due(const struct config *config, uint64_t bytes) {
  if (!own.measured || own.until_next < bytes || !own.until_next)
    measure(config);
}

static enum registry_outcome claim(uint64_t state, uint64_t staging,
                                   const struct registry_bounds *bounds, uint64_t *left) {
  const struct registry_claim claim = {.host_bytes = state,
                                       .pinned_bytes = own.state + own.staging,
                                       .staging_bytes = staging,
                                       .drive_bytes = own.drives,
                                       .threads = own.threads};
  const enum registry_outcome outcome = registry_claim(&claim, bounds, left);
  if (outcome == REGISTRY_NONE && registry_joined() && !own.alone_told) {
    own.alone_told = true;
    report_reason("a process that shares this node's host memory doesn't answer (is it stopped?): "
                  "this one goes by its "
                  "launcher's share until it does");
  }
  return outcome;
}

/* Under the mutex. Of the node's room state may have the part that the settings leave it, staging the rest. */
static struct registry_bounds bounds_of(const struct config *config) {
  return (struct registry_bounds){
      .machine = {budget_bound(config, own.room.machine_bytes), own.room.machine_bytes},
      .group = {budget_bound(config, own.room.group_bytes), own.room.group_bytes},
  };
}

static const struct registry_bounds unbounded = {{UINT64_MAX, UINT64_MAX},
                                                 {UINT64_MAX, UINT64_MAX}};

/* Under the mutex. Claims at least `state` for state, and more in advance if that can be had. */
static bool claim_state(const struct config *config, uint64_t state, bool beyond) {
  const struct registry_bounds bounds = beyond ? unbounded : bounds_of(config);
  uint64_t most = own.budget.bytes, left = 0;
  if (most > state + portion_bytes)
    most = state + portion_bytes;
  if (most < state)
    most = state;
  enum registry_outcome outcome = claim(most, own.staging, &bounds, &left);
  if (outcome == REGISTRY_FULL && most > state) {
    most = state;
    outcome = claim(most, own.staging, &bounds, &left);
  }
  if (outcome != REGISTRY_FULL)
    own.claimed = most;
  return outcome != REGISTRY_FULL;
}

static uint64_t smaller(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

/* Under the mutex. What others leave to this rank, for state or for staging, beside what it has pinned. */
static uint64_t left_by_others(const struct config *config, bool staging) {
  const struct registry_bounds bounds = bounds_of(config);
  const struct registry_bound *bound[] = {&bounds.machine, &bounds.group};
  struct registry_sums sums;
  registry_sum(&sums);
  const struct registry_total *total[] = {&sums.machine, &sums.group};
  uint64_t left = no_bound;
  for (unsigned i = 0; sums.live && i < 2; i++) {
    const uint64_t state = less(total[i]->state_bytes, sums.own.host_bytes) + own.state,
                   all = less(total[i]->all_bytes, sums.own.host_bytes + sums.own.staging_bytes) +
                         own.state + own.staging;
    if (bound[i]->all_bytes == no_bound)
      continue;
    left = smaller(left, less(bound[i]->all_bytes, all));
    if (!staging)
      left = smaller(left, less(bound[i]->state_bytes, state));
  }
  return left;
}

uint64_t share_room(const struct config *config) {
  node_join(config);
  pthread_mutex_lock(&mutex);
  measure_when_due(config, 0);
  const uint64_t mine = less(own.budget.bytes, own.state), left = left_by_others(config, false);
  pthread_mutex_unlock(&mutex);
  return smaller(mine, left);
}

uint64_t share_limit(const struct config *config) {
  node_join(config);
  pthread_mutex_lock(&mutex);
  measure_when_due(config, 0);
  const uint64_t limit = own.budget.bytes;
  pthread_mutex_unlock(&mutex);
  return limit;
}

bool share_take(const struct config *config, uint64_t bytes, bool beyond, const char **news) {
  node_join(config);
  pthread_mutex_lock(&mutex);
  measure_when_due(config, bytes);
  const bool mine = beyond || less(own.budget.bytes, own.state) >= bytes;
  const bool room =
      mine && (own.state + bytes <= own.claimed || claim_state(config, own.state + bytes, beyond));
  if (room) {
    own.state += bytes;
    own.until_next -= smaller(bytes, own.until_next);
    registry_pinned(own.state + own.staging);
  }
  *news = NULL;
  if (!room && !own.told) {
    own.told = true;
    *news = mine ? "other processes of this node have claimed the rest" : own.budget.limited_by;
  }
  pthread_mutex_unlock(&mutex);
  return room;
}

void share_give(uint64_t bytes) {
  pthread_mutex_lock(&mutex);
  own.state = less(own.state, bytes);
  registry_pinned(own.state + own.staging);
  pthread_mutex_unlock(&mutex);
}

bool share_stage(const struct config *config, uint64_t bytes, char *why, size_t why_bytes) {
  uint64_t left = 0;
  node_join(config);
  pthread_mutex_lock(&mutex);
  measure_when_due(config, 0);
  const struct registry_bounds bounds = bounds_of(config);
  enum registry_outcome outcome = claim(own.claimed, own.staging + bytes, &bounds, &left);
  if (outcome == REGISTRY_FULL &&
      own.claimed > own.state) { /* what was claimed in advance makes room */
    own.claimed = own.state;
    outcome = claim(own.claimed, own.staging + bytes, &bounds, &left);
  }
  const bool staged = outcome != REGISTRY_FULL;
  if (staged) {
    own.staging += bytes;
    registry_pinned(own.state + own.staging);
  } else {
    char wanted[REPORT_SIZE_BYTES], rest[REPORT_SIZE_BYTES];
    snprintf(why, why_bytes,
             "the host has no %s for staging beside what the processes of this node have "
             "claimed (%s is left)",
             report_size_text(bytes, wanted), report_size_text(left, rest));
  }
  pthread_mutex_unlock(&mutex);
  return staged;
}

/* Under the mutex: what is no more than before is always granted. */
static void publish(void) {
  uint64_t left;
  (void)claim(own.claimed, own.staging, &unbounded, &left);
}

void share_unstage(uint64_t bytes) {
  pthread_mutex_lock(&mutex);
  own.staging = less(own.staging, bytes);
  publish();
  pthread_mutex_unlock(&mutex);
}

uint64_t share_staging_room(const struct config *config) {
  node_join(config);
  pthread_mutex_lock(&mutex);
  measure_when_due(config, 0);
  const uint64_t left = left_by_others(config, true);
  pthread_mutex_unlock(&mutex);
  return left;
}

void share_threads(unsigned threads) {
  pthread_mutex_lock(&mutex);
  own.threads = threads;
  publish();
  pthread_mutex_unlock(&mutex);
}

void share_drives(uint64_t bytes) {
  pthread_mutex_lock(&mutex);
  const bool news = own.drives != bytes;
  own.drives = bytes;
  if (news)
    publish();
  pthread_mutex_unlock(&mutex);
}

void share_settle(void) {
  pthread_mutex_lock(&mutex);
  if (own.claimed > own.state) {
    own.claimed = own.state;
    publish();
  }
  pthread_mutex_unlock(&mutex);
}

void share_figures(struct share_figures *figures) {
  *figures = (struct share_figures){0};
  if (!leaf_lock(&mutex))
    return;
  *figures = (struct share_figures){
      .measured = own.measured,
      .state_bytes = own.state,
      .staging_bytes = own.staging,
      .limit_bytes = own.budget.bytes,
      .machine_bytes = own.room.machine_bytes,
      .group_bytes = own.room.group_bytes,
      .threads = own.threads,
  };
  pthread_mutex_unlock(&mutex);
}

void share_forked(void) {
  mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
