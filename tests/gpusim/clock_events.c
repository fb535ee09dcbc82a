/* The replay: a discrete-event simulation of the log on a machine. Pure arithmetic in nanoseconds;
   the same log gives the same times.

     host      one line of time: submissions at `call` each, waits until what they wait for is done,
               a full hardware queue (GPUSIM_DEPTH) until there is room
     queues    only the head is looked at: dependencies done, value reached, then it leaves
     engines   one operation at a time, in the order in which they left the queues; kernels of at
               most a sixteenth of the multiprocessors' number of blocks run beside the others

   How fast what runs goes is clock_rates.c's, what the CPU does between two words clock_work.c's. */
#include "tests/gpusim/clock_replay.h"
#include <stdlib.h>
#include <string.h>

enum { TINY_PART = 16 };

void clock_scaled(const struct replay *r, const double *from, double *into) {
  for (int i = 0; i < CLOCK_RESOURCES; i++)
    into[i] = from[i] * (i == CLOCK_TIME ? 1 : r->terms->scale);
}

enum clock_engine clock_engine_of(enum clock_kind kind) {
  static const enum clock_engine engines[CLOCK_KINDS] = {
#define KIND(name, words, engine) engine,
#include "clock_kinds.def"
#undef KIND
  };
  return engines[kind];
}

static enum clock_engine engine_of(const struct replay *r, enum clock_kind kind) {
  const enum clock_engine engine = clock_engine_of(kind);
  return engine == DOWN_ENGINE && r->profile->copy_engines < 2 ? UP_ENGINE : engine;
}

static void push(struct replay *r, struct list *list, size_t entry) {
  r->next[entry] = NONE;
  if (list->first == NONE)
    list->first = entry;
  else
    r->next[list->last] = entry;
  list->last = entry;
}

static void pop(struct replay *r, struct list *list) {
  list->first = r->next[list->first];
}

/* ---- starting and ending ---- */

static void end_operation(struct replay *r, size_t i) {
  const struct clock_entry *entry = &r->log->entries[i];
  r->done[i] = true;
  r->result->spans[i].ended = r->now;
  r->outstanding[entry->context]--;
  r->occupied[entry->device][entry->queue]--;
  clock_work_wrote(r, &entry->cost);
}

static void start_operation(struct replay *r, size_t i) {
  const struct clock_entry *entry = &r->log->entries[i];
  const struct clock_cost *cost = &entry->cost;
  double amount[CLOCK_RESOURCES], given;
  r->result->spans[i].started = r->now;
  clock_scaled(r, cost->amount, amount);
  const bool timed = cost->kind == CLOCK_KERNEL && clock_kernel_time(r->terms, cost->name, &given);
  if (timed) {
    memset(amount, 0, sizeof amount);
    amount[CLOCK_TIME] = given;
  } else if (cost->kind == CLOCK_KERNEL && !cost->measured) {
    r->result->unmeasured++;
  }
  struct running *run = clock_run(r, cost->kind, entry->device, amount, cost->pageable);
  run->entry = i;
  run->given = timed;
  if (timed) /* as many as there are */
    run->lead /= r->terms->starts;
}

static bool takes_time(const struct clock_cost *cost) {
  for (int i = 0; i < CLOCK_RESOURCES; i++)
    if (cost->amount[i] > 0)
      return true;
  return cost->kind == CLOCK_KERNEL;
}

static bool tiny(const struct replay *r, const struct clock_cost *cost) {
  return cost->kind == CLOCK_KERNEL &&
         (double)cost->blocks * r->terms->scale * TINY_PART <= (double)r->profile->sms;
}

static void dispatch(struct replay *r, size_t i) {
  const struct clock_entry *entry = &r->log->entries[i];
  enum clock_engine engine = engine_of(r, entry->cost.kind);
  if (!takes_time(&entry->cost)) {
    r->result->spans[i].started = r->now;
    end_operation(r, i);
  } else if (engine == NO_ENGINE || tiny(r, &entry->cost)) {
    start_operation(r, i);
  } else {
    push(r, &r->engines[entry->device][engine], i);
  }
}

static void end_running(struct replay *r, const struct running *run) {
  if (run->work != NONE) {
    struct work *work = &r->work[run->work];
    work->done = true;
    r->result->workers[run->work].span.ended = r->now;
    clock_work_wrote(r, &r->log->entries[work->entry].cost);
  } else if (run->kind >= CLOCK_HOST_WAIT) { /* the host's own line */
    r->result->spans[run->entry].ended = r->now;
    r->host_works = false;
    r->host_free = r->now;
    r->cursor++;
  } else {
    const struct clock_cost *cost = &r->log->entries[run->entry].cost;
    if (!tiny(r, cost))
      r->busy[run->device][engine_of(r, run->kind)] = false;
    end_operation(r, run->entry);
  }
}

/* ---- what can happen now ---- */

static void mark(struct replay *r, const char *name) {
  struct clock_result *result = r->result;
  result->marks =
      clock_room(result->marks, result->mark_count, &result->mark_capacity, sizeof *result->marks);
  result->marks[result->mark_count++] = (struct clock_mark){name, r->now, result->sums};
}

static bool host_steps(struct replay *r) {
  const struct clock_log *log = r->log;
  if (r->cursor >= log->count || r->host_works || r->host_free > r->now)
    return false;
  const size_t i = r->cursor;
  const struct clock_entry *entry = &log->entries[i];
  struct clock_span *span = &r->result->spans[i];
  if (span->submitted < 0)
    span->submitted = span->started = r->now;
  switch (entry->cost.kind) {
  case CLOCK_HOST_WAIT:
    if (!r->done[log->after[entry->first_after]])
      return false;
    break;
  case CLOCK_HOST_WAIT_CONTEXT:
    if (r->outstanding[entry->context] > 0)
      return false;
    break;
  case CLOCK_HOST_STAGE:
  case CLOCK_HOST_WORK: {
    double amount[CLOCK_RESOURCES];
    clock_scaled(r, entry->cost.amount, amount);
    clock_run(r, entry->cost.kind, entry->device, amount, entry->cost.pageable)->entry = i;
    r->host_works = true;
    return true;
  }
  case CLOCK_MARK:
    mark(r, entry->cost.name);
    break;
  case CLOCK_WORKER:
    break;
  default: {
    int *occupied = &r->occupied[entry->device][entry->queue];
    if (*occupied >= gpusim_settings.depth)
      return false;
    ++*occupied;
    r->outstanding[entry->context]++;
    span->submitted = r->now;
    span->started = -1;
    push(r, &r->queues[entry->device][entry->queue], i);
    r->host_free = r->now + r->profile->call * r->terms->starts * 1e3;
    r->cursor++;
    return true;
  }
  }
  span->ended = r->now;
  r->cursor++;
  return true;
}

static bool ordered(const struct replay *r, size_t i) {
  const struct clock_entry *entry = &r->log->entries[i];
  for (size_t k = 0; k < entry->afters; k++)
    if (!r->done[r->log->after[entry->first_after + k]])
      return false;
  return true;
}

static bool queue_step(struct replay *r, struct list *queue) {
  const size_t head = queue->first;
  if (head == NONE || !ordered(r, head))
    return false;
  struct clock_span *span = &r->result->spans[head];
  const bool wait = r->log->entries[head].cost.kind == CLOCK_VALUE_WAIT;
  if (span->started < 0)
    span->started = r->now; /* a wait is shown from where it begins to hold its queue up */
  if (wait && !clock_work_wait_over(r, head))
    return false;
  const double since = span->started;
  pop(r, queue);
  dispatch(r, head);
  if (wait)
    span->started = since;
  return true;
}

static bool queues_step(struct replay *r) {
  bool moved = false;
  for (int d = 0; d < gpusim_settings.devices; d++)
    for (int q = 0; q < gpusim_settings.queues; q++)
      moved = queue_step(r, &r->queues[d][q]) || moved;
  return moved;
}

static bool engines_step(struct replay *r) {
  bool moved = false;
  for (int d = 0; d < gpusim_settings.devices; d++)
    for (int e = 0; e < CLOCK_ENGINES; e++)
      if (!r->busy[d][e] && r->engines[d][e].first != NONE) {
        const size_t i = r->engines[d][e].first;
        pop(r, &r->engines[d][e]);
        r->busy[d][e] = true;
        start_operation(r, i);
        moved = true;
      }
  return moved;
}

/* Nothing moves: the program got on, so something that the log doesn't know released the first wait
 * at the head of a queue, or the first work. */
static bool assume(struct replay *r) {
  for (size_t i = 0; i < r->cursor; i++) {
    const struct clock_entry *entry = &r->log->entries[i];
    if (entry->cost.kind == CLOCK_VALUE_WAIT && !r->done[i] &&
        r->queues[entry->device][entry->queue].first == i && ordered(r, i)) {
      r->source[i] = WAIT_NOTHING;
      r->result->assumed++;
      return true;
    }
  }
  return clock_work_assume(r);
}

static void replay_begin(struct replay *r) {
  const struct clock_log *log = r->log;
  uint64_t contexts = 0;
  for (size_t i = 0; i < log->count; i++)
    if (log->entries[i].context >= contexts)
      contexts = log->entries[i].context + 1;
  r->outstanding = gpusim_new(contexts * sizeof *r->outstanding);
  r->next = gpusim_new(log->count * sizeof *r->next);
  r->done = gpusim_new(log->count * sizeof *r->done);
  r->source = gpusim_new(log->count * sizeof *r->source);
  r->source_work = gpusim_new(log->count * sizeof *r->source_work);
  r->result->spans = gpusim_new(log->count * sizeof *r->result->spans);
  for (size_t i = 0; i < log->count; i++)
    r->result->spans[i] = (struct clock_span){-1, -1, -1};
  for (int d = 0; d < GPUSIM_MAX_DEVICES; d++) {
    for (int q = 0; q < GPUSIM_MAX_QUEUES; q++)
      r->queues[d][q].first = NONE;
    for (int e = 0; e < CLOCK_ENGINES; e++)
      r->engines[d][e].first = NONE;
  }
}

void clock_replay(const struct clock_log *log, const struct clock_terms *terms,
                  struct clock_result *result) {
  *result = (struct clock_result){0};
  struct replay *r = gpusim_new(sizeof *r);
  *r = (struct replay){.log = log, .terms = terms, .profile = terms->profile, .result = result};
  replay_begin(r);
  clock_work_find(r);
  result->worker_count = r->work_count;
  for (;;) {
    bool moved = true;
    while (moved) {
      moved = host_steps(r);
      moved = queues_step(r) || moved;
      moved = engines_step(r) || moved;
      moved = clock_work_step(r) || moved;
    }
    const double ns = clock_until_next(r);
    if (ns >= 0)
      clock_pass(r, ns, end_running);
    else if (!assume(r))
      break;
  }
  result->total_ns = r->now > r->host_free ? r->now : r->host_free;
  for (size_t i = 0; i < r->word_count; i++)
    free(r->words[i].writers);
  free(r->words);
  free(r->outstanding);
  free(r->next);
  free(r->done);
  free(r->source);
  free(r->source_work);
  free(r->work);
  free(r->lines);
  free(r->running);
  free(r);
}

void clock_result_free(struct clock_result *result) {
  free(result->spans);
  free(result->workers);
  free(result->marks);
}
