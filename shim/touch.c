/* Streams and foreign use of watched ranges (touch.h, and state_foreign_access and state_stream_destroyed of state.h).

   Between a touch and the program's enqueue there is a moment in which a move may record its event: a program whose thread
   uses state just while another steps it races with itself, but one that uses the neighbour in the same piece doesn't.
   A move therefore gives up a piece that was touched since it began to wait; what remains is the time of one driver call. */
#include "touch.h"
#include "../policy/report.h"
#include "drive.h"
#include "driver.h"
#include "graphs.h"
#include "process.h"
#include "quiet.h"
#include "state.h"
#include "unknown.h"
#include <pthread.h>

enum { ORPHANS = 64 };

/* ---- who ---- */

CUcontext touch_context(CUstream stream) {
  CUcontext context = NULL;
  const bool special = !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
  if (special ? driver.cuCtxGetCurrent(&context) : driver.cuStreamGetCtx(stream, &context))
    return NULL;
  return context;
}

bool touch_captured(CUstream stream) {
  return process_capture_open() && process_capturing(stream, false);
}

struct toucher touch_by(CUstream stream) {
  return (struct toucher){stream, touch_context(stream), touch_captured(stream)};
}

/* ---- marking; under the table's lock ---- */

/* Apart from what every launch does. */
static void __attribute__((noinline)) tell_lost(const struct range *range) {
  char size[REPORT_SIZE_BYTES];
  report_reason("an allocation of %s is used by more than %d streams: its state stays where it is",
                report_size_text(range->bytes, size), (int)RANGE_STREAMS);
}

/* `context`: of the stream, or NULL for the range's own. */
static void note(struct range *range, uintptr_t handle, CUcontext context) {
  const uintptr_t other = (uintptr_t)context;
  for (size_t i = 0; i < RANGE_STREAMS; i++) {
    struct range_stream *slot = &range->streams[i];
    uintptr_t held = atomic_load_explicit(&slot->stream, memory_order_acquire);
    if (!held && atomic_compare_exchange_strong(&slot->stream, &held, RANGE_STREAM_CLAIMED)) {
      atomic_store_explicit(&slot->context, other, memory_order_relaxed);
      atomic_store_explicit(&slot->stream, handle, memory_order_release); /* after its context */
      held = handle;
    }
    if (held != handle || atomic_load_explicit(&slot->context, memory_order_relaxed) != other)
      continue;
    if (!atomic_load_explicit(&slot->since_wait, memory_order_relaxed)) /* keeps the line shared */
      atomic_store_explicit(&slot->since_wait, true, memory_order_release);
    return;
  }
  if (!atomic_exchange(&range->streams_lost, true))
    tell_lost(range);
}

void touch_stream(struct range *range, CUstream stream) {
  note(range, stream ? (uintptr_t)stream : (uintptr_t)CU_STREAM_LEGACY, NULL);
}

uintptr_t touch_state_end(const struct range *range, uintptr_t address) {
  size_t from = 0, to = range->known_count;
  while (from < to) {
    size_t middle = from + (to - from) / 2;
    if (range->known[middle].end <= address)
      from = middle + 1;
    else
      to = middle;
  }
  return from < range->known_count && range->known[from].start <= address ? range->known[from].end
                                                                          : address + 1;
}

bool touch_mark(struct range *range, uintptr_t from, uintptr_t to) {
  bool host = false;
  size_t last = (to - 1 - range->base) / range->piece_bytes;
  for (size_t i = (from - range->base) / range->piece_bytes; i <= last && i < range->piece_count;
       i++) {
    struct piece *piece = &range->pieces[i];
    if (!atomic_load_explicit(&piece->foreign_touched, memory_order_relaxed))
      atomic_store_explicit(&piece->foreign_touched, true, memory_order_relaxed);
    host |= piece->tier == PIECE_HOST; /* a hint for the counter; may be old */
  }
  return host;
}

void touch_use(struct range *range, uintptr_t from, uintptr_t to) {
  const size_t last = (to - 1 - range->base) / range->piece_bytes;
  for (size_t i = (from - range->base) / range->piece_bytes; i <= last && i < range->piece_count;
       i++)
    if (!atomic_load_explicit(&range->pieces[i].foreign_used, memory_order_relaxed))
      atomic_store_explicit(&range->pieces[i].foreign_used, true, memory_order_relaxed);
}

bool touch_watched(const struct range *range) {
  return atomic_load_explicit(&range->has_state, memory_order_relaxed) ||
         atomic_load_explicit(&range->host_pieces, memory_order_relaxed) ||
         atomic_load_explicit(&range->drive_pieces, memory_order_relaxed);
}

bool touch_range(struct range *range, const struct toucher *by) {
  if (by->captured)
    graphs_hold(GRAPHS_CAPTURES, range);
  if (!touch_watched(range))
    return false;
  note(range, by->stream ? (uintptr_t)by->stream : (uintptr_t)CU_STREAM_LEGACY,
       by->context == range->context ? NULL : by->context);
  return true;
}

/* ---- what is on drives; under the table's lock but for touch_bring ---- */

/* seq_cst, as all of it: whoever unmaps stores the tier and then reads this (drive.h). */
void touch_again(struct range *range) {
  atomic_fetch_add(&range->touches, 1);
}

bool touch_absent(const struct range *range, uintptr_t from, uintptr_t to) {
  if (!atomic_load(&range->drive_pieces))
    return false;
  const size_t last = (to - 1 - range->base) / range->piece_bytes;
  for (size_t i = (from - range->base) / range->piece_bytes; i <= last && i < range->piece_count;
       i++)
    if (range->pieces[i].tier == PIECE_DRIVE)
      return true;
  return false;
}

void touch_want(struct touch_wants *wants, const struct range *range, uintptr_t from,
                uintptr_t to) {
  if (!touch_absent(range, from, to))
    return;
  if (wants->count == TOUCH_RUNS) {
    wants->all = true;
    return;
  }
  wants->runs[wants->count].address = from;
  wants->runs[wants->count++].bytes = to - from;
}

CUresult touch_bring(const struct touch_wants *wants) {
  if (wants->all)
    return range_any_drive() ? drive_fault_all(NULL) : CUDA_SUCCESS;
  for (unsigned i = 0; i < wants->count; i++)
    DRIVER_TRY(drive_fault_bytes(wants->runs[i].address, wants->runs[i].bytes));
  return CUDA_SUCCESS;
}

static _Atomic bool graphs_reach_all;

void touch_graphs_reach_all(void) {
  atomic_store(&graphs_reach_all, true);
}

void touch_written(struct range *range) {
  atomic_fetch_add_explicit(&range->writes, 1, memory_order_release);
}

static _Atomic uint64_t unseen, unreadable; /* seq_cst, as touches */

void touch_unseen(void) {
  atomic_fetch_add(&unreadable, 1);
  atomic_fetch_add(&unseen, 1);
}

uint64_t touch_unseen_count(void) {
  return atomic_load(&unseen);
}

uint64_t touch_unreadable_count(void) {
  return atomic_load(&unreadable);
}

bool touch_only(const struct range *range, CUstream stream, CUstream own) {
  if (!stream)
    stream = CU_STREAM_LEGACY;
  if (stream == CU_STREAM_PER_THREAD) /* of this thread or of another: they have one name */
    return false;
  for (size_t i = 0; i < RANGE_STREAMS; i++) {
    const struct range_stream *slot = &range->streams[i];
    const uintptr_t held = atomic_load_explicit(&slot->stream, memory_order_acquire);
    if (!held || !atomic_load_explicit(&slot->since_wait, memory_order_acquire) ||
        held == (uintptr_t)stream || held == (uintptr_t)own)
      continue;
    if (held == RANGE_STREAM_CLAIMED || held == (uintptr_t)CU_STREAM_PER_THREAD ||
        atomic_load_explicit(&slot->context, memory_order_relaxed))
      return false;
    /* NOLINTNEXTLINE(performance-no-int-to-ptr): kept as an integer so that it can be an atomic */
    if (driver.cuStreamQuery((CUstream)held) != CUDA_SUCCESS)
      return false;
  }
  CUevent events[8];
  const size_t count = touch_orphans(range->context, events, 8);
  for (size_t i = 0; i < count; i++)
    if (driver.cuEventQuery(events[i]) != CUDA_SUCCESS)
      return false;
  return count < 8;
}

/* ---- graphs ---- */

/* Of the context that the stream belongs to: from another it couldn't be waited for. Not under the
   enqueue lock, which is held while a driver blocks on a full queue: a move that is under way gives
   up what was touched meanwhile. */
static CUresult touch_all(CUstream stream, bool bring) {
  uintptr_t low, high;
  range_watched(&low, &high);
  if (low >= high)
    return CUDA_SUCCESS;
  const CUcontext context = touch_context(stream);
  if (!context)
    return CUDA_SUCCESS; /* the launch will fail as well */
  range_table_hold();
  struct range *range;
  for (size_t i = 0; (range = range_nth(i)); i++)
    if (range->context == context) {
      touch_stream(range, stream);
      touch_again(range);
    }
  range_table_release();
  const struct touch_wants wants = {.all = bring};
  return touch_bring(&wants);
}

CUresult touch_everything(CUstream stream) {
  touch_unseen();
  return touch_all(stream, true);
}

/* What a graph names it holds, and what is held stays off drives without being marked. */
CUresult touch_graph_launch(CUstream stream) {
  if (atomic_load(&graphs_reach_all))
    return touch_everything(stream);
  atomic_fetch_add(&unseen, 1);
  return touch_all(stream, false);
}

void touch_hold_everything(struct graph_holder holder) {
  range_table_hold();
  struct range *range;
  for (size_t i = 0; (range = range_nth(i)); i++)
    graphs_hold(holder, range);
  range_table_release();
}

/* ---- copies and memsets ---- */

CUresult state_foreign_access(uintptr_t address, size_t bytes, CUstream stream, bool writes) {
  if (unknown_looking())
    unknown_access(address, bytes);
  uintptr_t from, to;
  if (process_capture_open()) /* what a capture names stays, be it watched or not */
    range_bounds(&from, &to);
  else
    range_watched(&from, &to);
  if (!bytes || address < from || address >= to)
    return CUDA_SUCCESS;
  bool host = false;
  const struct toucher by = touch_by(stream);
  range_table_hold();
  struct range *range = range_held(address);
  struct touch_wants wants;
  wants.count = 0;
  wants.all = false;
  if (range) {
    const size_t room = range->bytes - (address - range->base);
    const uintptr_t end = address + (bytes < room ? bytes : room);
    if (writes && touch_watched(range)) {
      touch_written(range);
      host = touch_mark(range, address, end); /* before the touch is counted (drive.h) */
    }
    if (touch_range(range, &by)) {
      touch_use(range, address, end);
      touch_again(range);
    }
    if (by.captured)
      touch_want(&wants, range, range->base, range->base + range->bytes);
    else
      touch_want(&wants, range, address, end);
  }
  range_table_release();
  if (host)
    report_add(foreign_touches, 1);
  return touch_bring(&wants);
}

size_t touch_same_memory(uintptr_t address, size_t bytes) {
  uintptr_t low, high;
  range_watched(&low, &high);
  if (!bytes || address < low || address >= high)
    return bytes;
  size_t same = bytes;
  range_table_hold();
  const struct range *range = range_held(address);
  if (range) {
    const size_t first = (address - range->base) / range->piece_bytes;
    size_t end = first + 1;
    while (end < range->piece_count && range->pieces[end].tier == range->pieces[first].tier)
      end++;
    const size_t to_border = range->base + end * range->piece_bytes - address;
    same = end < range->piece_count && to_border < bytes ? to_border : bytes;
  }
  range_table_release();
  return same;
}

/* ---- destroyed streams ---- */

/* Protects the orphans; never held across a driver call. */
static pthread_mutex_t orphans_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
  CUcontext context;
  CUevent event;
} orphans[ORPHANS];
static size_t orphan_count;

/* Frees the stream's slots; true when it has touched something since the last wait. Its event will be
   waited for where its context's memory moves, and nowhere else. */
static bool release_slots(uintptr_t handle) {
  bool pending = false;
  range_table_hold();
  struct range *range;
  for (size_t i = 0; (range = range_nth(i)); i++)
    for (size_t k = 0; k < RANGE_STREAMS; k++) {
      struct range_stream *slot = &range->streams[k];
      if (atomic_load_explicit(&slot->stream, memory_order_relaxed) != handle)
        continue;
      const bool since_wait = atomic_exchange(&slot->since_wait, false);
      pending |= since_wait;
      if (since_wait && atomic_exchange_explicit(&slot->context, 0, memory_order_relaxed))
        atomic_store_explicit(&range->immovable, true, memory_order_relaxed);
      atomic_store_explicit(&slot->stream, 0, memory_order_release);
    }
  range_table_release();
  return pending;
}

static bool add_orphan(CUcontext context, CUevent event) {
  pthread_mutex_lock(&orphans_mutex);
  bool room = orphan_count < ORPHANS;
  if (room) {
    orphans[orphan_count].context = context;
    orphans[orphan_count++].event = event;
  }
  pthread_mutex_unlock(&orphans_mutex);
  return room;
}

/* Makes an event stand for what the stream has queued. False: the caller must wait for the stream
 * itself. */
static bool leave_event(CUstream stream) {
  CUcontext context = NULL, current = NULL;
  CUevent event;
  if (driver.cuStreamGetCtx(stream, &context) || driver.cuCtxGetCurrent(&current))
    return false;
  const bool push = context != current;
  if (push && driver.cuCtxPushCurrent_v2(context))
    return false;
  bool left = !driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  if (left) {
    left = !driver.cuEventRecord(event, stream) && add_orphan(context, event);
    if (!left)
      (void)driver.cuEventDestroy_v2(event);
  }
  if (push)
    (void)driver.cuCtxPopCurrent_v2(&current);
  return left;
}

void state_stream_destroyed(CUstream stream) {
  uintptr_t from, to;
  range_watched(&from, &to);
  if (from >= to || !release_slots((uintptr_t)stream) || process_capturing(stream, false))
    return; /* what a capture holds is not queued */
  CUstreamCaptureMode mode = quiet_begin();
  if (!leave_event(stream))
    (void)process_note(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
  quiet_end(mode);
}

size_t touch_orphans(CUcontext context, CUevent *events, size_t limit) {
  size_t count = 0;
  pthread_mutex_lock(&orphans_mutex);
  for (size_t i = 0; i < orphan_count && count < limit; i++)
    if (orphans[i].context == context)
      events[count++] = orphans[i].event;
  pthread_mutex_unlock(&orphans_mutex);
  return count;
}

void touch_orphan_done(CUevent event) {
  pthread_mutex_lock(&orphans_mutex);
  for (size_t i = 0; i < orphan_count; i++)
    if (orphans[i].event == event) {
      orphans[i] = orphans[--orphan_count];
      break;
    }
  pthread_mutex_unlock(&orphans_mutex);
  (void)driver.cuEventDestroy_v2(event);
}

void touch_forget_context(CUcontext context) {
  range_table_hold(); /* its streams are gone, and their work was done before */
  struct range *range;
  for (size_t i = 0; (range = range_nth(i)); i++)
    for (size_t k = 0; k < RANGE_STREAMS; k++) {
      struct range_stream *slot = &range->streams[k];
      if (atomic_load_explicit(&slot->context, memory_order_relaxed) != (uintptr_t)context)
        continue;
      atomic_store_explicit(&slot->since_wait, false, memory_order_relaxed);
      atomic_store_explicit(&slot->context, 0, memory_order_relaxed);
      atomic_store_explicit(&slot->stream, 0, memory_order_release);
    }
  range_table_release();
  pthread_mutex_lock(&orphans_mutex);
  for (size_t i = orphan_count; i > 0; i--)
    if (orphans[i - 1].context == context)
      orphans[i - 1] = orphans[--orphan_count];
  pthread_mutex_unlock(&orphans_mutex);
}
