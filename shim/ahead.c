/* Across launches (ahead.h): what the launches since a place in the program's stream read and write, as
   sorted regions, and whether a new launch's inputs are apart from it.

     epoch: one launch of ours, and the known launches that followed it
       begin event | regions: named, written

   A new launch is compared with the epochs since the event it would wait for, which are at most AHEAD_LAUNCHES - 1:
   with more, the oldest is dropped and its follower's event is waited for. */
#include "ahead.h"
#include "../policy/report.h"
#include "foreach.h"
#include "plan.h"
#include "process.h"
#include "state.h"
#include "touch.h"
#include <stdlib.h>
#include <string.h>

_Atomic uint64_t ahead_window;

/* What a region is to the launch that names it. */
enum {
  READ_EARLY = 1,  /* fetched ahead: must not be written in between */
  WRITE_EARLY = 2, /* and written by the CPU ahead: must not be named in between */
  SCALAR = 4,      /* read by the proof */
  WRITTEN = 8,     /* it or what it stands for writes this */
};

struct region {
  uintptr_t start, end;
  unsigned what;
};

/* With more regions than this between two launches, keeping account isn't worth it. */
enum { REGIONS_MOST = 65536 };

struct regions {
  struct region *regions;
  size_t count, room;
  bool sorted;
};

struct epoch {
  CUevent begin;
  struct regions regions;
};

/* The window at hand; under the mutex. */
static struct {
  uint64_t number; /* what ahead_window was set to by its last launch */
  CUcontext context;
  CUstream stream;
  pthread_t thread; /* of a per-thread stream */
  bool streamed;
  uint64_t step, moves; /* steps begun and pieces moved by then */
  struct epoch epochs[AHEAD_LAUNCHES];
  unsigned count;
} window;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* the window */

/* The call that closed the last window. */
static const char *_Atomic closed_by;

void ahead_close(const char *what) {
  uint64_t number = atomic_load_explicit(&ahead_window, memory_order_seq_cst);
  /* A launch that opens its window meanwhile has that one closed. */
  while (number & 1) {
    atomic_store_explicit(&closed_by, what, memory_order_relaxed);
    if (atomic_compare_exchange_weak_explicit(&ahead_window, &number, number & ~(uint64_t)1,
                                              memory_order_seq_cst, memory_order_seq_cst))
      return;
  }
}

/* Whether a newer function was handed out, and the first one's name, which is there before the flag. */
static _Atomic bool forbidden, forbidding;
static char newer[64];

void ahead_forbid(const char *function) {
  if (atomic_exchange_explicit(&forbidding, true, memory_order_relaxed))
    return;
  strncpy(newer, function, sizeof newer - 1);
  atomic_store_explicit(&forbidden, true, memory_order_release);
}

/* Whether windows may open. */
static bool allowed(void) {
  if (!process_config()->test_ahead)
    return false;
  if (!atomic_load_explicit(&forbidden, memory_order_acquire))
    return true;
  ahead_close("a newer function of the driver");
  report_reason(
      "launches of a step wait for those in front of them: the driver gave the program %s, "
      "which is newer than CUDA %d.%d and not known here",
      newer, CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
  return false;
}

/* ---- regions ---- */

static bool add(struct regions *list, uintptr_t start, size_t bytes, unsigned what) {
  if (!bytes)
    return true;
  if (list->count == list->room) {
    const size_t more = list->room ? 2 * list->room : 256;
    struct region *grown =
        more > REGIONS_MOST ? NULL : realloc(list->regions, more * sizeof *grown);
    if (!grown)
      return false;
    list->regions = grown;
    list->room = more;
  }
  list->regions[list->count++] = (struct region){start, start + bytes, what};
  list->sorted = false;
  return true;
}

static int by_start(const void *a, const void *b) {
  const struct region *one = a, *other = b;
  return (one->start > other->start) - (one->start < other->start);
}

/* Sorted, and apart: overlapping regions become one that is all that they were, and neighbours that are the same
   are joined. */
static void sort(struct regions *list) {
  if (list->sorted)
    return;
  list->sorted = true;
  if (!list->count)
    return;
  qsort(list->regions, list->count, sizeof *list->regions, by_start);
  size_t last = 0;
  for (size_t i = 1; i < list->count; i++) {
    struct region *to = &list->regions[last];
    const struct region from = list->regions[i];
    if (from.start < to->end || (from.start == to->end && from.what == to->what)) {
      to->end = from.end > to->end ? from.end : to->end;
      to->what |= from.what;
    } else {
      list->regions[++last] = from;
    }
  }
  list->count = last + 1;
}

/* What can't be fetched ahead of `earlier`: of READ_EARLY | WRITE_EARLY | SCALAR. Both sorted. */
static unsigned conflicts(const struct regions *mine, const struct regions *earlier) {
  unsigned found = 0;
  for (size_t i = 0, k = 0; i < mine->count && k < earlier->count;) {
    const struct region *one = &mine->regions[i], *other = &earlier->regions[k];
    if (one->end <= other->start) {
      i++;
    } else if (other->end <= one->start) {
      k++;
    } else {
      found |=
          one->what & (other->what & WRITTEN ? READ_EARLY | WRITE_EARLY | SCALAR : WRITE_EARLY);
      if (one->end < other->end)
        i++;
      else
        k++;
    }
  }
  return found;
}

/* All that a launch names. Tensors are taken whole. */
static bool name_launch(const struct plan *plan, struct regions *list) {
  const struct family *family = &plan->function->family;
  const struct arguments *arguments = &plan->arguments;
  const unsigned char *metadata = arguments->metadata;
  const unsigned gradient = READ_EARLY | (arguments->grad_scale ? WRITTEN : 0);
  bool all = true;
  unsigned before = family->tensors;
  for (unsigned block = 0; block < plan->launch->grid[0]; block++) {
    const unsigned tensor = metadata_block_tensor(family, metadata, block);
    if (tensor == before)
      continue;
    before = tensor;
    const size_t elements = (size_t)metadata_elements(family, metadata, tensor);
    for (unsigned i = 0; i < family->lists; i++) {
      const enum tensor_list which = (enum tensor_list)i;
      const unsigned what = which == LIST_PARAMETER  ? READ_EARLY | WRITTEN
                            : which == LIST_GRADIENT ? gradient
                                                     : READ_EARLY | WRITE_EARLY | WRITTEN;
      all &= add(list, metadata_address(family, metadata, which, tensor),
                 elements * element_bytes(family, which), what);
    }
    all &= add(list, metadata_step(family, metadata, tensor), sizeof(float), SCALAR);
  }
  if (arguments->lr_pointer)
    all &= add(list, (uintptr_t)arguments->lr_pointer, sizeof(float), SCALAR);
  if (arguments->grad_scale) /* the prologue divides by it */
    all &= add(list, (uintptr_t)arguments->grad_scale, sizeof(float), READ_EARLY | SCALAR);
  if (arguments->found_inf)
    all &= add(list, (uintptr_t)arguments->found_inf, sizeof(float), SCALAR);
  return all;
}

/* ---- launches ---- */

/* The first epoch goes. Its memory is used again. */
static void drop_first(void) {
  const struct epoch first = window.epochs[0];
  memmove(window.epochs, window.epochs + 1, (AHEAD_LAUNCHES - 1) * sizeof *window.epochs);
  window.epochs[AHEAD_LAUNCHES - 1] = first;
  window.count--;
}

static uint64_t moves(void) {
  return atomic_load_explicit(&report.totals.pieces_moved, memory_order_relaxed) +
         atomic_load_explicit(&report.totals.pieces_home, memory_order_relaxed);
}

/* Under the mutex. */
static bool same_stream(CUstream stream, CUcontext context) {
  return window.stream == stream && window.context == context &&
         (stream != CU_STREAM_PER_THREAD || pthread_equal(window.thread, pthread_self()));
}

/* Opens this launch's window. True when the one before was still open, is its own and of the same step. *closed: but for
   that something had closed it. Under the mutex. */
static bool goes_on(const struct plan *plan, bool streamed, bool may, bool *closed) {
  const uint64_t number = window.number + 2, step = state_step(), moved = moves();
  const uint64_t before =
      may ? atomic_exchange_explicit(&ahead_window, number | 1, memory_order_seq_cst) : 0;
  const bool open = window.count && before == window.number;
  const bool mine = same_stream(plan->stream, plan->ring->context) && window.step == step &&
                    window.moves == moved && window.streamed == streamed;
  *closed = mine && window.count && before == (window.number & ~(uint64_t)1);
  window.number = number | 1;
  window.context = plan->ring->context;
  window.stream = plan->stream;
  window.thread = pthread_self();
  window.streamed = streamed;
  window.step = step;
  window.moves = moved;
  return open && mine;
}

void ahead_launch(struct plan *plan, bool streamed, CUevent begin) {
  unsigned found = READ_EARLY | WRITE_EARLY | SCALAR;
  bool closed;
  const bool may = allowed();
  pthread_mutex_lock(&mutex);
  const bool going_on = goes_on(plan, streamed, may, &closed);
  if (!going_on)
    window.count = 0;
  if (window.count == AHEAD_LAUNCHES)
    drop_first();
  struct epoch *epoch = &window.epochs[window.count];
  epoch->begin = begin;
  epoch->regions.count = 0;
  const bool whole = name_launch(plan, &epoch->regions);
  if (whole && going_on) {
    found = 0;
    sort(&epoch->regions);
    for (unsigned i = 0; i < window.count; i++) {
      sort(&window.epochs[i].regions);
      found |= conflicts(&epoch->regions, &window.epochs[i].regions);
    }
    if (streamed) /* its kernels all run in their place */
      found &= ~(unsigned)SCALAR;
  }
  plan->ahead.bulk = !(found & (READ_EARLY | WRITE_EARLY));
  plan->ahead.scalars = plan->ahead.bulk && !(found & SCALAR);
  plan->ahead.base = plan->ahead.bulk ? window.epochs[0].begin : begin;
  window.count++;
  /* The side stream is going to wait for this launch's place: what was before is of no matter to the next. */
  while (!plan->ahead.scalars && window.count > 1)
    drop_first();
  pthread_mutex_unlock(&mutex);
  if (!whole)
    ahead_close("a launch of more tensors than are kept account of");
  if (plan->ahead.bulk)
    report_add(launches_ahead, 1);
  if (!closed)
    return;
  report_add(ahead_closed, 1);
  const char *what = atomic_load_explicit(&closed_by, memory_order_relaxed);
  if (what)
    report_reason("launches of a step waited for those in front of them: %s came between", what);
}

/* A known launch after the last of ours. False: on another stream, or there is no memory. */
static bool follow(CUstream stream, bool (*name)(const void *, struct regions *),
                   const void *what) {
  const CUcontext context = touch_context(stream);
  pthread_mutex_lock(&mutex);
  bool all = window.count && same_stream(stream, context);
  if (all)
    all = name(what, &window.epochs[window.count - 1].regions);
  pthread_mutex_unlock(&mutex);
  return all;
}

static bool name_direct(const void *plan, struct regions *list) {
  return name_launch(plan, list);
}

void ahead_direct(const struct plan *plan) {
  if (!ahead_open())
    return;
  if (!follow(plan->stream, name_direct, plan))
    ahead_close("a launch of the same kind on another stream");
}

struct foreign_launch {
  const struct foreach_list *list;
  const void *metadata;
  unsigned blocks;
  struct regions *to;
  bool all;
};

/* As if elements were of the widest type: the list doesn't say. */
static void name_block(void *context, unsigned tensor, uint64_t first, uint64_t elements) {
  enum { ELEMENT_MOST = 16 };
  struct foreign_launch *launch = context;
  for (unsigned i = 0; i < launch->list->lists; i++)
    launch->all &= add(launch->to, foreach_address(launch->list, launch->metadata, i, tensor),
                       (size_t)(first + elements) * ELEMENT_MOST, WRITTEN);
}

static bool name_foreach(const void *what, struct regions *list) {
  struct foreign_launch launch = *(const struct foreign_launch *)what;
  launch.to = list;
  return foreach_blocks(launch.list, launch.metadata, launch.blocks, name_block, &launch) &&
         launch.all;
}

void ahead_foreign(CUfunction function, unsigned blocks, CUstream stream,
                   void **kernel_parameters) {
  if (!ahead_open())
    return;
  const struct foreach_list *list = kernel_parameters ? state_adding_list(function) : NULL;
  const struct foreign_launch launch = {
      .list = list, .metadata = list ? kernel_parameters[0] : NULL, .blocks = blocks, .all = true};
  if (!list || !follow(stream, name_foreach, &launch))
    ahead_close("another kernel's launch");
}
