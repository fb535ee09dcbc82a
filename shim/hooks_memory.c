/* Wrappers of device memory: which allocations become ranges, and everything a program may ask of
   such memory afterwards. What belongs to a range is answered also when the hooks have stopped;
   every other address goes to the driver. */
#include "../policy/report.h"
#include "attributes.h"
#include "caller.h"
#include "drive.h"
#include "hooks.h"
#include "lock.h"
#include "measure.h"
#include "pressure.h"
#include "quiet.h"
#include "step.h"
#include "switch.h"
#include "touch.h"
#include "unknown.h"
#include <stdatomic.h>
#include <stdlib.h>

static _Atomic bool native_only;

void hook_stay_native(const char *reason) {
  if (!atomic_exchange_explicit(&native_only, true, memory_order_relaxed))
    report_reason("%s: allocations from then on stayed native", reason);
}

/* Somebody holds, or is about to hold, the physical pages: they may not be exchanged any more, and must be there. Whoever
   unmaps a piece at this moment sees one of both (drive.h). Another answer than CUDA_SUCCESS is the call's. */
static CUresult pin(struct range *range) {
  atomic_store(&range->immovable, true);
  touch_again(range);
  return atomic_load(&range->drive_pieces) ? drive_fault(range, 0, range->piece_count - 1)
                                           : CUDA_SUCCESS;
}

/* The driver is going to be asked about an address. */
static CUresult map_for_question(struct range *range, CUdeviceptr pointer) {
  touch_use(range, pointer, pointer + 1);
  touch_again(range);
  return touch_absent(range, pointer, pointer + 1) ? drive_fault_bytes(pointer, 1) : CUDA_SUCCESS;
}

static bool may_move(void *return_address) {
  return !switch_off() && !atomic_load_explicit(&native_only, memory_order_relaxed) &&
         !process_capture_open() && caller_may_move(return_address);
}

/* `call`, once more when that gave staging back. */
#define STAGING_GOES_FIRST(call)                                                                   \
  CUresult result = (call);                                                                        \
  if (result == CUDA_ERROR_OUT_OF_MEMORY && process_active() && step_give_back())                  \
    result = (call);                                                                               \
  return result

/* Where no range is made, the first allocation that would have been one is when rates are asked for. */
static void measure_for_observing(void) {
  CUdevice device;
  if (driver.cuCtxGetDevice(&device) == CUDA_SUCCESS)
    measure_begin(device);
}

static CUresult allocate_native(CUdeviceptr *pointer, size_t bytes) {
  STAGING_GOES_FIRST(hook_pass(cuMemAlloc_v2, (pointer, bytes)));
}

CUresult hook_cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
  if (!process_active() || !pointer)
    return hook_pass(cuMemAlloc_v2, (pointer, bytes));
  if (bytes < process_config()->min_allocation.bytes) {
    report_small_allocation(bytes);
    return allocate_native(pointer, bytes);
  }
  report_add(allocations_seen, 1);
  const bool movable = may_move(__builtin_return_address(0));
  if (movable && process_config()->mode != MODE_OBSERVE) {
    CUresult result = range_create(pointer, bytes, PIECE_DEVICE);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
      result = pressure_allocate(pointer, bytes, result);
    if (result != CUDA_ERROR_NOT_SUPPORTED)
      return process_note(result, "cuMemAlloc_v2");
  }
  CUresult result = allocate_native(pointer, bytes);
  if (result == CUDA_SUCCESS)
    pressure_native_allocated(*pointer, bytes, movable);
  if (result == CUDA_SUCCESS && movable && process_config()->mode == MODE_OBSERVE)
    measure_for_observing();
  return result;
}

/* A forked child may be without the thread that had the lock. */
static void note_freed(CUdeviceptr pointer) {
  if (unknown_looking() && process_active())
    unknown_freed(pointer);
}

CUresult hook_cuMemFree_v2(CUdeviceptr pointer) {
  struct range *range = hook_range(pointer);
  note_freed(pointer);
  if (range)
    return range->base == pointer ? process_note(range_destroy(range), "cuMemFree_v2")
                                  : CUDA_ERROR_INVALID_VALUE;
  if (process_active())
    pressure_native_freed(pointer);
  return hook_pass(cuMemFree_v2, (pointer));
}

#define ALLOCATE(symbol, parameters, arguments)                                                    \
  CUresult hook_##symbol parameters {                                                              \
    STAGING_GOES_FIRST(hook_pass(symbol, arguments));                                              \
  }
ALLOCATE(cuMemAllocPitch_v2,
         (CUdeviceptr * pointer, size_t *pitch, size_t width, size_t height,
          unsigned element_bytes),
         (pointer, pitch, width, height, element_bytes))
ALLOCATE(cuMemAllocAsync, (CUdeviceptr * pointer, size_t bytes, CUstream stream),
         (pointer, bytes, stream))
ALLOCATE(cuMemAllocAsync_ptsz, (CUdeviceptr * pointer, size_t bytes, CUstream stream),
         (pointer, bytes, stream))
ALLOCATE(cuMemAllocFromPoolAsync,
         (CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream),
         (pointer, bytes, pool, stream))
ALLOCATE(cuMemAllocFromPoolAsync_ptsz,
         (CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream),
         (pointer, bytes, pool, stream))

/* Memory of cuMemAlloc may be freed in stream order too. A range can't be, without a call from the
   stream; so the host waits for the stream, which is later than asked for and never too early. A
   capturing stream gets the driver's own refusal. */
#define FREE_ASYNC(symbol, is_per_thread)                                                          \
  CUresult hook_##symbol(CUdeviceptr pointer, CUstream stream) {                                   \
    struct range *range = hook_range(pointer);                                                     \
    note_freed(pointer);                                                                           \
    if (!range || range->base != pointer || process_capturing(stream, is_per_thread))              \
      return hook_pass(symbol, (pointer, stream));                                                 \
    CUstreamCaptureMode mode = quiet_begin();                                                      \
    CUresult result = driver.cuStreamSynchronize(hook_stream(stream, is_per_thread));              \
    quiet_end(mode);                                                                               \
    return process_note(result == CUDA_SUCCESS ? range_destroy(range) : result, #symbol);          \
  }
FREE_ASYNC(cuMemFreeAsync, false)
FREE_ASYNC(cuMemFreeAsync_ptsz, true)

/* Registration caches ask for the allocation's bounds before they take hold of its pages; the
   framework's own allocator asks for its IPC offsets only. */
CUresult hook_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer) {
  struct range *range = hook_range(pointer);
  if (!range)
    return hook_pass_known(cuMemGetAddressRange_v2, (base, bytes, pointer));
  if (!caller_allowed(__builtin_return_address(0)))
    DRIVER_TRY(pin(range));
  if (base)
    *base = range->base;
  if (bytes)
    *bytes = range->bytes;
  return CUDA_SUCCESS;
}

CUresult hook_cuPointerGetAttribute(void *value, CUpointer_attribute attribute,
                                    CUdeviceptr pointer) {
  struct range *range = value ? hook_range(pointer) : NULL;
  if (!range)
    return hook_pass_known(cuPointerGetAttribute, (value, attribute, pointer));
  if (attribute_pins(attribute))
    DRIVER_TRY(pin(range));
  CUresult result;
  if (attribute_answer(range, attribute, pointer, value, &result))
    return result;
  DRIVER_TRY(map_for_question(range, pointer));
  return hook_pass_known(cuPointerGetAttribute, (value, attribute, pointer));
}

/* Whether all of it is known without the driver, which knows nothing of an address on a drive. */
static bool all_answered(const struct range *range, unsigned count,
                         const CUpointer_attribute *attributes, void **values,
                         CUdeviceptr pointer) {
  CUresult ignored;
  for (unsigned i = 0; i < count; i++)
    if (attribute_pins(attributes[i]) || !values[i] ||
        !attribute_answer(range, attributes[i], pointer, values[i], &ignored))
      return false;
  return count != 0;
}

/* The real call comes first, for attributes that only it knows; what it says about ours is then
   overwritten. Attributes that don't apply become zero, and the call succeeds (cuda.h). */
CUresult hook_cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **values,
                                     CUdeviceptr pointer) {
  struct range *range = attributes && values ? hook_range(pointer) : NULL;
  if (range && touch_absent(range, pointer, pointer + 1)) {
    if (all_answered(range, count, attributes, values, pointer))
      return CUDA_SUCCESS;
    DRIVER_TRY(map_for_question(range, pointer));
  }
  CUresult result = hook_pass_known(cuPointerGetAttributes, (count, attributes, values, pointer));
  if (!range || result != CUDA_SUCCESS)
    return result;
  for (unsigned i = 0; i < count; i++) {
    CUresult ignored;
    if (attribute_pins(attributes[i]))
      DRIVER_TRY(pin(range));
    if (values[i])
      (void)attribute_answer(range, attributes[i], pointer, values[i], &ignored);
  }
  return CUDA_SUCCESS;
}

/* Virtual memory refuses SYNC_MEMOPS; the context's flag asks for the same of all its memory. */
CUresult hook_cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                                    CUdeviceptr pointer) {
  struct range *range = hook_range(pointer);
  if (range)
    DRIVER_TRY(pin(range));
  CUresult result = hook_pass(cuPointerSetAttribute, (value, attribute, pointer));
  unsigned flags = 0;
  if (range && result != CUDA_SUCCESS && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && value &&
      *(const unsigned *)value && driver.cuCtxSetFlags && driver.cuCtxGetFlags &&
      driver.cuCtxGetFlags(&flags) == CUDA_SUCCESS)
    result = driver.cuCtxSetFlags(flags | CU_CTX_SYNC_MEMOPS);
  return result;
}

CUresult hook_cuIpcGetMemHandle(CUipcMemHandle *ipc_handle, CUdeviceptr pointer) {
  struct range *range = hook_range(pointer);
  if (range) {
    DRIVER_TRY(pin(range));
    hook_stay_native("the program shares memory by cudaIpcGetMemHandle, which virtual memory "
                     "can't (raise OFFLOAD_MIN_ALLOCATION above such buffers)");
  }
  return hook_pass(cuIpcGetMemHandle, (ipc_handle, pointer));
}

CUresult hook_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
  struct range *range = hook_range((CUdeviceptr)address);
  if (range)
    DRIVER_TRY(pin(range));
  return hook_pass(cuMemRetainAllocationHandle, (handle, address));
}

CUresult hook_cuMemGetHandleForAddressRange(void *handle, CUdeviceptr pointer, size_t size,
                                            CUmemRangeHandleType type, unsigned long long flags) {
  struct range *range = hook_range(pointer);
  if (range)
    DRIVER_TRY(pin(range));
  return hook_pass(cuMemGetHandleForAddressRange, (handle, pointer, size, type, flags));
}

/* Peer access covers memory of cuMemAlloc but not virtual memory: what ranges the peer has are
   opened to this device and stay as they are, and later allocations stay native. */
static void open_to_current_device(CUcontext peer) {
  CUdevice device;
  size_t count = 0;
  if (driver.cuCtxGetDevice(&device) != CUDA_SUCCESS)
    return;
  const CUmemAccessDesc access = {{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                                  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUstreamCaptureMode mode = quiet_begin();
  enqueue_lock();
  struct range **ranges = range_list(&count);
  for (size_t i = 0; ranges && i < count; i++) {
    if (ranges[i]->context != peer)
      continue;
    atomic_store(&ranges[i]->immovable, true);
    touch_again(ranges[i]);
    char size[REPORT_SIZE_BYTES];
    if (atomic_load(&ranges[i]->drive_pieces) && /* access is set for what is mapped */
        drive_fault_locked(ranges[i], 0, ranges[i]->piece_count - 1))
      report_reason(
          "a range of %s can't be brought in from its drive, and not be opened to device %d",
          report_size_text(ranges[i]->bytes, size), device);
    else if (driver.cuMemSetAccess(ranges[i]->base, ranges[i]->mapped_bytes, &access, 1))
      report_reason("a range of %s can't be opened to device %d",
                    report_size_text(ranges[i]->bytes, size), device);
  }
  enqueue_unlock();
  quiet_end(mode);
  free((void *)ranges);
}

CUresult hook_cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  CUresult result = hook_pass(cuCtxEnablePeerAccess, (peer, flags));
  if (result == CUDA_SUCCESS && process_active()) {
    hook_stay_native("the program enabled peer access between devices");
    open_to_current_device(peer);
  }
  return result;
}
