/* A device that ran out of memory (pressure.h). Per thread the last few failing sizes are kept: a
   request of such a size is the second, the framework has given back what it had cached, and it is
   helped. Where rounding up to pieces was all that didn't fit, native memory is given at once. Help,
   in this order:

     evict      known state moves to the host, and the request is tried again on the device
     overflow   before anything is known: if a known Adam kernel is in the process and the size
                repeats that of a live allocation (m and v are made by zeros_like), the range begins
                its life on the host, provisionally

   A retry must come before RETRIES other sizes failed on the thread. A program that doesn't retry
   meets the out of memory it would have met without us. Overflow ends with the first step: from
   then on state is known and evicted, and what fails after that is something else, whose failure
   batch-size finders want to see. */
#include "pressure.h"
#include "../policy/report.h"
#include "driver.h"
#include "lock.h"
#include "process.h"
#include "range.h"
#include "state.h"
#include "step.h"
#include "switch.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { RETRIES = 4, EVICTIONS = 3 };

static _Thread_local size_t failed[RETRIES]; /* sizes, 0: none */
static _Thread_local unsigned failed_next;

static bool forget_failed(size_t bytes) {
  for (size_t i = 0; i < RETRIES; i++)
    if (failed[i] == bytes) {
      failed[i] = 0;
      return true;
    }
  return false;
}

void pressure_satisfied(size_t bytes) {
  (void)forget_failed(bytes);
}

/* ---- how much the program has ---- */

enum { DEVICES_MOST = 64 };
static struct level { _Atomic int64_t live, most; } levels[DEVICES_MOST];

static struct level *level_of(CUdevice device) {
  static struct level none; /* of devices beyond those, together */
  return device >= 0 && device < DEVICES_MOST ? &levels[device] : &none;
}

void pressure_count(CUdevice device, int64_t bytes) {
  struct level *level = level_of(device);
  const int64_t now = atomic_fetch_add_explicit(&level->live, bytes, memory_order_relaxed) + bytes;
  int64_t most = atomic_load_explicit(&level->most, memory_order_relaxed);
  while (now > most && !atomic_compare_exchange_weak_explicit(
                           &level->most, &most, now, memory_order_relaxed, memory_order_relaxed))
    ;
}

size_t pressure_live_bytes(CUdevice device) {
  const int64_t live = atomic_load_explicit(&level_of(device)->live, memory_order_relaxed);
  return live > 0 ? (size_t)live : 0;
}

size_t pressure_most_bytes(CUdevice device) {
  const int64_t most = atomic_load_explicit(&level_of(device)->most, memory_order_relaxed);
  return most > 0 ? (size_t)most : 0;
}

void pressure_most_again(CUdevice device) {
  struct level *level = level_of(device);
  atomic_store_explicit(&level->most, atomic_load_explicit(&level->live, memory_order_relaxed),
                        memory_order_relaxed);
}

/* ---- sizes of native allocations ---- */

/* Protects the table, sorted by address. */
static pthread_mutex_t natives_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct native_allocation *natives;
static size_t native_count, native_room;

/* Number of allocations at or below the address. */
static size_t native_position(CUdeviceptr pointer) {
  size_t from = 0, to = native_count;
  while (from < to) {
    size_t middle = from + (to - from) / 2;
    if (natives[middle].pointer <= pointer)
      from = middle + 1;
    else
      to = middle;
  }
  return from;
}

void pressure_native_allocated(CUdeviceptr pointer, size_t bytes, bool movable) {
  CUdevice device = 0;
  (void)driver.cuCtxGetDevice(&device);
  pthread_mutex_lock(&natives_mutex);
  if (native_count == native_room) {
    size_t more = native_room ? 2 * native_room : 64;
    struct native_allocation *grown = realloc(natives, more * sizeof *grown);
    if (grown) {
      natives = grown;
      native_room = more;
    }
  }
  size_t i = native_position(pointer);
  if (i && natives[i - 1].pointer == pointer) {
    pressure_count(natives[i - 1].device, -(int64_t)natives[i - 1].bytes);
    natives[i - 1] =
        (struct native_allocation){pointer, bytes, device, movable}; /* its free went past us */
    pressure_count(device, (int64_t)bytes);
  } else if (native_count < native_room) {
    memmove(natives + i + 1, natives + i, (native_count - i) * sizeof *natives);
    natives[i] = (struct native_allocation){pointer, bytes, device, movable};
    native_count++;
    pressure_count(device, (int64_t)bytes);
  }
  pthread_mutex_unlock(&natives_mutex);
}

void pressure_native_freed(CUdeviceptr pointer) {
  pthread_mutex_lock(&natives_mutex);
  size_t i = native_position(pointer);
  if (i && natives[i - 1].pointer == pointer) {
    pressure_count(natives[i - 1].device, -(int64_t)natives[i - 1].bytes);
    memmove(natives + i - 1, natives + i, (native_count - i) * sizeof *natives);
    native_count--;
  }
  pthread_mutex_unlock(&natives_mutex);
}

bool pressure_native_find(CUdeviceptr address, struct native_allocation *found) {
  pthread_mutex_lock(&natives_mutex);
  const size_t i = native_position(address);
  const bool holds = i && address - natives[i - 1].pointer < natives[i - 1].bytes;
  if (holds)
    *found = natives[i - 1];
  pthread_mutex_unlock(&natives_mutex);
  return holds;
}

static bool repeats_live(size_t bytes) {
  bool live = range_size_live(bytes);
  pthread_mutex_lock(&natives_mutex);
  for (size_t i = 0; i < native_count && !live; i++)
    live = natives[i].bytes == bytes;
  pthread_mutex_unlock(&natives_mutex);
  return live;
}

/* ---- help ---- */

/* Device memory that the request lacks; all of it when the driver doesn't say. */
static size_t lacking(size_t bytes) {
  size_t free_bytes = 0, total = 0;
  if (driver.cuMemGetInfo_v2(&free_bytes, &total) || free_bytes >= bytes)
    return bytes;
  return bytes - free_bytes;
}

static CUresult help_by_eviction(CUdeviceptr *pointer, size_t bytes) {
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  for (int i = 0; i < EVICTIONS && result == CUDA_ERROR_OUT_OF_MEMORY; i++) {
    const size_t wanted =
        lacking(bytes); /* another thread may take what was freed: more than once */
    enqueue_lock();
    const size_t freed = state_evict(wanted);
    enqueue_unlock();
    if (!freed)
      break;
    result = range_create(pointer, bytes, PIECE_DEVICE);
  }
  return result;
}

static bool may_overflow(size_t bytes) {
  return process_config()->overflow && !switch_off() && state_step() <= 1 && step_adam_seen() &&
         repeats_live(bytes);
}

/* The driver's own memory for a request that as pieces would take more than it asks for. */
static bool fits_unrounded(CUdeviceptr *pointer, size_t bytes) {
  CUdevice device;
  if (driver.cuCtxGetDevice(&device))
    return false;
  const size_t piece_bytes = range_piece_bytes(device);
  if (!piece_bytes || bytes % piece_bytes == 0 || driver.cuMemAlloc_v2(pointer, bytes))
    return false;
  pressure_native_allocated(*pointer, bytes, false);
  pressure_satisfied(bytes);
  return true;
}

CUresult pressure_allocate(CUdeviceptr *pointer, size_t bytes, CUresult first) {
  if (first != CUDA_ERROR_OUT_OF_MEMORY)
    return first;
  if (step_give_back()) { /* staging is never why a request fails */
    const CUresult result = range_create(pointer, bytes, PIECE_DEVICE);
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
      return result;
  }
  if (!process_capture_open() && fits_unrounded(pointer, bytes))
    return CUDA_SUCCESS;
  const enum config_mode mode = process_config()->mode;
  if (mode == MODE_OFF || mode == MODE_OBSERVE || process_capture_open())
    return first;
  if (!forget_failed(bytes)) {
    failed[failed_next++ % RETRIES] = bytes;
    report_add(refused_out_of_memory, 1);
    return first;
  }
  char size[REPORT_SIZE_BYTES];
  CUresult result = help_by_eviction(pointer, bytes);
  if (!result) {
    report_line(LOG_VERBOSE, "state was moved to make room for %s", report_size_text(bytes, size));
    return result;
  }
  if (may_overflow(bytes)) {
    result = range_create(pointer, bytes, PIECE_HOST);
    if (!result) {
      /* Once; the line at exit has the sum. */
      static _Atomic bool told;
      report_line(atomic_exchange_explicit(&told, true, memory_order_relaxed) ? LOG_VERBOSE
                                                                              : LOG_NORMAL,
                  "the device is full: %s that looks like optimizer state begins in host "
                  "memory (OFFLOAD_OVERFLOW=0 forbids it)",
                  report_size_text(bytes, size));
      return result;
    }
  }
  return CUDA_ERROR_OUT_OF_MEMORY;
}
