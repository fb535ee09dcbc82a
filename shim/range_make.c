/* Making and freeing ranges (range.h). Invariants: a range that is in the table is wholly mapped;
   one that isn't is known to nobody else. Whatever fails while one is made is undone, and the
   request goes to the driver as it came. */
#include "../policy/report.h"
#include "drive.h"
#include "driver.h"
#include "frames.h"
#include "holdings.h"
#include "lock.h"
#include "measure.h"
#include "move.h"
#include "pressure.h"
#include "process.h"
#include "quiet.h"
#include "range.h"
#include "state.h"
#include "tier.h"
#include "touch.h"
#include <stdlib.h>

enum { DEVICES_MAX = 64 };

/* Above what drivers give, so that none is met twice. */
static _Atomic uint64_t next_id = (uint64_t)1 << 40;

static size_t granularity(CUmemLocation location) {
  CUmemAllocationProp properties = tier_properties(location);
  size_t bytes = 0;
  if (driver.cuMemGetAllocationGranularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM))
    return 0;
  return bytes;
}

size_t range_piece_bytes(CUdevice device) {
  static _Atomic size_t known[DEVICES_MAX];
  if (device < 0 || device >= DEVICES_MAX || !driver.cuMemGetAllocationGranularity)
    return 0;
  size_t bytes = atomic_load_explicit(&known[device], memory_order_relaxed);
  if (bytes)
    return bytes;
  bytes = granularity(tier_device(device));
  if (!bytes)
    return 0; /* this device has no virtual memory management */
  int node = 0;
  if (driver.cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device) || node < 0)
    node = 0;
  const CUmemLocation hosts[] = {{.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = node},
                                 {.type = CU_MEM_LOCATION_TYPE_HOST}};
  for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
    size_t host = granularity(hosts[i]); /* both are powers of two: the larger is a multiple */
    bytes = host > bytes ? host : bytes;
  }
  const struct config_size *asked = &process_config()->piece;
  if (asked->set && asked->bytes) {
    size_t rounded = (asked->bytes + bytes - 1) / bytes * bytes;
    if (rounded != asked->bytes)
      report_reason("OFFLOAD_PIECE=%llu is no multiple of the driver's granularity; %zu is used",
                    (unsigned long long)asked->bytes, rounded);
    bytes = rounded;
  }
  atomic_store_explicit(&known[device], bytes, memory_order_relaxed);
  return bytes;
}

static void release_handle(struct range *range, const struct piece *piece) {
  if (piece->tier == PIECE_HOST) {
    range_count_host(range, false);
    tier_release(range->device, piece->handle, range->piece_bytes);
  } else {
    process_note(driver.cuMemRelease(piece->handle), "cuMemRelease");
  }
}

/* Unmaps and releases the first `count` pieces and gives the addresses back. What the driver
   refuses to take back is lost, not reused. */
static void drop(struct range *range, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    if (range->pieces[i].tier == PIECE_DRIVE) { /* mapped nowhere */
      drive_forget_piece(range, i);
      continue;
    }
    process_note(driver.cuMemUnmap(range->base + i * range->piece_bytes, range->piece_bytes),
                 "cuMemUnmap");
    release_handle(range, &range->pieces[i]);
  }
  process_note(driver.cuMemAddressFree(range->base, range->mapped_bytes), "cuMemAddressFree");
  free(range->known);
  free(range->pieces);
  free(range);
}

/* One handle per piece, mapped; *made tells how many. Only a lack of memory in cuMemCreate counts
   as such: a driver that has no room for more mappings may still have memory for a native
   allocation. */
static CUresult make_pieces(struct range *range, enum piece_tier tier, uint32_t *made) {
  const size_t bytes = range->piece_bytes;
  CUmemAllocationProp properties = tier_properties(tier_device(range->device));
  for (*made = 0; *made < range->piece_count; ++*made) {
    struct piece *piece = &range->pieces[*made];
    CUresult result = tier == PIECE_HOST
                          ? tier_create(range->device, bytes, &piece->handle)
                          : driver.cuMemCreate(&piece->handle, bytes, &properties, 0);
    if (result)
      return process_note(result, "cuMemCreate") == CUDA_ERROR_OUT_OF_MEMORY
                 ? CUDA_ERROR_OUT_OF_MEMORY
                 : CUDA_ERROR_NOT_SUPPORTED;
    piece->streak_needed = 1;
    if (tier == PIECE_HOST) {
      piece->tier = PIECE_HOST;
      piece->provisional = true;
      range_count_host(range, true);
    }
    result = driver.cuMemMap(range->base + *made * bytes, bytes, 0, piece->handle, 0);
    if (result) {
      process_note(result, "cuMemMap");
      release_handle(range, piece);
      return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  return CUDA_SUCCESS;
}

static CUresult make(struct range *range, enum piece_tier tier) {
  CUdeviceptr base;
  uint32_t made = 0;
  CUmemLocation host;
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  range->pieces = calloc(range->piece_count, sizeof *range->pieces);
  if (!range->pieces ||
      (tier == PIECE_HOST && !tier_location(range->device, range->piece_bytes, &host)))
    goto nothing;
  if (process_note(driver.cuMemAddressReserve(&base, range->mapped_bytes, range->piece_bytes, 0, 0),
                   "cuMemAddressReserve"))
    goto nothing;
  range->base = base;
  result = make_pieces(range, tier, &made);
  if (result)
    goto pieces;
  /* Device and host handles may not share a call with a host descriptor; these are all of one kind.
   */
  if (process_note(
          tier_open(base, range->mapped_bytes, range->device, tier == PIECE_HOST ? &host : NULL),
          "cuMemSetAccess")) {
    result = CUDA_ERROR_NOT_SUPPORTED;
    goto pieces;
  }
  if (tier == PIECE_HOST)
    range_dont_fork(base, range->mapped_bytes);
  if (range_table_insert(range))
    return CUDA_SUCCESS;
  result = CUDA_ERROR_NOT_SUPPORTED;
pieces:
  drop(range, made);
  return result;
nothing:
  free(range->pieces);
  free(range);
  return result;
}

static void free_waiting(void);

CUresult range_create(CUdeviceptr *pointer, size_t bytes, enum piece_tier tier) {
  CUdevice device;
  CUcontext context = NULL;
  if (!pointer || !bytes || !driver.cuMemCreate || !driver.cuMemSetAccess ||
      driver.cuCtxGetDevice(&device) || driver.cuCtxGetCurrent(&context) || !context)
    return CUDA_ERROR_NOT_SUPPORTED;
  const size_t piece_bytes = range_piece_bytes(device);
  if (!piece_bytes || bytes > SIZE_MAX - piece_bytes ||
      (bytes + piece_bytes - 1) / piece_bytes > UINT32_MAX)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (bytes <= piece_bytes / 2) /* rounding up would double what it takes */
    return CUDA_ERROR_NOT_SUPPORTED;
  free_waiting();
  struct range *range = calloc(1, sizeof *range);
  if (!range)
    return CUDA_ERROR_NOT_SUPPORTED;
  range->bytes = bytes;
  range->piece_bytes = piece_bytes;
  range->piece_count = (uint32_t)((bytes + piece_bytes - 1) / piece_bytes);
  range->mapped_bytes = range->piece_count * piece_bytes;
  range->context = context;
  range->device = device;
  range->id = atomic_fetch_add(&next_id, 1);
  CUstreamCaptureMode mode = quiet_begin();
  CUresult result = make(range, tier); /* frees the range when it fails */
  quiet_end(mode);
  if (result)
    return result;
  *pointer = range->base;
  report_add(ranges, 1);
  report_add(range_bytes, bytes);
  measure_begin(device);
  pressure_count(range->device, (int64_t)range->mapped_bytes);
  if (tier == PIECE_HOST) {
    report_add(provisional_bytes, range->mapped_bytes);
    range_watch_changed();
  } else {
    pressure_satisfied(bytes);
  }
  return CUDA_SUCCESS;
}

/* ---- freeing ---- */

/* Waits for everything in the range's context, as cuMemFree does. */
static CUresult synchronise(const struct range *range) {
  CUcontext current = NULL;
  bool push = !driver.cuCtxGetCurrent(&current) && current != range->context;
  if (push && driver.cuCtxPushCurrent_v2(range->context))
    return CUDA_ERROR_INVALID_CONTEXT;
  CUresult result = process_note(driver.cuCtxSynchronize(), "cuCtxSynchronize");
  if (push)
    (void)driver.cuCtxPopCurrent_v2(&current);
  return result;
}

/* It is in no table any more; while a capture is open its memory is given back later. */
static void forget_removed(struct range *range, bool capture) {
  pressure_count(range->device, -(int64_t)range->mapped_bytes);
  if (!capture)
    drop(range, range->piece_count);
}

/* The ranges that were freed while a capture was open, once none is. */
static void free_waiting(void) {
  for (;;) {
    if (process_capture_open())
      return;
    struct range *range = range_table_waiting(NULL);
    if (!range)
      return;
    CUstreamCaptureMode mode = quiet_begin();
    if (!synchronise(range)) /* else the context is lost, and its memory with it */
      drop(range, range->piece_count);
    quiet_end(mode);
  }
}

CUresult range_destroy(struct range *range) {
  const bool capture = process_capture_open();
  CUstreamCaptureMode mode = quiet_begin();
  CUresult result = capture ? CUDA_SUCCESS : synchronise(range);
  if (result)
    goto end;
  enqueue_lock(); /* no move is under way from here on */
  state_forget(range->base, range->bytes);
  const bool watched = atomic_load(&range->has_state) || atomic_load(&range->host_pieces);
  if (!range_table_remove(range, capture))
    result = CUDA_ERROR_INVALID_VALUE; /* freed twice */
  else
    forget_removed(range, capture);
  enqueue_unlock();
  if (watched)
    range_watch_changed();
end:
  quiet_end(mode);
  if (!capture)
    free_waiting();
  return result;
}

void range_forget_context(CUcontext context) {
  size_t count;
  CUstreamCaptureMode mode = quiet_begin();
  drive_forget_context(context, true);
  frames_forget_context(context, true); /* whatever still names a unit lets go of it */
  struct range **list = range_list(&count);
  for (size_t i = 0; i < count; i++) {
    if (list[i]->context != context)
      continue;
    state_forget(list[i]->base, list[i]->bytes);
    if (range_table_remove(list[i], false))
      forget_removed(list[i], false);
  }
  free(list);
  for (struct range *range; (range = range_table_waiting(context));)
    drop(range, range->piece_count);
  state_forget_context(context);
  touch_forget_context(context);
  move_forget_context(context);
  holdings_forget(context);
  quiet_end(mode);
  range_watch_changed();
}
