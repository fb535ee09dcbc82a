/* Moving pieces (move.h). A batch of up to BATCH pieces at a time:

     1  new handles on the other tier, mapped at scratch addresses and opened: nothing of the
        program's is touched
     2  events on the streams that touched the ranges; the host waits for them
     3  copies on a stream of ours, an event, the host waits for it
     4  per piece: unmap, map and open at the old address, then release the old handle, which until
        then can be put back
     5  the scratch mappings go

   The host waits at most move_wait_ns: in a pipeline of ranks one stream may wait for a peer that
   waits for this thread. When that time is over the batch is given up; copies already queued are
   left alone, and the batch is cleaned up when they are done. Until then nothing else moves in that
   context. */
#include "move.h"
#include "../nvme/clock.h"
#include "../policy/report.h"
#include "../policy/trace.h"
#include "drain.h"
#include "driver.h"
#include "mark.h"
#include "process.h"
#include "quiet.h"
#include "tier.h"
#include <string.h>

enum { BATCH = DRAIN_RANGES, CONTEXTS = 16 };

uint64_t move_wait_ns = 20000000000;

struct batch {
  size_t count;
  struct move_item items[BATCH];
  CUmemGenericAllocationHandle handles[BATCH];
  uint64_t touches[BATCH]; /* of the item's range, before the wait */
  enum piece_tier tier;
};

/* What moving needs in a context; made once, at the first move. */
static struct mover {
  CUcontext context;
  CUdevice device;
  CUstream stream;
  CUevent copied;      /* the last batch's copies */
  CUdeviceptr scratch; /* BATCH pieces of addresses */
  size_t piece_bytes;
  struct batch left; /* given up while its copies were queued; count 0: none */
  bool broken;       /* a scratch mapping could not be removed: nothing moves here any more */
} movers[CONTEXTS];
static size_t mover_count;

/* ---- what moving needs ---- */

static struct mover *mover_of(CUcontext context, CUdevice device, size_t piece_bytes) {
  for (size_t i = 0; i < mover_count; i++)
    if (movers[i].context == context)
      return &movers[i];
  if (mover_count == CONTEXTS)
    return NULL;
  struct mover *mover = &movers[mover_count];
  memset(mover, 0, sizeof *mover);
  if (process_note(driver.cuStreamCreate(&mover->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate"))
    return NULL;
  if (driver.cuEventCreate(&mover->copied, CU_EVENT_DISABLE_TIMING))
    goto stream;
  if (driver.cuMemAddressReserve(&mover->scratch, BATCH * piece_bytes, piece_bytes, 0, 0))
    goto event;
  mover->context = context;
  mover->device = device;
  mover->piece_bytes = piece_bytes;
  mover_count++;
  return mover;
event:
  (void)driver.cuEventDestroy_v2(mover->copied);
stream:
  (void)driver.cuStreamDestroy_v2(mover->stream);
  return NULL;
}

void move_drop_handle(CUdevice device, enum piece_tier tier, CUmemGenericAllocationHandle handle,
                      size_t bytes) {
  if (tier == PIECE_HOST)
    tier_release(device, handle, bytes);
  else
    (void)process_note(driver.cuMemRelease(handle), "cuMemRelease");
}

/* Where access to pieces of a tier is opened from; NULL for device pieces. */
static const CUmemLocation *host_location(const struct mover *mover, enum piece_tier tier,
                                          CUmemLocation *location) {
  return tier == PIECE_HOST && tier_location(mover->device, mover->piece_bytes, location) ? location
                                                                                          : NULL;
}

static CUresult create(const struct mover *mover, enum piece_tier tier,
                       CUmemGenericAllocationHandle *handle) {
  if (tier == PIECE_HOST)
    return tier_create(mover->device, mover->piece_bytes, handle);
  CUmemAllocationProp properties = tier_properties(tier_device(mover->device));
  return driver.cuMemCreate(handle, mover->piece_bytes, &properties, 0);
}

/* ---- steps of a batch ---- */

/* Removes scratch mappings [from, to). */
static void clear_scratch(struct mover *mover, size_t from, size_t to) {
  for (size_t i = from; i < to; i++)
    if (driver.cuMemUnmap(mover->scratch + i * mover->piece_bytes, mover->piece_bytes) &&
        !mover->broken) {
      mover->broken = true;
      report_reason("moving ends: the driver did not unmap an address of ours");
    }
}

/* Scratch and new handles of a batch of which no piece was exchanged. */
static void undo(struct mover *mover, struct batch *batch) {
  clear_scratch(mover, 0, batch->count);
  for (size_t i = 0; i < batch->count; i++)
    move_drop_handle(mover->device, batch->tier, batch->handles[i], mover->piece_bytes);
  batch->count = 0;
}

/* Step 1. The batch shrinks to what there is room for. */
static void prepare(struct mover *mover, struct batch *batch) {
  const size_t bytes = mover->piece_bytes;
  size_t made = 0;
  CUmemLocation location;
  const CUmemLocation *host = host_location(mover, batch->tier, &location);
  for (; made < batch->count; made++) {
    const CUdeviceptr at = mover->scratch + made * bytes;
    if (create(mover, batch->tier, &batch->handles[made]))
      break;
    if (process_note(driver.cuMemMap(at, bytes, 0, batch->handles[made], 0), "cuMemMap")) {
      move_drop_handle(mover->device, batch->tier, batch->handles[made], bytes);
      break;
    }
    if (process_note(tier_open(at, bytes, mover->device, host), "cuMemSetAccess")) {
      clear_scratch(mover, made, made + 1);
      move_drop_handle(mover->device, batch->tier, batch->handles[made], bytes);
      break;
    }
    if (host)
      range_dont_fork(at, bytes);
  }
  batch->count = made;
}

/* Step 2. `stream` beside those that touched the ranges, if `wait`. */
static CUresult wait_streams(const struct mover *mover, struct batch *batch, CUstream stream,
                             bool wait) {
  struct range *ranges[BATCH];
  for (size_t i = 0; i < batch->count; i++) {
    ranges[i] = batch->items[i].range;
    batch->touches[i] = atomic_load_explicit(&ranges[i]->touches, memory_order_acquire);
  }
  return drain_ranges(mover->context, ranges, batch->count, stream, wait,
                      clock_now_ns() + move_wait_ns);
}

static CUdeviceptr item_address(const struct move_item *item) {
  return item->range->base + item->piece * item->range->piece_bytes;
}

/* Step 3. *queued: copies may still be under way when it fails. */
static CUresult copy(struct mover *mover, const struct batch *batch, bool *queued) {
  const size_t bytes = mover->piece_bytes;
  *queued = false;
  for (size_t i = 0; i < batch->count; i++) {
    CUresult result = process_note(driver.cuMemcpyDtoDAsync_v2(mover->scratch + i * bytes,
                                                               item_address(&batch->items[i]),
                                                               bytes, mover->stream),
                                   "cuMemcpyDtoDAsync");
    if (result) {
      if (i && driver.cuStreamSynchronize(mover->stream)) /* ours alone, and short */
        *queued = true;
      return result;
    }
  }
  *queued = true;
  CUresult result =
      process_note(driver.cuEventRecord(mover->copied, mover->stream), "cuEventRecord");
  if (result) {
    *queued = driver.cuStreamSynchronize(mover->stream) != CUDA_SUCCESS;
    return result;
  }
  return drain_event(mover->copied, clock_now_ns() + move_wait_ns);
}

/* Puts the old handle back at an address that is unmapped. */
static CUresult put_back(const struct mover *mover, CUdeviceptr at, const struct piece *piece) {
  CUmemLocation location;
  const CUmemLocation *host = host_location(mover, piece->tier, &location);
  CUresult result = driver.cuMemMap(at, mover->piece_bytes, 0, piece->handle, 0);
  if (!result)
    result = tier_open(at, mover->piece_bytes, mover->device, host);
  if (!result && host)
    range_dont_fork(at, mover->piece_bytes);
  return result;
}

/* Step 4 for one piece. *exchanged: it has the new handle now. An error: it is mapped nowhere. */
static CUresult exchange(const struct mover *mover, const struct batch *batch, size_t i,
                         bool *exchanged) {
  const size_t bytes = mover->piece_bytes;
  const struct move_item *item = &batch->items[i];
  struct piece *piece = &item->range->pieces[item->piece];
  const CUdeviceptr at = item_address(item);
  CUmemLocation location;
  const CUmemLocation *host = host_location(mover, batch->tier, &location);
  *exchanged = false;
  if (atomic_load_explicit(&item->range->touches, memory_order_acquire) != batch->touches[i])
    return CUDA_SUCCESS; /* the copy may be old by now; another step will do */
  CUresult result = process_note(driver.cuMemUnmap(at, bytes), "cuMemUnmap");
  if (result)
    return CUDA_SUCCESS;
  result = driver.cuMemMap(at, bytes, 0, batch->handles[i], 0);
  if (!result) {
    result = tier_open(at, bytes, mover->device, host);
    if (result && driver.cuMemUnmap(at, bytes)) {
      /* The new handle stays mapped: let it be opened once more before giving up. */
      CUresult again = tier_open(at, bytes, mover->device, host);
      if (again)
        return process_note(again, "cuMemSetAccess");
      result = CUDA_SUCCESS;
    }
  }
  if (result) {
    process_note(result, "cuMemMap");
    result = put_back(mover, at, piece);
    return result ? process_note(result, "cuMemMap") : CUDA_SUCCESS;
  }
  if (host)
    range_dont_fork(at, bytes);
  const CUmemGenericAllocationHandle old = piece->handle;
  const enum piece_tier old_tier = piece->tier;
  range_piece_set(item->range, item->piece, batch->handles[i], batch->tier);
  move_drop_handle(mover->device, old_tier, old, bytes);
  *exchanged = true;
  return CUDA_SUCCESS;
}

/* Steps 4 and 5. */
static CUresult exchange_all(struct mover *mover, struct batch *batch, size_t *moved) {
  CUresult result = CUDA_SUCCESS;
  for (size_t i = 0; i < batch->count; i++) {
    bool exchanged = false;
    if (!result) {
      result = exchange(mover, batch, i, &exchanged);
      if (result)
        process_stop("a piece of memory could be put neither here nor there while it was moved; "
                     "this process must go back to its last checkpoint");
    }
    *moved += exchanged;
    if (!exchanged)
      move_drop_handle(mover->device, batch->tier, batch->handles[i], mover->piece_bytes);
  }
  clear_scratch(mover, 0, batch->count);
  return result;
}

static uint64_t late_count;

uint64_t move_late_count(void) {
  return late_count;
}

void move_say_late(void) {
  late_count++;
  report_reason("moving was put off: streams that use the state did not finish within %llu ms",
                (unsigned long long)(move_wait_ns / 1000000));
}

/* One batch. *more: the next may be tried. */
static CUresult move_batch(struct mover *mover, struct batch *batch, CUstream stream, bool wait,
                           size_t *moved, bool *more) {
  const size_t wanted = batch->count;
  *more = false;
  prepare(mover, batch);
  if (!batch->count)
    return CUDA_SUCCESS;
  CUresult result = wait_streams(mover, batch, stream, wait);
  if (result) {
    undo(mover, batch);
    if (result == CUDA_ERROR_NOT_READY)
      move_say_late();
    return CUDA_SUCCESS;
  }
  bool queued;
  result = copy(mover, batch, &queued);
  if (result == CUDA_ERROR_NOT_READY) {
    move_say_late();
    mover->left = *batch;
    return CUDA_SUCCESS;
  }
  if (result) {
    if (queued)
      mover->broken = true; /* the context is lost, and its memory with it */
    else
      undo(mover, batch);
    return CUDA_SUCCESS;
  }
  result = exchange_all(mover, batch, moved);
  *more = !result && batch->count == wanted && !mover->broken;
  return result;
}

/* True when nothing is left of an earlier batch. */
static bool clean_up(struct mover *mover) {
  if (mover->left.count && driver.cuEventQuery(mover->copied) == CUDA_SUCCESS)
    undo(mover, &mover->left);
  return !mover->left.count;
}

bool move_copier(const struct range *range, CUstream *stream, CUevent *event) {
  struct mover *mover = mover_of(range->context, range->device, range->piece_bytes);
  if (!mover)
    return false;
  *stream = mover->stream;
  *event = mover->copied;
  return true;
}

static void say_moved(enum piece_tier tier, size_t moved, size_t bytes, uint64_t began_ns) {
  static bool said;
  const uint64_t ended_ns = clock_now_ns(), ns = ended_ns - began_ns;
  char size[REPORT_SIZE_BYTES];
  report_add(move_ns, ns);
  if (!moved)
    return;
  trace_add(&(struct trace_span){.track = TRACE_MOVE,
                                 .name = tier == PIECE_HOST ? "to the host" : "to the device",
                                 .begin_ns = began_ns,
                                 .end_ns = ended_ns,
                                 .bytes = bytes});
  if (tier == PIECE_HOST) {
    report_add(pieces_moved, moved);
    report_add(moved_out_bytes, bytes);
  } else {
    report_add(pieces_home, moved);
    report_add(moved_home_bytes, bytes);
  }
  report_line(said ? LOG_VERBOSE : LOG_NORMAL, "%s %s of optimizer state %s in %.1f ms",
              tier == PIECE_HOST ? "moved" : "brought", report_size_text(bytes, size),
              tier == PIECE_HOST ? "to host memory" : "back to the device", (double)ns / 1e6);
  said = true;
}

CUresult move_pieces(const struct move_item *items, size_t count, enum piece_tier tier,
                     CUstream stream, bool wait, size_t *moved) {
  CUresult result = CUDA_SUCCESS;
  *moved = 0;
  if (!count)
    return result;
  const bool marked = mark_begin("offload move");
  const uint64_t began_ns = clock_now_ns();
  const size_t bytes = items[0].range->piece_bytes;
  CUstreamCaptureMode mode = quiet_begin();
  struct mover *mover = mover_of(items[0].range->context, items[0].range->device, bytes);
  bool more = mover && !mover->broken && clean_up(mover);
  for (size_t i = 0; i < count && more;) {
    struct batch batch = {.tier = tier};
    for (; i < count && batch.count < BATCH; i++)
      if (items[i].range->pieces[items[i].piece].tier != tier)
        batch.items[batch.count++] = items[i];
    result = move_batch(mover, &batch, stream, wait, moved, &more);
    wait = false; /* nothing of this thread's has been queued since */
  }
  quiet_end(mode);
  say_moved(tier, *moved, *moved * bytes, began_ns);
  mark_end(marked);
  return result;
}

void move_forget_context(CUcontext context) {
  for (size_t i = 0; i < mover_count; i++) {
    struct mover *mover = &movers[i];
    if (mover->context != context)
      continue;
    if (mover->left.count)
      undo(mover, &mover->left);
    (void)driver.cuMemAddressFree(mover->scratch, BATCH * mover->piece_bytes);
    movers[i] = movers[--mover_count];
    return;
  }
}
