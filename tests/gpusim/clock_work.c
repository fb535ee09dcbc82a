/* Words that streams and host threads write, and the work of host threads between them: declared by
   the program (gpusim_clock_host_work), or inferred.

   A value wait is released by a write that the log has. When it has none, the CPU wrote the word:
   that is taken for the end of work that began with a value write of the device before the wait, on
   the bytes that this write's stream had copied down for it (GPUSIM_HOST_WORK): the write of that
   value to a word in the same 64 bytes, where programs keep the words of a slot, else the device's
   last. Work of one host thread is done in order; a device has one inferred thread. */
#include "tests/gpusim/clock_replay.h"
#include <stdlib.h>

static int by_address(const void *a, const void *b) {
  uintptr_t x = ((const struct word *)a)->address, y = ((const struct word *)b)->address;
  return x < y ? -1 : x > y;
}

static struct word *word_at(const struct replay *r, uintptr_t address) {
  const struct word key = {.address = address};
  return r->word_count == 0 ? NULL
                            : bsearch(&key, r->words, r->word_count, sizeof *r->words, by_address);
}

/* The address and value that an entry writes; false when it writes none. */
static bool writes(const struct clock_cost *cost, uintptr_t *address, uint64_t *value) {
  const bool worker = cost->kind == CLOCK_WORKER;
  *address = worker ? cost->until_word : cost->word;
  *value = worker ? cost->until_value : cost->value;
  return *address != 0 && (worker || cost->kind == CLOCK_VALUE_WRITE);
}

static void find_words(struct replay *r) {
  uintptr_t address;
  uint64_t value;
  size_t count = 0;
  r->words = gpusim_new(r->log->count * sizeof *r->words);
  for (size_t i = 0; i < r->log->count; i++)
    if (writes(&r->log->entries[i].cost, &address, &value))
      r->words[count++].address = address;
  qsort(r->words, count, sizeof *r->words, by_address);
  for (size_t i = 0; i < count; i++)
    if (r->word_count == 0 || r->words[r->word_count - 1].address != r->words[i].address)
      r->words[r->word_count++] = r->words[i];
  for (size_t i = 0; i < r->log->count; i++)
    if (writes(&r->log->entries[i].cost, &address, &value)) {
      struct word *word = word_at(r, address);
      word->writers =
          clock_room(word->writers, word->writer_count, &word->writer_capacity, sizeof(size_t));
      word->writers[word->writer_count++] = i;
    }
}

static bool satisfied(const struct clock_cost *wait, uint64_t value) {
  return gpusim_value_reached(value, wait->value, wait->relation, wait->wide);
}

static bool explained(const struct replay *r, const struct clock_cost *wait) {
  const struct word *word = word_at(r, wait->word);
  for (size_t i = 0; word != NULL && i < word->writer_count; i++) {
    uintptr_t address;
    uint64_t value;
    if (writes(&r->log->entries[word->writers[i]].cost, &address, &value) && satisfied(wait, value))
      return true;
  }
  return false;
}

void clock_work_wrote(const struct replay *r, const struct clock_cost *cost) {
  uintptr_t address;
  uint64_t value;
  if (!writes(cost, &address, &value))
    return;
  struct word *word = word_at(r, address);
  word->value = value;
  word->written = true;
}

/* ---- what host threads do ---- */

static struct work_line *line_of(struct replay *r, uint64_t thread, int device) {
  for (size_t i = 0; i < r->line_count; i++)
    if (r->lines[i].thread == thread && (thread != 0 || r->lines[i].device == device))
      return &r->lines[i];
  r->lines = clock_room(r->lines, r->line_count, &r->line_capacity, sizeof *r->lines);
  r->lines[r->line_count] = (struct work_line){thread, device, NONE, NONE};
  return &r->lines[r->line_count++];
}

static size_t add_work(struct replay *r, struct work work, const char *name, uint64_t thread,
                       int device) {
  const size_t index = r->work_count++;
  struct work_line *line = line_of(r, thread, device);
  r->work = clock_room(r->work, index, &r->work_capacity, sizeof *r->work);
  r->result->workers =
      clock_room(r->result->workers, index, &r->worker_capacity, sizeof *r->result->workers);
  r->result->workers[index] = (struct clock_worker){name, thread, device, {-1, -1, -1}};
  work.next = NONE;
  r->work[index] = work;
  if (line->first == NONE)
    line->first = index;
  else
    r->work[line->last].next = index;
  line->last = index;
  return index;
}

enum { LINE_BYTES = 64 };

/* A value write by which the CPU's work may begin, with what had come down for it. */
struct beginning {
  size_t entry;
  double bytes;
};
struct beginnings { /* of a device, in order */
  struct beginning *items;
  size_t count, capacity;
};

/* Where the work that a wait is for began; NULL: nowhere. Work that is ahead of its waits has several
 * words written before the first of them. */
static struct beginning *beginning_of(const struct replay *r, const struct beginnings *of,
                                      const struct clock_cost *wait) {
  for (size_t i = of->count; i-- > 0;) {
    const struct clock_cost *write = &r->log->entries[of->items[i].entry].cost;
    if (write->word / LINE_BYTES == wait->word / LINE_BYTES && write->value == wait->value)
      return &of->items[i];
  }
  return of->count > 0 ? &of->items[of->count - 1] : NULL;
}

/* With what came down in each stream since its last value write. */
static void find_work(struct replay *r) {
  const struct clock_log *log = r->log;
  uint64_t streams = 0;
  for (size_t i = 0; i < log->count; i++)
    if (log->entries[i].stream >= streams)
      streams = log->entries[i].stream + 1;
  double *down = gpusim_new(streams * sizeof *down);
  struct beginnings beginnings[GPUSIM_MAX_DEVICES] = {{0}};
  for (size_t i = 0; i < log->count; i++) {
    const struct clock_entry *entry = &log->entries[i];
    const struct clock_cost *cost = &entry->cost;
    struct beginnings *before = &beginnings[entry->device];
    struct beginning *begin;
    struct work work = {.entry = i, .after_entry = NONE};
    switch (cost->kind) {
    case CLOCK_DOWN_COPY:
      down[entry->stream] += cost->amount[CLOCK_DOWN];
      break;
    case CLOCK_VALUE_WRITE:
      before->items =
          clock_room(before->items, before->count, &before->capacity, sizeof *before->items);
      before->items[before->count++] = (struct beginning){i, down[entry->stream]};
      down[entry->stream] = 0;
      break;
    case CLOCK_WORKER:
      clock_scaled(r, cost->amount, work.amount);
      work.after_word = cost->word != 0 ? word_at(r, cost->word) : NULL;
      add_work(r, work, cost->name, entry->thread, entry->device);
      break;
    case CLOCK_VALUE_WAIT:
      if (explained(r, cost)) {
        r->source[i] = WAIT_WORD;
      } else if ((begin = beginning_of(r, before, cost)) == NULL) {
        r->source[i] = WAIT_NOTHING;
      } else {
        double came[CLOCK_RESOURCES] = {0};
        for (int k = CLOCK_DRAM; k <= CLOCK_DRIVE_WRITE; k++)
          came[k] = begin->bytes * r->terms->host_ratio[k];
        clock_scaled(r, came, work.amount);
        work.after_entry = begin->entry;
        begin->bytes = 0;
        r->source[i] = WAIT_WORKER;
        r->source_work[i] = add_work(r, work, NULL, 0, entry->device);
        r->result->inferred++;
      }
      break;
    default:
      break;
    }
  }
  for (int i = 0; i < GPUSIM_MAX_DEVICES; i++)
    free(beginnings[i].items);
  free(down);
}

void clock_work_find(struct replay *r) {
  find_words(r);
  find_work(r);
}

/* ---- in the replay ---- */

bool clock_work_wait_over(const struct replay *r, size_t entry) {
  const struct clock_cost *cost = &r->log->entries[entry].cost;
  switch (r->source[entry]) {
  case WAIT_WORKER:
    return r->work[r->source_work[entry]].done;
  case WAIT_WORD: {
    const struct word *word = word_at(r, cost->word);
    return word->written && satisfied(cost, word->value);
  }
  default:
    return true;
  }
}

static bool may_start(const struct replay *r, const struct work *work) {
  const struct clock_cost *cost = &r->log->entries[work->entry].cost;
  if (work->started || (work->after_entry != NONE && !r->done[work->after_entry]))
    return false;
  return work->assumed || work->after_word == NULL ||
         (work->after_word->written &&
          gpusim_value_reached(work->after_word->value, cost->value, 0, false));
}

bool clock_work_step(struct replay *r) {
  bool moved = false;
  for (size_t i = 0; i < r->line_count; i++) {
    struct work_line *line = &r->lines[i];
    while (line->first != NONE && r->work[line->first].done)
      line->first = r->work[line->first].next;
    if (line->first == NONE || !may_start(r, &r->work[line->first]))
      continue;
    struct work *work = &r->work[line->first];
    struct clock_worker *worker = &r->result->workers[line->first];
    work->started = true;
    worker->span.started = r->now;
    clock_run(r, CLOCK_WORKER, worker->device, work->amount, false)->work = line->first;
    moved = true;
  }
  return moved;
}

bool clock_work_assume(struct replay *r) {
  for (size_t i = 0; i < r->line_count; i++) {
    const size_t first = r->lines[i].first;
    if (first != NONE && !r->work[first].started && !r->work[first].assumed) {
      r->work[first].assumed = true;
      return true;
    }
  }
  return false;
}
