/* Pieces going to drives and coming back (drive.h). Callers: state.c and drive.c, under the enqueue lock.

   Out, a batch at a time: a unit of the store and a frame for each piece; the host waits for frames and for the streams that touched
   the ranges; copies on the move stream; then per piece: the tier is stored, `touches` is read again, the mapping and the memory go,
   and the frame is written behind. Until the mapping goes everything can be undone.

   In: frames are asked for, some ahead; a piece's memory is made and mapped at its address, where nothing is, and filled from the frame. */
#include "../nvme/clock.h"
#include "../policy/report.h"
#include "../policy/trace.h"
#include "drain.h"
#include "drive.h"
#include "driver.h"
#include "frames.h"
#include "mark.h"
#include "process.h"
#include "quiet.h"
#include "tier.h"
#include "touch.h"
#include <stdio.h>
#include <string.h>

enum { BATCH = DRAIN_RANGES, CONTEXTS = 16 };

static const uint64_t look_ns = 100000000, say_waiting_ns = 20000000000;

struct batch {
  size_t count;
  struct move_item items[BATCH];
  struct ticket *tickets[BATCH];
  uint32_t units[BATCH];
  void *frames[BATCH];
};

/* Given up while copies were queued: their frames can't be let go of before. */
static struct left {
  CUcontext context; /* NULL: free */
  CUevent copied;
  struct batch batch;
} left[CONTEXTS];

static CUdeviceptr item_address(const struct move_item *item) {
  return item->range->base + item->piece * item->range->piece_bytes;
}

/* ---- out ---- */

static void undo_one(struct frames *frames, struct batch *batch, size_t i) {
  ticket_release(batch->tickets[i], false);
  frames_forget_unit(frames, batch->units[i]);
}

static void undo(struct frames *frames, struct batch *batch) {
  for (size_t i = 0; i < batch->count; i++)
    undo_one(frames, batch, i);
  batch->count = 0;
}

/* True when nothing is left of an earlier batch. */
static bool clean_up(CUcontext context, struct frames *frames) {
  for (size_t i = 0; i < CONTEXTS; i++)
    if (left[i].context == context) {
      if (driver.cuEventQuery(left[i].copied) != CUDA_SUCCESS)
        return false;
      undo(frames, &left[i].batch);
      left[i].context = NULL;
    }
  return true;
}

static void leave(CUcontext context, CUevent copied, const struct batch *batch) {
  for (size_t i = 0; i < CONTEXTS; i++)
    if (!left[i].context) {
      left[i] = (struct left){context, copied, *batch};
      return;
    }
  /* as many contexts as can move at all: there is room */
}

/* Units and tickets. The batch shrinks to what there is room for. */
static void claim(struct frames *frames, struct batch *batch) {
  struct store *store = frames_store();
  char why[256] = "";
  size_t made = 0;
  for (; made < batch->count; made++) {
    if (!store || !store_allocate(store, &batch->units[made], why, sizeof why))
      break;
    batch->tickets[made] = ticket_make(frames, TICKET_ALONE);
    batch->frames[made] =
        batch->tickets[made] ? ticket_add(batch->tickets[made], batch->units[made], true) : NULL;
    if (!batch->frames[made]) {
      if (batch->tickets[made])
        ticket_drop(batch->tickets[made]);
      store_release(store, batch->units[made]);
      break;
    }
    ticket_go(batch->tickets[made]);
  }
  if (*why)
    report_reason("part of the state stays where it is: %s", why);
  batch->count = made;
}

static bool await(const struct batch *batch, uint64_t deadline_ns) {
  for (size_t i = 0; i < batch->count; i++) {
    const uint64_t now = clock_now_ns();
    const enum ticket_state state =
        ticket_wait(batch->tickets[i], deadline_ns > now ? deadline_ns - now : 0, NULL);
    if (state == TICKET_WAITING)
      move_say_late();
    if (state != TICKET_READY)
      return false;
  }
  return true;
}

/* *queued: copies may still be under way when it fails. */
static CUresult copy_out(const struct batch *batch, CUstream stream, CUevent copied, bool *queued) {
  CUresult result = CUDA_SUCCESS;
  size_t i = 0;
  *queued = false;
  for (; i < batch->count && !result; i++)
    result =
        process_note(driver.cuMemcpyDtoHAsync_v2(batch->frames[i], item_address(&batch->items[i]),
                                                 batch->items[i].range->piece_bytes, stream),
                     "cuMemcpyDtoHAsync");
  if (!result)
    result = process_note(driver.cuEventRecord(copied, stream), "cuEventRecord");
  if (result) {
    *queued = driver.cuStreamSynchronize(stream) != CUDA_SUCCESS; /* ours alone, and short */
    return result;
  }
  result = drain_event(copied, clock_now_ns() + move_wait_ns);
  *queued = result != CUDA_SUCCESS;
  return result;
}

/* True when the piece is on its way to the drive and mapped nowhere. */
static bool exchange(const struct batch *batch, size_t i, uint64_t unseen) {
  const struct move_item *item = &batch->items[i];
  struct range *range = item->range;
  const CUmemGenericAllocationHandle handle = move_item_piece(item)->handle;
  const enum piece_tier tier = move_item_piece(item)->tier;
  range_piece_to_drive(range, item->piece, batch->units[i]);
  /* A launch under way elsewhere counts its touch before it reads the tier: one of us sees the other. */
  if (atomic_load(&range->touches) != range->touches_noted || touch_unseen_count() != unseen ||
      !range_movable(range) ||
      process_note(driver.cuMemUnmap(item_address(item), range->piece_bytes), "cuMemUnmap")) {
    range_piece_set(range, item->piece, handle, tier);
    return false;
  }
  move_drop_handle(range->device, tier, handle, range->piece_bytes);
  return true;
}

/* *more: the next batch may be tried. */
static void send_batch(struct frames *frames, struct batch *batch, uint64_t unseen, CUstream stream,
                       bool wait, size_t *moved, bool *more) {
  struct range *ranges[BATCH];
  const CUcontext context = batch->items[0].range->context;
  const size_t wanted = batch->count;
  CUstream ours;
  CUevent copied;
  bool queued;
  *more = false;
  if (!move_copier(batch->items[0].range, &ours, &copied))
    return;
  claim(frames, batch);
  for (size_t i = 0; i < batch->count; i++)
    ranges[i] = batch->items[i].range;
  if (!batch->count)
    return;
  if (!await(batch, clock_now_ns() + move_wait_ns)) {
    undo(frames, batch);
    return;
  }
  CUresult result =
      drain_ranges(context, ranges, batch->count, stream, wait, clock_now_ns() + move_wait_ns);
  if (result) {
    if (result == CUDA_ERROR_NOT_READY)
      move_say_late();
    undo(frames, batch);
    return;
  }
  result = copy_out(batch, ours, copied, &queued);
  if (result) {
    if (result == CUDA_ERROR_NOT_READY)
      move_say_late();
    if (queued)
      leave(context, copied, batch);
    else
      undo(frames, batch);
    return;
  }
  for (size_t i = 0; i < batch->count; i++) {
    if (exchange(batch, i, unseen)) {
      ticket_release(batch->tickets[i], true);
      ++*moved;
    } else {
      undo_one(frames, batch, i);
    }
  }
  *more = batch->count == wanted;
}

static size_t batch_most(const struct frames *frames) {
  const size_t share = frames_count(frames) / 4;
  return share < 1 ? 1 : share < BATCH ? share : BATCH;
}

CUresult drive_send(const struct move_item *items, size_t count, uint64_t unseen, CUstream stream,
                    bool wait, size_t *moved) {
  static bool said;
  *moved = 0;
  struct frames *frames = count ? frames_find(items[0].range->context) : NULL;
  if (!frames)
    return CUDA_SUCCESS;
  const bool marked = mark_begin("offload move");
  const uint64_t began_ns = clock_now_ns();
  CUstreamCaptureMode mode = quiet_begin();
  bool more = clean_up(items[0].range->context, frames);
  for (size_t i = 0; i < count && more;) {
    struct batch batch = {0};
    for (; i < count && batch.count < batch_most(frames); i++)
      if (items[i].range->pieces[items[i].piece].tier != PIECE_DRIVE)
        batch.items[batch.count++] = items[i];
    if (batch.count)
      send_batch(frames, &batch, unseen, stream, wait, moved, &more);
    wait = false; /* nothing of this thread's has been queued since */
  }
  quiet_end(mode);
  const uint64_t ended_ns = clock_now_ns(), ns = ended_ns - began_ns;
  char size[REPORT_SIZE_BYTES];
  report_add(move_ns, ns);
  if (*moved) {
    report_add(drive_pieces_out, *moved);
    trace_add(&(struct trace_span){.track = TRACE_MOVE,
                                   .name = "to drives",
                                   .begin_ns = began_ns,
                                   .end_ns = ended_ns,
                                   .bytes = *moved * items[0].range->piece_bytes});
    report_line(said ? LOG_VERBOSE : LOG_NORMAL, "moved %s of optimizer state to drives in %.1f ms",
                report_size_text(*moved * items[0].range->piece_bytes, size), (double)ns / 1e6);
    said = true;
  }
  mark_end(marked);
  return CUDA_SUCCESS;
}

void drive_forget_context(CUcontext context, bool gone) {
  struct frames *frames = frames_find(context);
  if (frames && !gone)
    (void)clean_up(context, frames);
  for (size_t i = 0; gone && i < CONTEXTS; i++)
    if (left[i].context == context) {
      if (frames) /* else it kept its memory, since these were open */
        undo(frames, &left[i].batch);
      left[i].context = NULL;
    }
}

/* ---- in ---- */

/* Device memory while that keeps room for another piece, else host memory, of the budget or beyond it. */
static CUresult make_memory(const struct range *range, CUmemGenericAllocationHandle *handle,
                            enum piece_tier *tier) {
  const size_t bytes = range->piece_bytes;
  size_t free_bytes = 0, total = 0;
  CUmemAllocationProp properties = tier_properties(tier_device(range->device));
  *tier = PIECE_DEVICE;
  if (!driver.cuMemGetInfo_v2(&free_bytes, &total) && free_bytes / bytes >= 2 &&
      !driver.cuMemCreate(handle, bytes, &properties, 0))
    return CUDA_SUCCESS;
  *tier = PIECE_HOST;
  CUresult result = tier_room(range->device) >= bytes ? tier_create(range->device, bytes, handle)
                                                      : CUDA_ERROR_OUT_OF_MEMORY;
  if (!result)
    return result;
  result = tier_create_beyond(range->device, bytes, handle);
  if (!result)
    report_reason(
        "state that was wanted back from drives takes host memory beyond the budget (%s): "
        "neither the device nor the budget had room for it",
        report.budget_limited_by);
  return result ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult fill(const struct range *range, CUdeviceptr at, enum piece_tier tier,
                     const void *frame, CUstream stream) {
  if (tier == PIECE_HOST) {
    /* NOLINTNEXTLINE(performance-no-int-to-ptr): host memory mapped at an address of the driver's */
    memcpy((void *)at, frame, range->piece_bytes);
    return CUDA_SUCCESS;
  }
  CUresult result = driver.cuMemcpyHtoDAsync_v2(at, frame, range->piece_bytes, stream);
  CUresult waited = driver.cuStreamSynchronize(stream); /* ours alone, and short */
  return result ? result : waited;
}

/* The piece's bytes are in `frame`: it gets memory at its address. Undone when it fails. */
static CUresult restore(const struct move_item *item, const void *frame, CUstream stream) {
  struct range *range = item->range;
  struct piece *piece = move_item_piece(item);
  const CUdeviceptr at = item_address(item);
  CUmemGenericAllocationHandle handle;
  enum piece_tier tier;
  CUmemLocation location;
  CUresult result = make_memory(range, &handle, &tier);
  if (result)
    return result;
  const bool host =
      tier == PIECE_HOST && tier_location(range->device, range->piece_bytes, &location);
  result = process_note(driver.cuMemMap(at, range->piece_bytes, 0, handle, 0), "cuMemMap");
  if (result)
    goto created;
  result = process_note(tier_open(at, range->piece_bytes, range->device, host ? &location : NULL),
                        "cuMemSetAccess");
  if (!result && host)
    range_dont_fork(at, range->piece_bytes);
  if (!result)
    result = process_note(fill(range, at, tier, frame, stream), "cuMemcpyHtoDAsync");
  if (result)
    goto mapped;
  range_piece_set(range, item->piece, handle, tier);
  piece->streak = 0;
  piece->streak_needed = 2;
  piece->provisional = false;
  return CUDA_SUCCESS;
mapped:
  (void)driver.cuMemUnmap(at, range->piece_bytes);
created:
  move_drop_handle(range->device, tier, handle, range->piece_bytes);
  return result == CUDA_ERROR_OUT_OF_MEMORY ? result : CUDA_ERROR_UNKNOWN;
}

static void say_unreadable(const struct ticket *ticket) {
  char sentence[320];
  snprintf(sentence, sizeof sentence,
           "optimizer state can't be read back (%s); this process must go back to its last "
           "checkpoint",
           ticket_why(ticket));
  process_stop(sentence);
}

enum ticket_state drive_await(struct ticket *ticket, CUstream stream, const char *what) {
  for (uint64_t looks = 1;; looks++) {
    const enum ticket_state state = ticket_wait(ticket, look_ns, NULL);
    const CUresult gpu = state == TICKET_WAITING ? driver.cuStreamQuery(stream) : CUDA_SUCCESS;
    if (gpu && gpu != CUDA_ERROR_NOT_READY)
      (void)process_note(gpu, "cuStreamQuery");
    else if (state == TICKET_WAITING) {
      if (looks % (say_waiting_ns / look_ns) == 0)
        report_line(LOG_NORMAL, "still waiting for %s", what);
      continue;
    }
    if (state == TICKET_FAILED)
      say_unreadable(ticket);
    return state;
  }
}

static CUresult bring_batch(struct frames *frames, struct batch *batch, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  for (size_t i = 0; i < batch->count; i++) {
    batch->units[i] = move_item_piece(&batch->items[i])->unit;
    batch->tickets[i] = ticket_make(frames, TICKET_ALONE);
    batch->frames[i] =
        batch->tickets[i] ? ticket_add(batch->tickets[i], batch->units[i], false) : NULL;
    if (batch->frames[i]) {
      ticket_go(batch->tickets[i]);
      continue;
    }
    if (batch->tickets[i])
      ticket_drop(batch->tickets[i]);
    result = CUDA_ERROR_OUT_OF_MEMORY;
    batch->count = i;
  }
  for (size_t i = 0; i < batch->count; i++) {
    bool brought = false;
    const enum ticket_state state =
        drive_await(batch->tickets[i], stream, "state that the program wants back from a drive");
    if (state != TICKET_READY) {
      result = CUDA_ERROR_UNKNOWN;
    } else if (!result) {
      result = restore(&batch->items[i], batch->frames[i], stream);
      brought = !result;
    }
    ticket_release(batch->tickets[i], false);
    if (brought) {
      frames_forget_unit(frames, batch->units[i]);
      report_add(drive_faults, 1);
      report_add(drive_fault_bytes, batch->items[i].range->piece_bytes);
    }
  }
  return result;
}

CUresult drive_bring(const struct move_item *items, size_t count) {
  CUresult result = CUDA_SUCCESS;
  CUstream stream;
  CUevent copied;
  size_t first = 0, brought = 0;
  while (first < count && move_item_piece(&items[first])->tier != PIECE_DRIVE)
    first++;
  if (first == count)
    return result;
  const bool marked = mark_begin("offload fault");
  struct frames *frames = frames_find(items[0].range->context);
  const uint64_t began_ns = clock_now_ns();
  CUstreamCaptureMode mode = quiet_begin();
  if (!frames || !move_copier(items[0].range, &stream, &copied)) {
    report_reason("state that the program wants can't be brought back from drives: %s",
                  frames ? "no stream could be made for the copy; free device memory"
                         : "its context is going away");
    result = CUDA_ERROR_UNKNOWN;
  }
  for (size_t i = first; i < count && !result;) {
    struct batch batch = {0};
    for (; i < count && batch.count < batch_most(frames); i++)
      if (move_item_piece(&items[i])->tier == PIECE_DRIVE)
        batch.items[batch.count++] = items[i];
    brought += batch.count;
    result = bring_batch(frames, &batch, stream);
  }
  quiet_end(mode);
  const uint64_t ended_ns = clock_now_ns();
  report_add(drive_fault_ns, ended_ns - began_ns);
  trace_add(&(struct trace_span){.track = TRACE_MOVE,
                                 .name = "from drives",
                                 .begin_ns = began_ns,
                                 .end_ns = ended_ns,
                                 .bytes = brought * items[0].range->piece_bytes});
  range_watch_changed();
  mark_end(marked);
  return result;
}
