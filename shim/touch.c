/* Streams and foreign use of watched ranges (touch.h, and the state_foreign_* part of state.h).

   The scan of a launch's parameters reads every aligned 8-byte word of every parameter: pointers
   lie there, also those in structs passed by value. A pointer into a watched range
   - notes the stream, whatever part of the range it is: moving waits for it;
   - marks as foreign-touched the pieces from the pointer to the end of the known state that it lies
   in, or its own piece where nothing is known. What a kernel reaches beyond is not seen; such
   memory goes home when a step leaves it out. Structs larger than WEAK_BYTES only note the stream:
   multi-tensor launches pass lists on the stack whose unused tail still holds addresses of an
   earlier launch, of moments above all, and these would go home at every step.

   Between a touch and the program's enqueue there is a moment in which a move may record its event:
   a program whose thread uses state just while another steps it races with itself, but one that
   uses the neighbour in the same piece doesn't. A move therefore gives up a piece that was touched
   since it began to wait; what remains is the time of one driver call. */
#include "touch.h"
#include "../policy/report.h"
#include "driver.h"
#include "process.h"
#include "quiet.h"
#include "state.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { WEAK_BYTES = 1024, ORPHANS = 64, FUNCTION_SLOTS = 4096, FUNCTION_PROBES = 16 };

/* ---- parameter sizes of functions ---- */

/* Made once, never changed but for `generation`, never freed: a reader may hold one. Their number
   is bounded by the functions that ever were, since a handle that comes again finds its old entry.
 */
struct parameters {
  CUfunction function;
  _Atomic uint64_t generation;
  struct parameters *older; /* same handle, other sizes */
  uint32_t count;
  uint32_t bytes[];
};

static _Atomic(struct parameters *) functions[FUNCTION_SLOTS];
static _Atomic uint64_t generation = 1;
static pthread_mutex_t functions_mutex = PTHREAD_MUTEX_INITIALIZER; /* writers */

void state_forget_functions(void) {
  atomic_fetch_add(&generation, 1);
}

static size_t function_slot(CUfunction function) {
  return (size_t)(((uintptr_t)function >> 4) * 0x9e3779b97f4a7c15u >> 52) % FUNCTION_SLOTS;
}

/* Size of a parameter; 0 past the last. A kernel may come in place of a function (cuda.h,
   cuLaunchKernel): only the first parameter is asked for both ways. */
static size_t parameter_bytes(CUfunction function, size_t i, bool *kernel) {
  size_t offset, bytes;
  if (!*kernel && driver.cuFuncGetParamInfo &&
      !driver.cuFuncGetParamInfo(function, i, &offset, &bytes))
    return bytes;
  *kernel |= i == 0;
  if (*kernel && driver.cuKernelGetParamInfo &&
      !driver.cuKernelGetParamInfo((CUkernel)function, i, &offset, &bytes))
    return bytes;
  return 0;
}

static struct parameters *ask_parameters(CUfunction function, uint64_t now) {
  uint32_t count = 0, room = 16;
  bool kernel = false;
  struct parameters *made = malloc(sizeof *made + room * sizeof made->bytes[0]);
  for (size_t bytes; made && (bytes = parameter_bytes(function, count, &kernel)) != 0;) {
    if (count == room) {
      room *= 2;
      struct parameters *grown = realloc(made, sizeof *made + room * sizeof made->bytes[0]);
      if (!grown)
        free(made);
      made = grown;
      if (!made)
        break;
    }
    made->bytes[count++] = bytes > UINT32_MAX ? 0 : (uint32_t)bytes;
  }
  if (!made)
    return NULL;
  made->function = function;
  made->count = count;
  made->older = NULL;
  atomic_init(&made->generation, now);
  return made;
}

/* The entry for a function that no reader found: asks the driver, then inserts or renews one. NULL:
 * table full there. */
static const struct parameters *learn_parameters(CUfunction function, uint64_t now) {
  struct parameters *made = ask_parameters(function, now);
  const struct parameters *result = made;
  if (!made)
    return NULL;
  pthread_mutex_lock(&functions_mutex);
  for (size_t probe = 0; probe < FUNCTION_PROBES; probe++) {
    _Atomic(struct parameters *) *slot =
        &functions[(function_slot(function) + probe) % FUNCTION_SLOTS];
    struct parameters *first = atomic_load_explicit(slot, memory_order_relaxed);
    if (first && first->function != function)
      continue;
    struct parameters *same = first;
    while (same && (same->count != made->count ||
                    memcmp(same->bytes, made->bytes, made->count * sizeof made->bytes[0]) != 0))
      same = same->older;
    if (same) { /* renewed; an entry in front of it is of an older generation and stays so */
      atomic_store_explicit(&same->generation, now, memory_order_release);
      free(made);
      result = same;
    } else {
      made->older = first;
      atomic_store_explicit(slot, made, memory_order_release); /* its content before the pointer */
    }
    pthread_mutex_unlock(&functions_mutex);
    return result;
  }
  pthread_mutex_unlock(&functions_mutex);
  free(made);
  report_reason(
      "more kernels than fit the scan's table: some launches are not looked at for state");
  return NULL;
}

static const struct parameters *find_parameters(CUfunction function) {
  const uint64_t now = atomic_load_explicit(&generation, memory_order_relaxed);
  for (size_t probe = 0; probe < FUNCTION_PROBES; probe++) {
    const struct parameters *entry = atomic_load_explicit(
        &functions[(function_slot(function) + probe) % FUNCTION_SLOTS], memory_order_acquire);
    if (!entry)
      break;
    for (; entry && entry->function == function; entry = entry->older)
      if (atomic_load_explicit(&entry->generation, memory_order_acquire) == now)
        return entry;
  }
  CUstreamCaptureMode mode = quiet_begin();
  const struct parameters *learnt = learn_parameters(function, now);
  quiet_end(mode);
  return learnt;
}

/* ---- marking; under the table's lock ---- */

void touch_stream(struct range *range, CUstream stream) {
  const uintptr_t handle = stream ? (uintptr_t)stream : (uintptr_t)CU_STREAM_LEGACY;
  for (size_t i = 0; i < RANGE_STREAMS; i++) {
    struct range_stream *slot = &range->streams[i];
    uintptr_t held = atomic_load_explicit(&slot->stream, memory_order_relaxed);
    if (!held && atomic_compare_exchange_strong(&slot->stream, &held, handle))
      held = handle;
    if (held != handle)
      continue;
    if (!atomic_load_explicit(&slot->since_wait, memory_order_relaxed)) /* keeps the line shared */
      atomic_store_explicit(&slot->since_wait, true, memory_order_release);
    return;
  }
  if (!atomic_exchange(&range->streams_lost, true))
    report_reason("an allocation of %zu bytes is used by more than %d streams: its state stays "
                  "where it is",
                  range->bytes, (int)RANGE_STREAMS);
}

/* Where the known state that an address lies in ends, or the address + 1. */
static uintptr_t known_end(const struct range *range, uintptr_t address) {
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

/* True when a piece among them is on the host. */
static bool mark_pieces(struct range *range, uintptr_t from, uintptr_t to) {
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

static bool watched(const struct range *range) {
  return atomic_load_explicit(&range->has_state, memory_order_relaxed) ||
         atomic_load_explicit(&range->host_pieces, memory_order_relaxed);
}

static void touch_range(struct range *range, CUstream stream) {
  touch_stream(range, stream);
  atomic_fetch_add_explicit(&range->touches, 1, memory_order_release);
  if (process_capture_open()) /* a graph may hold the address from now on */
    atomic_store_explicit(&range->immovable, true, memory_order_relaxed);
}

/* ---- launches ---- */

struct scan {
  CUstream stream;
  uintptr_t low, high; /* of watched ranges */
  bool held;           /* the table's lock */
  bool host;           /* a piece on the host was touched */
  struct range *range; /* the last one found, */
  uintptr_t from, to;  /* and the addresses for which that is the answer */
};

static void hit(struct scan *scan, uintptr_t address, bool weak) {
  if (!scan->held) {
    range_table_hold();
    scan->held = true;
  }
  if (address - scan->from >= scan->to - scan->from || scan->from == scan->to) {
    scan->range = range_held(address);
    scan->from = scan->range ? scan->range->base : address;
    scan->to = scan->range ? scan->range->base + scan->range->bytes : address + 1;
    if (scan->range && !watched(scan->range))
      scan->range = NULL;
    if (scan->range)
      touch_range(scan->range, scan->stream);
  }
  if (scan->range && !weak)
    scan->host |= mark_pieces(scan->range, address, known_end(scan->range, address));
}

/* Every word is compared once: pointers are rare among parameters, and those of watched ranges
 * rarer. */
static void scan_bytes(struct scan *scan, const void *data, size_t bytes) {
  const char *at = data;
  const uintptr_t from = scan->low, span = scan->high - scan->low;
  for (size_t i = 0; i + sizeof(uint64_t) <= bytes; i += sizeof(uint64_t)) {
    uint64_t word;
    memcpy(&word, at + i, sizeof word); /* the program's copy need not be aligned */
    if (__builtin_expect(word - from < span, 0))
      hit(scan, word, bytes > WEAK_BYTES);
  }
}

static void scan_extra(struct scan *scan, void **extra) {
  const void *buffer = NULL;
  size_t bytes = 0;
  for (size_t i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
      buffer = extra[i + 1];
    else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
      bytes = *(const size_t *)extra[i + 1];
    else
      return; /* a tag of a later driver: where the list ends isn't known */
  }
  if (buffer)
    scan_bytes(scan, buffer, bytes);
}

void state_foreign_launch(CUfunction function, CUstream stream, void **kernel_parameters,
                          void **extra) {
  struct scan scan = {.stream = stream};
  range_watched(&scan.low, &scan.high);
  if (scan.low >= scan.high)
    return;
  if (extra && !kernel_parameters) {
    scan_extra(&scan, extra);
  } else if (kernel_parameters) {
    if (!driver.cuFuncGetParamInfo && !driver.cuKernelGetParamInfo) {
      report_reason("launches are not scanned for state: this driver doesn't tell parameter sizes "
                    "(CUDA 12.4 or later does)");
      return;
    }
    const struct parameters *sizes = find_parameters(function);
    for (uint32_t i = 0; sizes && i < sizes->count; i++)
      if (sizes->bytes[i] >= sizeof(uint64_t) && kernel_parameters[i])
        scan_bytes(&scan, kernel_parameters[i], sizes->bytes[i]);
  }
  if (scan.held)
    range_table_release();
  if (scan.host)
    report_add(foreign_touches, 1);
}

/* ---- copies and memsets ---- */

void state_foreign_access(uintptr_t address, size_t bytes, CUstream stream, bool writes) {
  uintptr_t from, to;
  range_watched(&from, &to);
  if (!bytes || address < from || address >= to)
    return;
  bool host = false;
  range_table_hold();
  struct range *range = range_held(address);
  if (range && watched(range)) {
    touch_range(range, stream);
    const size_t room = range->bytes - (address - range->base);
    if (writes)
      host = mark_pieces(range, address, address + (bytes < room ? bytes : room));
  }
  range_table_release();
  if (host)
    report_add(foreign_touches, 1);
}

/* ---- destroyed streams ---- */

/* Protects the orphans; never held across a driver call. */
static pthread_mutex_t orphans_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
  CUcontext context;
  CUevent event;
} orphans[ORPHANS];
static size_t orphan_count;

/* Frees the stream's slots; true when it has touched something since the last wait. */
static bool release_slots(uintptr_t handle) {
  bool pending = false;
  range_table_hold();
  struct range *range;
  for (size_t i = 0; (range = range_nth(i)); i++)
    for (size_t k = 0; k < RANGE_STREAMS; k++) {
      struct range_stream *slot = &range->streams[k];
      if (atomic_load_explicit(&slot->stream, memory_order_relaxed) != handle)
        continue;
      pending |= atomic_exchange(&slot->since_wait, false);
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
  CUevent event;
  while (touch_orphans(context, &event, 1))
    touch_orphan_done(event);
}
