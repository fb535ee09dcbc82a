/* The list of known state (census.h): a table of moments found by address, and the sweep over them
   that tells coverage.

   Coverage is a union: m0 v0 m1 v1 of several launches lie side by side in a piece. Sorted by
   address and rounded to COVERAGE_GRAIN, since the rest of an allocator's block belongs to its
   tensor, one pass over the moments gives the covered bytes of every piece; a bitmap would say the
   same for a thousand times the work. */
#include "census.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Protects everything below. A leaf: nothing is called under it but range_find. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct moment *moments; /* in naming order */
static size_t count, room;
static uint32_t *slots; /* open addressing: index + 1 into moments, 0 free */
static size_t slot_count;

static size_t first_slot(uintptr_t address) {
  return (size_t)((address >> 4) * 0x9e3779b97f4a7c15u >> 20) & (slot_count - 1);
}

static struct moment *find(uintptr_t address) {
  for (size_t i = slot_count ? first_slot(address) : 0; slot_count && slots[i];
       i = (i + 1) & (slot_count - 1))
    if (moments[slots[i] - 1].address == address)
      return &moments[slots[i] - 1];
  return NULL;
}

static void place(size_t index) {
  size_t i = first_slot(moments[index].address);
  while (slots[i])
    i = (i + 1) & (slot_count - 1);
  slots[i] = (uint32_t)index + 1;
}

static void place_all(void) {
  memset(slots, 0, slot_count * sizeof *slots);
  for (size_t i = 0; i < count; i++)
    place(i);
}

/* Room for one more, with the slots at most half full. */
static bool grow(void) {
  if (count < room)
    return true;
  if (room >= UINT32_MAX / 4)
    return false;
  size_t more = room ? 2 * room : 256;
  struct moment *grown = realloc(moments, more * sizeof *moments);
  if (grown)
    moments = grown;
  uint32_t *wider = grown ? malloc(2 * more * sizeof *slots) : NULL;
  if (!wider)
    return false;
  free(slots);
  slots = wider;
  slot_count = 2 * more;
  room = more;
  place_all();
  return true;
}

bool census_repeats(uintptr_t address, size_t first, uint64_t step) {
  pthread_mutex_lock(&mutex);
  const struct moment *moment = find(address);
  bool repeats = moment && moment->step == step && first <= moment->first;
  pthread_mutex_unlock(&mutex);
  return repeats;
}

static struct range *holder(uintptr_t address, size_t bytes) {
  struct range *range = range_find(address);
  return range && bytes <= range->bytes - (address - range->base) ? range : NULL;
}

/* The states of the tensor that come after this one, in turn. */
static void set_partners(struct moment *moment, const struct state_tensor *tensor, unsigned which) {
  unsigned n = 0;
  moment->partners[0] = moment->partners[1] = 0;
  for (unsigned i = 1; i < TENSOR_STATES; i++) {
    const uintptr_t partner = tensor->states[(which + i) % TENSOR_STATES];
    if (partner)
      moment->partners[n++] = partner;
  }
}

struct range *census_name(CUcontext context, const struct state_tensor *tensor, unsigned which,
                          uint64_t step) {
  const uintptr_t address = tensor->states[which];
  const size_t bytes = tensor->bytes;
  struct range *range = NULL;
  pthread_mutex_lock(&mutex);
  struct moment *moment = find(address);
  if (!moment && grow()) {
    moment = &moments[count++];
    *moment = (struct moment){.address = address, .range = holder(address, bytes)};
    moment->bytes = bytes;
    place(count - 1);
  }
  if (moment) {
    if (moment->bytes != bytes || !moment->range)
      moment->range = holder(address, bytes);
    moment->context = context;
    set_partners(moment, tensor, which);
    moment->bytes = bytes;
    moment->first = tensor->first;
    moment->step = step;
    range = moment->range;
  }
  pthread_mutex_unlock(&mutex);
  return range;
}

static void forget(bool (*gone)(const struct moment *, uintptr_t, uint64_t), uintptr_t a,
                   uint64_t b) {
  size_t kept = 0;
  pthread_mutex_lock(&mutex);
  for (size_t i = 0; i < count; i++)
    if (!gone(&moments[i], a, b))
      moments[kept++] = moments[i];
  if (kept != count) {
    count = kept;
    place_all();
  }
  pthread_mutex_unlock(&mutex);
}

static bool inside(const struct moment *moment, uintptr_t base, uint64_t bytes) {
  return moment->address - base < bytes;
}

static bool before(const struct moment *moment, uintptr_t context, uint64_t step) {
  return (uintptr_t)moment->context == context && moment->step < step;
}

void census_forget(uintptr_t base, size_t bytes) {
  forget(inside, base, bytes);
}

void census_forget_before(CUcontext context, uint64_t step) {
  forget(before, (uintptr_t)context, step);
}

bool census_any(CUcontext context) {
  bool any = false;
  pthread_mutex_lock(&mutex);
  for (size_t i = 0; i < count && !any; i++)
    any = moments[i].context == context;
  pthread_mutex_unlock(&mutex);
  return any;
}

struct moment *census_list(CUcontext context, size_t *listed) {
  pthread_mutex_lock(&mutex);
  struct moment *list = count ? malloc(count * sizeof *list) : NULL;
  *listed = 0;
  for (size_t i = 0; list && i < count; i++) {
    if (moments[i].context != context)
      continue;
    list[*listed] = moments[i];
    if (moments[i].range && moments[i].range->context != context)
      list[*listed].range = NULL;
    ++*listed;
  }
  pthread_mutex_unlock(&mutex);
  return list;
}

/* ---- coverage ---- */

static size_t round_up(size_t bytes) {
  return (bytes + COVERAGE_GRAIN - 1) / COVERAGE_GRAIN * COVERAGE_GRAIN;
}

size_t census_whole(const struct range *range, uint32_t piece) {
  size_t begin = piece * range->piece_bytes, end = round_up(range->bytes);
  return end - begin < range->piece_bytes ? end - begin : range->piece_bytes;
}

static int by_address(const void *a, const void *b) {
  const struct moment *left = *(const struct moment *const *)a,
                      *right = *(const struct moment *const *)b;
  return (left->address > right->address) - (left->address < right->address);
}

enum sum { SUM_COVERED, SUM_NAMED };

/* Adds [from, to), relative to the range, to its pieces. */
static void add(struct range *range, size_t from, size_t to, enum sum sum) {
  while (from < to) {
    struct piece *piece = &range->pieces[from / range->piece_bytes];
    size_t end = (from / range->piece_bytes + 1) * range->piece_bytes;
    size_t bytes = (end < to ? end : to) - from;
    if (sum == SUM_COVERED)
      piece->covered_bytes += bytes;
    else
      piece->named_bytes += bytes;
    from += bytes;
  }
}

/* The moments of one range, sorted by address. */
static void cover_range(struct range *range, const struct moment *const *sorted, size_t n) {
  struct extent *known = malloc(n * sizeof *known);
  size_t covered = 0; /* end of the union so far */
  for (size_t i = 0; i < n; i++) {
    const size_t offset = sorted[i]->address - range->base, bytes = sorted[i]->bytes;
    size_t from = round_up(offset), to = round_up(offset + bytes);
    from = from > covered ? from : covered;
    add(range, from, to, SUM_COVERED);
    add(range, offset, offset + bytes, SUM_NAMED);
    covered = to > covered ? to : covered;
    if (known)
      known[i] = (struct extent){sorted[i]->address, sorted[i]->address + bytes};
  }
  range_set_known(range, known, known ? n : 0);
}

void census_cover(struct range *const *ranges, size_t range_count, const struct moment *list,
                  size_t n) {
  for (size_t i = 0; i < range_count; i++)
    for (uint32_t k = 0; k < ranges[i]->piece_count; k++) {
      ranges[i]->pieces[k].covered_bytes = 0;
      ranges[i]->pieces[k].named_bytes = 0;
    }
  const struct moment **sorted = malloc((n ? n : 1) * sizeof *sorted);
  size_t inside = 0;
  for (size_t i = 0; sorted && i < n; i++)
    if (list[i].range && list[i].bytes)
      sorted[inside++] = &list[i];
  if (inside)
    qsort(sorted, inside, sizeof *sorted, by_address);
  for (size_t from = 0, to; from < inside; from = to) {
    for (to = from + 1; to < inside && sorted[to]->range == sorted[from]->range;)
      to++;
    cover_range(sorted[from]->range, sorted + from, to - from);
  }
  for (size_t i = 0; sorted && i < range_count; i++) {
    size_t named = 0;
    for (uint32_t k = 0; k < ranges[i]->piece_count; k++)
      named += ranges[i]->pieces[k].named_bytes;
    if (!named && atomic_exchange(&ranges[i]->has_state, false))
      range_set_known(ranges[i], NULL, 0);
  }
  free(sorted);
}
