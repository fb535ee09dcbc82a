/* See unknown.h. A table of the addresses that launches named, by address, says who used each last and since when that is the only one;
   frameworks cut tensors out of large allocations, so a tensor ends at the next known address at the latest. A record a launch, found by
   function and states, counts the steps: launches before which nothing but the function had used the states, and something else had used
   the rest. */
#include "unknown.h"
#include "../nvme/clock.h"
#include "../policy/leaf.h"
#include "image.h"
#include "pressure.h"
#include "process.h"
#include "quiet.h"
#include "range.h"
#include "state.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Uses of memory in a span: several steps of a large model. Addresses and launches that are remembered; functions that are named. */
enum {
  LOOKED_AT = 1 << 18,
  POINTERS_MOST = 8192,
  RECORDS_MOST = 1024,
  PROBES = 16,
  NAMES_MOST = 8
};
/* Steps after which a launch is believed; partners of which one must be the same in all of them: the parameters are. */
enum { STEPS_THAT_TELL = 3, PARTNERS_MOST = 4 };
static const uint64_t pause_ns = 60000000000;
static const size_t rounding_most = 2 << 20;

_Atomic bool unknown_open = true;
static _Atomic bool ended;

struct pointer {
  uintptr_t address, base, end; /* its allocation's */
  CUfunction by;                /* used it last; NULL: no launch */
  uint32_t since, last;         /* which use of memory that was: the first by it alone, the last */
  uint16_t claimed;             /* counted by a record: index + 1; */
  bool state;                   /* as state */
};
struct record {
  CUfunction function;
  uint64_t states; /* a sum of their addresses */
  uintptr_t partners[PARTNERS_MOST];
  uint32_t first, steps;
  uint32_t ranges;
  uint64_t bytes, state_bytes;
};

/* Protects everything below; a leaf. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pointer pointers[POINTERS_MOST]; /* sorted */
static size_t pointer_count;
static struct record records[RECORDS_MOST];
static uint32_t now, unseen; /* uses of memory so far; the last whose addresses aren't known */
static uint64_t closed_ns;
static struct unknown_operand operands[UNKNOWN_NAMED]; /* of the launch at hand */
static struct {
  CUfunction function;
  char name[160];
} names[NAMES_MOST];
static size_t name_count;

/* ---- the judgement ---- */

/* Allocators round up. */
static bool same_size(size_t a, size_t b) {
  const size_t less = a < b ? a : b, slack = less / 8 < rounding_most ? less / 8 : rounding_most;
  return (a < b ? b : a) - less <= slack;
}

/* Of a state, 0: it is none. Of two kept ones of a believed function one may seem larger, with free memory behind it. */
static size_t state_size(const struct unknown_operand *all, size_t count, size_t i, size_t least,
                         bool believed) {
  const struct unknown_operand *self = &all[i];
  size_t size = 0;
  for (size_t j = 0; j < count && self->kept && self->bytes >= least; j++) {
    const struct unknown_operand *other = &all[j];
    if (j == i || !other->kept || other->bytes < least)
      continue;
    if (same_size(self->bytes, other->bytes) ||
        (believed && !other->whole && self->bytes < other->bytes))
      return self->bytes;
    if (believed && !self->whole && other->bytes > size && other->bytes < self->bytes)
      size = other->bytes;
  }
  return size;
}

/* Beside one of the states: of its size, of half of it, or within more. */
static void set_partner(struct unknown_operand *operand, const struct unknown_operand *all,
                        size_t count) {
  bool holds = false;
  for (size_t i = 0; i < count && !operand->kept && !operand->partner; i++)
    if (all[i].state) {
      operand->partner =
          same_size(operand->bytes, all[i].size) || same_size(operand->bytes, all[i].size / 2);
      holds |= !operand->whole && operand->bytes >= all[i].size / 2;
    }
  operand->size = operand->partner ? operand->bytes : 0;
  operand->loose = holds && !operand->partner;
  operand->partner |= operand->loose;
}

/* Parameter and gradient have one type: the smallest that it can be. */
static void size_loose(struct unknown_operand *operand, const struct unknown_operand *all,
                       size_t count) {
  for (size_t i = 0; i < count && operand->loose; i++)
    if (all[i].partner && !all[i].loose && all[i].size <= operand->bytes &&
        (!operand->size || all[i].size < operand->size))
      operand->size = all[i].size;
}

bool unknown_judge(struct unknown_operand *all, size_t count, size_t least_bytes, bool believed) {
  size_t states = 0, partners = 0, loose = 0;
  for (size_t i = 0; i < count; i++) {
    all[i].partner = all[i].loose = false;
    all[i].size = state_size(all, count, i, least_bytes, believed);
    all[i].state = all[i].size > 0;
    states += all[i].state;
  }
  for (size_t i = 0; i < count; i++) {
    if (!all[i].state)
      set_partner(&all[i], all, count);
    partners += all[i].partner;
    loose += all[i].loose;
  }
  for (size_t i = 0; i < count; i++)
    size_loose(&all[i], all, count);
  /* Two states for three others at least: lists of tensors with one state each have one for two. */
  return states >= 2 && partners >= 2 && (partners > loose || believed) &&
         3 * states >= 2 * partners && 2 * partners >= states;
}

/* ---- addresses; under the lock ---- */

/* Number of known addresses at or below this one. */
static size_t position(uintptr_t address) {
  size_t from = 0, to = pointer_count;
  while (from < to) {
    const size_t middle = from + (to - from) / 2;
    if (pointers[middle].address <= address)
      from = middle + 1;
    else
      to = middle;
  }
  return from;
}

static void use(struct pointer *pointer, CUfunction by) {
  if (pointer->by != by || pointer->last <= unseen)
    pointer->since = now;
  pointer->by = by;
  pointer->last = now;
}

static bool allocation_of(uintptr_t address, struct pointer *pointer) {
  struct native_allocation native;
  const struct range *range = range_find(address);
  if (!range && !pressure_native_find(address, &native))
    return false;
  *pointer = (struct pointer){.address = address, .base = range ? range->base : native.pointer};
  pointer->end = pointer->base + (range ? range->bytes : native.bytes);
  return true;
}

/* That of the address, made when it is new; NULL when it lies in no large allocation, or there is no room. The known address below a new
   one may be of the same tensor: that is used, too. */
static struct pointer *pointer_at(uintptr_t address, CUfunction by) {
  struct pointer met;
  const size_t i = position(address);
  if (i && pointers[i - 1].address == address)
    return &pointers[i - 1];
  if (!allocation_of(address, &met))
    return NULL;
  if (i && pointers[i - 1].base == met.base)
    use(&pointers[i - 1], by);
  if (pointer_count == POINTERS_MOST)
    return NULL;
  memmove(pointers + i + 1, pointers + i, (pointer_count - i) * sizeof *pointers);
  pointers[i] = met;
  pointer_count++;
  return &pointers[i];
}

static struct pointer *known(uintptr_t address) {
  return &pointers[position(address) - 1];
}

static void measure(struct unknown_operand *operand) {
  const struct pointer *pointer = known(operand->address);
  const bool cut = pointer + 1 < pointers + pointer_count && pointer[1].base == pointer->base;
  operand->bytes = (cut ? pointer[1].address : pointer->end) - pointer->address;
  operand->whole = !cut && pointer->address == pointer->base;
}

/* ---- launches; under the lock ---- */

static void close_span(void) {
  atomic_store_explicit(&unknown_open, false, memory_order_relaxed);
  closed_ns = clock_now_ns();
}

/* Another use of memory. False: the span is over. */
static bool another(void) {
  if (state_step() || atomic_load_explicit(&ended, memory_order_relaxed))
    unknown_end(); /* also where it was, while a report had just begun to look again */
  if (now == LOOKED_AT)
    close_span();
  now++;
  return unknown_looking();
}

/* NULL: no room. */
static struct record *record_of(CUfunction function, uint64_t states) {
  const uint64_t sum = (states ^ (uint64_t)(uintptr_t)function) * 0x9e3779b97f4a7c15u;
  for (size_t probe = 0; probe < PROBES; probe++) {
    struct record *record = &records[((sum >> 48) + probe) % RECORDS_MOST];
    if (!record->function)
      *record = (struct record){.function = function, .states = states};
    if (record->function == function && record->states == states)
      return record;
  }
  return NULL;
}

static bool repeats_partner(const struct record *record, size_t count) {
  for (size_t i = 0; i < count; i++)
    for (size_t k = 0; k < PARTNERS_MOST && operands[i].partner; k++)
      if (record->partners[k] == operands[i].address)
        return true;
  return false;
}

static void begin_record(struct record *record, size_t count) {
  size_t partners = 0;
  memset(record->partners, 0, sizeof record->partners);
  for (size_t i = 0; i < count; i++)
    if (operands[i].partner && partners < PARTNERS_MOST)
      record->partners[partners++] = operands[i].address;
  record->first = now;
  record->steps = 0;
}

/* What other launches of the step were counted for isn't counted again: lists passed by value keep addresses of earlier launches. */
static void count_bytes(struct record *record, size_t count) {
  const uint16_t self = (uint16_t)(record - records + 1);
  record->ranges = 0;
  record->bytes = record->state_bytes = 0;
  for (size_t i = 0; i < count; i++) {
    struct pointer *pointer = known(operands[i].address);
    if ((!operands[i].state && !operands[i].partner) ||
        (pointer->claimed && pointer->claimed != self))
      continue;
    pointer->claimed = self;
    pointer->state = operands[i].state;
    record->ranges++;
    record->bytes += operands[i].size;
    record->state_bytes += operands[i].state ? operands[i].size : 0;
  }
}

/* A launch that is an optimizer's, as far as one can tell. True: it has been for enough steps, now. */
static bool another_step(CUfunction function, size_t count) {
  uint64_t states = 0;
  uint32_t since = 0;
  for (size_t i = 0; i < count; i++)
    if (operands[i].state) {
      const uint32_t alone = known(operands[i].address)->since;
      states += operands[i].address * 0xd6e8feb86659fd93u ^ operands[i].address >> 7;
      since = alone > since ? alone : since;
    }
  struct record *record = record_of(function, states);
  if (!record)
    return false;
  if (!record->steps || since >= record->first || !repeats_partner(record, count))
    begin_record(record, count);
  if (++record->steps != STEPS_THAT_TELL)
    return false;
  count_bytes(record, count);
  return true;
}

static bool named(CUfunction function) {
  for (size_t i = 0; i < name_count; i++)
    if (names[i].function == function)
      return true;
  return false;
}

/* ---- what is told ---- */

/* The driver is asked for the name, without the lock. */
static void name_it(CUfunction function) {
  const CUstreamCaptureMode mode = quiet_begin();
  const char *name = image_function_name(function);
  quiet_end(mode);
  pthread_mutex_lock(&lock);
  if (name && name_count < NAMES_MOST && !named(function)) {
    names[name_count].function = function;
    (void)snprintf(names[name_count].name, sizeof names->name, "%s", name);
    name_count++;
  }
  pthread_mutex_unlock(&lock);
}

void unknown_launch(CUfunction function, const uintptr_t *words, size_t count) {
  size_t met = 0, kept = 0;
  bool found = false;
  pthread_mutex_lock(&lock);
  const bool looking = another();
  for (size_t i = 0; i < count && looking; i++) {
    struct pointer *pointer = pointer_at(words[i], function);
    if (!pointer || pointer->last == now)
      continue;
    const bool mine = pointer->by == function && pointer->last > unseen;
    if (met < UNKNOWN_NAMED)
      operands[met++] = (struct unknown_operand){.address = words[i], .kept = mine};
    kept += mine;
    use(pointer, function);
  }
  if (kept >= 2 && met >= kept + 2) {
    for (size_t i = 0; i < met; i++)
      measure(&operands[i]);
    const bool believed = named(function);
    found = unknown_judge(operands, met, process_config()->min_allocation.bytes, believed) &&
            another_step(function, met) && !believed;
  }
  pthread_mutex_unlock(&lock);
  if (found)
    name_it(function);
}

void unknown_access(uintptr_t address, size_t bytes) {
  pthread_mutex_lock(&lock);
  if (bytes && another()) {
    size_t i = position(address);
    if (i && address < pointers[i - 1].end)
      i--;
    for (; i < pointer_count && (pointers[i].address < address + bytes); i++)
      use(&pointers[i], NULL);
  }
  pthread_mutex_unlock(&lock);
}

void unknown_unseen(void) {
  pthread_mutex_lock(&lock);
  if (another())
    unseen = now;
  pthread_mutex_unlock(&lock);
}

void unknown_freed(uintptr_t base) {
  pthread_mutex_lock(&lock);
  size_t from = position(base), to;
  from -= from && pointers[from - 1].address == base;
  for (to = from; to < pointer_count && pointers[to].base == base; to++)
    if (pointers[to].claimed && pointers[to].state)
      records[pointers[to].claimed - 1].steps = 0;
  memmove(pointers + from, pointers + to, (pointer_count - to) * sizeof *pointers);
  pointer_count -= to - from;
  pthread_mutex_unlock(&lock);
}

void unknown_end(void) {
  atomic_store_explicit(&ended, true, memory_order_relaxed);
  atomic_store_explicit(&unknown_open, false, memory_order_relaxed);
}

void unknown_look_again(void) {
  if (unknown_looking() || atomic_load_explicit(&ended, memory_order_relaxed))
    return;
  pthread_mutex_lock(&lock);
  if (!name_count && clock_now_ns() - closed_ns > pause_ns) {
    pointer_count = 0;
    now = unseen = 0;
    memset(records, 0, sizeof records);
    atomic_store_explicit(&unknown_open, true, memory_order_relaxed);
  }
  pthread_mutex_unlock(&lock);
}

bool unknown_found(struct unknown_found *found) {
  *found = (struct unknown_found){0};
  if (!leaf_lock(&lock))
    return false;
  for (size_t i = 0; i < name_count; i++) {
    struct unknown_found sum = {.name = names[i].name};
    for (size_t k = 0; k < RECORDS_MOST; k++)
      if (records[k].function == names[i].function && records[k].steps >= STEPS_THAT_TELL) {
        sum.ranges = records[k].ranges > sum.ranges ? records[k].ranges : sum.ranges;
        sum.bytes += records[k].bytes;
        sum.state_bytes += records[k].state_bytes;
      }
    if (sum.state_bytes > found->state_bytes)
      *found = sum;
  }
  pthread_mutex_unlock(&lock);
  return found->name;
}
