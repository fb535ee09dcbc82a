/* The clock's log: every operation in the order of submission, what it must wait for, what it
   costs, and where host threads waited. Written under a lock of its own, the innermost: gpusim_mutex
   may be held when it is taken, and nothing else is taken under it.

   Dependencies are logged whether or not they are already met: that is a matter of real time.
   Entries are never freed: a log is a run. */
#include "tests/gpusim/clock.h"
#include "tests/gpusim/driver.h"
#include <stdlib.h>
#include <string.h>

struct stream_entries { /* entry of ticket t at [t - 1] */
  size_t *entries;
  size_t count, capacity;
};
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct clock_log log_of_run;
static struct stream_entries *streams; /* by stream id */
static size_t stream_capacity;
static __thread size_t running = CLOCK_NO_ENTRY;

static bool on(void) {
  return clock_terms() != NULL;
}

void *clock_room(void *items, size_t count, size_t *capacity, size_t item_bytes) {
  if (count < *capacity)
    return items;
  size_t more = *capacity > 0 ? *capacity * 2 : 16;
  while (more <= count)
    more *= 2;
  char *larger = realloc(items, more * item_bytes);
  if (larger == NULL)
    abort();
  memset(larger + *capacity * item_bytes, 0, (more - *capacity) * item_bytes);
  *capacity = more;
  return larger;
}

/* Lock held. */
static struct clock_entry *add(enum clock_kind kind, int device) {
  struct clock_log *log = &log_of_run;
  log->entries = clock_room(log->entries, log->count, &log->capacity, sizeof *log->entries);
  struct clock_entry *entry = &log->entries[log->count++];
  entry->cost.kind = kind;
  entry->device = device;
  entry->thread = gpusim_this_thread()->id;
  entry->first_after = log->after_count;
  return entry;
}

/* Lock held. */
static void add_after(struct clock_entry *entry, size_t before) {
  struct clock_log *log = &log_of_run;
  log->after = clock_room(log->after, log->after_count, &log->after_capacity, sizeof *log->after);
  log->after[log->after_count++] = before;
  entry->afters++;
}

/* Lock held. The entry of a stream's operation, or CLOCK_NO_ENTRY. */
static size_t entry_of(uint64_t stream, uint64_t ticket) {
  if (stream >= stream_capacity || ticket == 0 || ticket > streams[stream].count)
    return CLOCK_NO_ENTRY;
  return streams[stream].entries[ticket - 1];
}

size_t clock_log_operation(const struct CUstream_st *stream) {
  if (!on())
    return CLOCK_NO_ENTRY;
  pthread_mutex_lock(&mutex);
  struct clock_entry *entry = add(CLOCK_NOTHING, stream->context->device);
  size_t index = log_of_run.count - 1;
  entry->context = stream->context->id;
  entry->stream = stream->id;
  entry->queue = (unsigned)(stream->id % (uint64_t)gpusim_settings.queues);
  streams = clock_room(streams, stream->id, &stream_capacity, sizeof *streams);
  struct stream_entries *own = &streams[stream->id];
  own->entries = clock_room(own->entries, own->count, &own->capacity, sizeof *own->entries);
  own->entries[own->count++] = index;
  if (own->count > 1)
    add_after(entry, own->entries[own->count - 2]);
  pthread_mutex_unlock(&mutex);
  return index;
}

void clock_log_after(size_t entry, uint64_t stream, uint64_t ticket) {
  if (entry == CLOCK_NO_ENTRY)
    return;
  pthread_mutex_lock(&mutex);
  size_t before = entry_of(stream, ticket);
  if (before != CLOCK_NO_ENTRY)
    add_after(&log_of_run.entries[entry], before);
  pthread_mutex_unlock(&mutex);
}

void clock_log_cost(size_t entry, const struct operation_kind *kind, void *argument) {
  if (entry == CLOCK_NO_ENTRY || kind->cost == NULL)
    return;
  struct clock_cost cost = {.kind = CLOCK_NOTHING};
  kind->cost(argument, &cost);
  pthread_mutex_lock(&mutex);
  struct clock_cost *logged = &log_of_run.entries[entry].cost;
  if (logged->name != NULL)
    cost.name = logged->name;
  else if (cost.name != NULL && (cost.name = strdup(cost.name)) == NULL)
    abort();
  if (cost.kind == CLOCK_HOST_FUNCTION) /* what it declared while it ran stays */
    memcpy(cost.amount, logged->amount, sizeof cost.amount);
  *logged = cost;
  pthread_mutex_unlock(&mutex);
}

void clock_log_running(size_t entry) {
  running = entry;
}

void clock_log_wait(uint64_t stream, uint64_t ticket) {
  if (!on())
    return;
  pthread_mutex_lock(&mutex);
  size_t before = entry_of(stream, ticket);
  if (before != CLOCK_NO_ENTRY)
    add_after(add(CLOCK_HOST_WAIT, log_of_run.entries[before].device), before);
  pthread_mutex_unlock(&mutex);
}

void clock_log_wait_context(uint64_t context) {
  if (!on())
    return;
  pthread_mutex_lock(&mutex);
  add(CLOCK_HOST_WAIT_CONTEXT, 0)->context = context;
  pthread_mutex_unlock(&mutex);
}

void clock_log_stage(int device, uint64_t bytes) {
  if (!on())
    return;
  pthread_mutex_lock(&mutex);
  struct clock_entry *entry = add(CLOCK_HOST_STAGE, device);
  entry->cost.pageable = true;
  entry->cost.amount[CLOCK_DRAM] = (double)bytes;
  pthread_mutex_unlock(&mutex);
}

void clock_log_read(void (*visit)(const struct clock_log *)) {
  pthread_mutex_lock(&mutex);
  visit(&log_of_run);
  pthread_mutex_unlock(&mutex);
}

/* ---- what programs declare: gpusim.h ---- */

GPUSIM_EXPORT void gpusim_clock_mark(const char *name) {
  if (!on())
    return;
  char *copy = strdup(name);
  if (copy == NULL)
    abort();
  pthread_mutex_lock(&mutex);
  add(CLOCK_MARK, 0)->cost.name = copy;
  pthread_mutex_unlock(&mutex);
}

static void add_amounts(struct clock_cost *cost, const struct gpusim_host_work *work) {
  cost->amount[CLOCK_DRAM] += (double)work->dram_bytes;
  cost->amount[CLOCK_DRIVE_READ] += (double)work->drive_read_bytes;
  cost->amount[CLOCK_DRIVE_WRITE] += (double)work->drive_write_bytes;
  cost->amount[CLOCK_TIME] += (double)work->ns;
}

GPUSIM_EXPORT void gpusim_clock_host_work(const struct gpusim_host_work *work) {
  if (!on())
    return;
  CUcontext context = gpusim_current();
  const bool paired = work->after != NULL || work->until != NULL;
  char *name = work->what != NULL ? strdup(work->what) : NULL;
  pthread_mutex_lock(&mutex);
  if (running != CLOCK_NO_ENTRY) { /* in a host function: its own work */
    add_amounts(&log_of_run.entries[running].cost, work);
    free(name);
  } else {
    struct clock_cost *cost =
        &add(paired ? CLOCK_WORKER : CLOCK_HOST_WORK, context != NULL ? context->device : 0)->cost;
    cost->name = name;
    cost->word = (uintptr_t)work->after;
    cost->value = work->after_value;
    cost->until_word = (uintptr_t)work->until;
    cost->until_value = work->until_value;
    add_amounts(cost, work);
  }
  pthread_mutex_unlock(&mutex);
}
