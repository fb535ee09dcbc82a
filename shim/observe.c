/* See observe.h. What would move are pieces that state covers whole, laid over native allocations as they would be over ranges; that
   partners stay together is left out, which is a piece now and then. */
#include "observe.h"
#include "../policy/report.h"
#include "../policy/report_observed.h"
#include "choose.h"
#include "driver.h"
#include "pressure.h"
#include "process.h"
#include "tier.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic uint32_t share_millionths = 1000000;

double observe_share(void) {
  return atomic_load_explicit(&share_millionths, memory_order_relaxed) / 1e6;
}

struct extent_of {
  uintptr_t start, end, base; /* base of the allocation that holds it, 0: of none that may move */
  size_t bytes;               /* of that */
};

static int by_start(const void *a, const void *b) {
  const struct extent_of *left = a, *right = b;
  return (left->start > right->start) - (left->start < right->start);
}

/* As coverage is kept: the allocator's padding is its tensor's. */
static struct extent_of extent_of(const struct moment *moment, size_t piece_bytes) {
  struct extent_of extent = {moment->address, moment->address + moment->bytes, 0, 0};
  struct native_allocation native;
  if (moment->range) {
    extent.base = moment->range->base;
    extent.bytes = moment->range->bytes;
  } else if (pressure_native_find(moment->address, &native) && native.movable &&
             native.bytes > piece_bytes / 2 && extent.end <= native.pointer + native.bytes) {
    extent.base = native.pointer;
    extent.bytes = native.bytes;
  } else {
    return extent;
  }
  const size_t grain = COVERAGE_GRAIN;
  extent.start = extent.base + (extent.start - extent.base) / grain * grain;
  extent.end = extent.base + (extent.end - extent.base + grain - 1) / grain * grain;
  if (extent.end >=
      extent.base + extent.bytes) /* the last piece's tail beyond the request is nobody's */
    extent.end = extent.base + (extent.bytes + piece_bytes - 1) / piece_bytes * piece_bytes;
  return extent;
}

/* Bytes of whole pieces in [start, end), of an allocation that begins at base. */
static size_t whole_bytes(uintptr_t start, uintptr_t end, uintptr_t base, size_t piece_bytes) {
  const size_t first = (start - base + piece_bytes - 1) / piece_bytes,
               last = (end - base) / piece_bytes;
  return last > first ? (last - first) * piece_bytes : 0;
}

/* Whether some state lies where it would move, if only it filled pieces. */
static bool any_may_move(const struct view *view) {
  struct native_allocation native;
  for (size_t i = 0; i < view->moment_count; i++)
    if (view->moments[i].range ||
        (pressure_native_find(view->moments[i].address, &native) && native.movable))
      return true;
  return false;
}

static size_t movable_bytes(const struct view *view, size_t piece_bytes) {
  struct extent_of *extents =
      malloc((view->moment_count ? view->moment_count : 1) * sizeof *extents);
  size_t count = 0, bytes = 0;
  for (size_t i = 0; extents && i < view->moment_count; i++) {
    const struct extent_of extent = extent_of(&view->moments[i], piece_bytes);
    if (extent.base)
      extents[count++] = extent;
  }
  if (count)
    qsort(extents, count, sizeof *extents, by_start);
  for (size_t i = 0, next; i < count; i = next) {
    uintptr_t end = extents[i].end;
    for (next = i + 1;
         next < count && extents[next].base == extents[i].base && extents[next].start <= end;
         next++)
      end = extents[next].end > end ? extents[next].end : end;
    bytes += whole_bytes(extents[i].start, end, extents[i].base, piece_bytes);
  }
  free(extents);
  return bytes;
}

static void look(const struct view *view, struct report_observed *observed) {
  CUdevice device;
  CUmemLocation location;
  char state[REPORT_SIZE_BYTES], piece[REPORT_SIZE_BYTES];
  if (driver.cuCtxGetDevice(&device))
    return;
  const size_t piece_bytes = range_piece_bytes(device);
  const struct config_size *asked = &process_config()->free_bytes;
  observed->movable_bytes = piece_bytes ? movable_bytes(view, piece_bytes) : 0;
  if (observed->movable_bytes > observed->state_bytes) /* padding is no state */
    observed->movable_bytes = observed->state_bytes;
  observed->possible = piece_bytes && tier_location(device, piece_bytes, &location);
  observed->budget_bytes = observed->possible ? tier_room(device) : 0;
  observed->move_bytes = observed->possible ? observed->movable_bytes : 0;
  if (observed->move_bytes > observed->budget_bytes)
    observed->move_bytes = observed->budget_bytes;
  if (asked->set && observed->move_bytes > asked->bytes)
    observed->move_bytes = asked->bytes;
  if (observed->possible && !observed->movable_bytes && any_may_move(view))
    report_reason("%s of optimizer state fills no piece of %s: it stays on the "
                  "device, as state of larger tensors doesn't",
                  report_size_text(observed->state_bytes, state),
                  report_size_text(piece_bytes, piece));
  const double share = (double)observed->move_bytes / (double)observed->state_bytes;
  atomic_store_explicit(&share_millionths, (uint32_t)(share * 1e6), memory_order_relaxed);
}

static size_t tensor_count(const struct view *view) {
  size_t sixths = 0; /* of a tensor */
  for (size_t i = 0; i < view->moment_count; i++)
    sixths += view->moments[i].partners[1] ? 2 : 3;
  return sixths / 6;
}

void observe_step(const struct view *view) {
  static struct report_observed observed; /* what was looked at last */
  static uint64_t looked_at;              /* of its moments, a sum that others don't have */
  struct choice_facts facts;
  uint64_t sum = view->moment_count, bytes = 0;
  for (size_t i = 0; i < view->moment_count; i++) {
    bytes += view->moments[i].bytes;
    sum = (sum ^ view->moments[i].address ^ view->moments[i].bytes) * 0x100000001b3u;
  }
  if (!bytes)
    return;
  if (sum != looked_at) {
    looked_at = sum;
    observed.state_bytes = bytes;
    observed.tensors = tensor_count(view);
    look(view, &observed);
  }
  observed.foretold = choose_facts(&facts) && facts.cost.ways[facts.next].possible;
  if (observed.foretold) {
    const struct cost_of_way *way = &facts.cost.ways[facts.next];
    observed.way = cost_way_name(facts.next);
    observed.exposed_ns = (uint64_t)(way->exposed * 1e9);
    observed.hidden_ns = (uint64_t)(way->hidden * 1e9);
    observed.rates = facts.input.rates.source == RATES_MEASURED ? "measured"
                     : facts.input.rates.source == RATES_TOLD   ? "told"
                                                                : "assumed";
  }
  report_observed(&observed);
}
