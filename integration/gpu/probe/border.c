/* P3: single calls over a device piece, a host piece, and the border between the two; their
   answers, whether the data is right, and whether the caller is made to wait for its stream. */
#include "probe.h"
#include <string.h>

enum operation {
  KERNEL,
  MEMSET,
  UP,
  DOWN,
  TO_DEVICE,
  FROM_DEVICE,
  TO_HOST,
  UNIFIED_UP,
  BATCH,
  OPERATIONS
};
static const char *const names[] = {"kernel",       "memset",         "htod",
                                    "dtoh",         "dtod_to_device", "dtod_from_device",
                                    "dtod_to_host", "memcpy_htod",    "batch_to_device"};
enum { STRIDE = 7 };

static size_t bytes; /* of each piece, and of each call */
static CUdeviceptr device_buffer;
static uint32_t *pinned;  /* of cuMemHostAlloc */
static CUdeviceptr other; /* a host piece elsewhere */

struct asked {
  enum operation operation;
  CUdeviceptr at;
  uint32_t seed;
};

typedef CUresult (*old_batch)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *,
                              size_t *, size_t, size_t *, CUstream);

static CUresult batch(CUdeviceptr to, CUdeviceptr from) {
  CUmemcpyAttributes attributes;
  size_t first = 0, failed, half = bytes / 2, sizes[] = {half, half};
  CUdeviceptr targets[] = {to, to + half}, sources[] = {from, from + half};
  memset(&attributes, 0, sizeof attributes);
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  if (cu.cuMemcpyBatchAsync_v2 != NULL)
    return cu.cuMemcpyBatchAsync_v2(targets, sources, sizes, 2, &attributes, &first, 1,
                                    machine.stream);
  old_batch call = (old_batch)driver_symbol("cuMemcpyBatchAsync"); /* of CUDA 12.8 */
  return call != NULL
             ? call(targets, sources, sizes, 2, &attributes, &first, 1, &failed, machine.stream)
             : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult carry_out(void *argument) {
  const struct asked *a = argument;
  CUstream stream = machine.stream;
  switch (a->operation) {
  case KERNEL:
    return fill(a->at, bytes / 4, a->seed, STRIDE, stream);
  case MEMSET:
    return CALL_CU(cuMemsetD32Async, a->at, a->seed, bytes / 4, stream);
  case UP:
    return CALL_CU(cuMemcpyHtoDAsync_v2, a->at, pinned, bytes, stream);
  case DOWN:
    return CALL_CU(cuMemcpyDtoHAsync_v2, pinned, a->at, bytes, stream);
  case TO_DEVICE:
    return CALL_CU(cuMemcpyDtoDAsync_v2, device_buffer, a->at, bytes, stream);
  case FROM_DEVICE:
    return CALL_CU(cuMemcpyDtoDAsync_v2, a->at, device_buffer, bytes, stream);
  case TO_HOST:
    return CALL_CU(cuMemcpyDtoDAsync_v2, other, a->at, bytes, stream);
  case UNIFIED_UP:
    return CALL_CU(cuMemcpyAsync, a->at, (CUdeviceptr)(uintptr_t)pinned, bytes, stream);
  default:
    return batch(device_buffer, a->at);
  }
}

/* Sources hold the seed before, targets something else. */
static void prepare(const struct asked *a) {
  bool out = a->operation == DOWN || a->operation == TO_DEVICE || a->operation == TO_HOST ||
             a->operation == BATCH;
  CUdeviceptr source = a->operation == FROM_DEVICE ? device_buffer : out ? a->at : 0;
  if (source != 0)
    must_succeed(fill(source, bytes / 4, a->seed, STRIDE, machine.stream), "probe_fill", __FILE__,
                 __LINE__);
  CUdeviceptr target = a->operation == TO_DEVICE || a->operation == BATCH ? device_buffer
                       : a->operation == TO_HOST                          ? other
                       : a->operation == DOWN                             ? 0
                                                                          : a->at;
  if (target != 0)
    must_succeed(fill(target, bytes / 4, ~a->seed, STRIDE, machine.stream), "probe_fill", __FILE__,
                 __LINE__);
  MUST(cuStreamSynchronize, machine.stream);
  fill_here(pinned, bytes / 4, a->operation == DOWN ? ~a->seed : a->seed, STRIDE);
}

static uint64_t wrong_words(const struct asked *a) {
  uint32_t stride = a->operation == MEMSET ? 0 : STRIDE;
  switch (a->operation) {
  case DOWN:
    return mismatches_here(pinned, bytes / 4, a->seed, stride);
  case TO_DEVICE:
  case BATCH:
    return mismatches(device_buffer, bytes / 4, a->seed, stride, machine.stream);
  case TO_HOST:
    return mismatches(other, bytes / 4, a->seed, stride, machine.stream);
  default:
    return mismatches(a->at, bytes / 4, a->seed, stride, machine.stream);
  }
}

static void ask(enum operation operation, const char *where, CUdeviceptr at) {
  static uint32_t seed = 1000;
  struct asked asked = {operation, at, seed += 1000};
  CUresult result = CUDA_SUCCESS;
  const char *name = named("%s_%s", names[operation], where);
  step(name);
  bool blocks = true;
  for (int tries = 0; tries < 2 && blocks; tries++) {
    prepare(&asked);
    blocks = waits_for_work(machine.stream, false, carry_out, &asked, &result);
  }
  fact_result(name, result);
  if (unsupported(result))
    return;
  if (!expect(result == CUDA_SUCCESS, "%s: one call over it is possible, not %s", name,
              result_name(result)))
    return;
  fact_bool(named("%s_blocks", name), blocks);
  uint64_t wrong = wrong_words(&asked);
  fact_bool(named("%s_right", name), wrong == 0);
  expect(wrong == 0, "%s: the data is right (%llu words differ)", name, (unsigned long long)wrong);
}

void probe_border(void) {
  start();
  need_host();
  bytes = machine.granularity;
  fact_count("call_bytes", bytes);
  CUdeviceptr va = reserve(2 * bytes);
  other = reserve(bytes);
  put(va, bytes, ON_DEVICE);
  put(va + bytes, bytes, ON_HOST);
  put(other, bytes, ON_HOST);
  MUST(cuMemAlloc_v2, &device_buffer, bytes);
  pinned = host_alloc(bytes);
  const struct {
    const char *name;
    CUdeviceptr at;
  } places[] = {{"device", va}, {"host", va + bytes}, {"border", va + bytes / 2}};
  for (int operation = 0; operation < OPERATIONS; operation++)
    for (int place = 0; place < 3; place++)
      ask((enum operation)operation, places[place].name, places[place].at);
}
