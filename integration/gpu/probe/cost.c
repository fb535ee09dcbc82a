/* P5: microseconds per call by size and place, one call over many pieces, whether new memory is
   zero, and which calls wait while an unrelated kernel runs. */
#include "probe.h"
#include <string.h>

enum { MOST = 64, CREATE = 0, MAP, ACCESS, UNMAP, RELEASE, CALLS };
static const char *const call_names[] = {"create", "map", "setaccess", "unmap", "release"};
static const char *const place_names[] = {"device", "host"};

static void one_size(enum place place, size_t megabytes) {
  size_t bytes = megabytes * MIB, total = machine.simulated ? 64 * MIB : 256 * MIB;
  size_t count = total / bytes < MOST ? total / bytes : MOST;
  static double us[CALLS][MOST];
  CUmemGenericAllocationHandle handles[MOST];
  CUdeviceptr va = reserve(count * bytes);
  double created = 0;
  for (int call = 0; call < CALLS; call++)
    for (size_t i = 0; i < count; i++) {
      CUdeviceptr at = va + i * bytes;
      double begin = now_us();
      CUresult result = call == CREATE ? create(place, bytes, &handles[i])
                        : call == MAP  ? map(at, bytes, handles[i])
                        : call == ACCESS
                            ? grant(at, bytes, place == ON_HOST ? FOR_BOTH : FOR_DEVICE)
                        : call == UNMAP ? CALL_CU(cuMemUnmap, at, bytes)
                                        : CALL_CU(cuMemRelease, handles[i]);
      us[call][i] = now_us() - begin;
      must_succeed(result, call_names[call], __FILE__, __LINE__);
      created += call == CREATE ? us[call][i] : 0;
    }
  for (int call = 0; call < CALLS; call++)
    fact_number(named("%s_%s_%zuMiB_us", call_names[call], place_names[place], megabytes),
                median(us[call], count));
  fact_number(named("create_%s_%zuMiB_GBps", place_names[place], megabytes),
              (double)(count * bytes) / created / 1e3);
  MUST(cuMemAddressFree, va, count * bytes);
}

/* 32 pieces of 2 MiB side by side: the library moves so many at once. */
static void many_at_once(enum place place) {
  enum { PIECES = 32 };
  const size_t bytes = 2 * MIB;
  CUdeviceptr va = reserve(PIECES * bytes);
  CUmemGenericAllocationHandle handles[PIECES];
  for (size_t i = 0; i < PIECES; i++) {
    must_succeed(create(place, bytes, &handles[i]), "cuMemCreate", __FILE__, __LINE__);
    must_succeed(map(va + i * bytes, bytes, handles[i]), "cuMemMap", __FILE__, __LINE__);
  }
  double begin = now_us();
  must_succeed(grant(va, PIECES * bytes, place == ON_HOST ? FOR_BOTH : FOR_DEVICE),
               "cuMemSetAccess", __FILE__, __LINE__);
  double granted = now_us();
  MUST(cuMemUnmap, va, PIECES * bytes);
  double unmapped = now_us();
  fact_number(named("setaccess_%s_32_pieces_us_per_piece", place_names[place]),
              (granted - begin) / PIECES);
  fact_number(named("unmap_%s_32_pieces_us_per_piece", place_names[place]),
              (unmapped - granted) / PIECES);
  for (size_t i = 0; i < PIECES; i++)
    MUST(cuMemRelease, handles[i]);
  MUST(cuMemAddressFree, va, PIECES * bytes);
}

/* Memory is soiled and given back first: memory that was never used is zero anyway. */
static void is_new_memory_zero(enum place place) {
  enum { PIECES = 8 };
  size_t bytes = machine.granularity;
  CUdeviceptr va = reserve(PIECES * bytes);
  CUmemGenericAllocationHandle handles[PIECES];
  for (int round = 0; round < 2; round++) {
    for (size_t i = 0; i < PIECES; i++)
      handles[i] = put(va + i * bytes, bytes, place);
    if (round == 1) {
      uint64_t wrong = mismatches(va, PIECES * bytes / 4, 0, 0, machine.stream);
      fact_bool(named("new_%s_memory_is_zero", place_names[place]), wrong == 0);
    }
    MUST(cuMemsetD32Async, va, 0xa5a5a5a5, PIECES * bytes / 4, machine.stream);
    MUST(cuStreamSynchronize, machine.stream);
    for (size_t i = 0; i < PIECES; i++)
      take_away(va + i * bytes, bytes, handles[i]);
  }
  MUST(cuMemAddressFree, va, PIECES * bytes);
}

/* ---- what waits for running work ---- */

enum asked {
  A_CREATE_DEVICE,
  A_CREATE_HOST,
  A_MAP,
  A_ACCESS,
  A_UNMAP,
  A_RELEASE,
  A_ALLOC,
  A_FREE,
  A_HOST_ALLOC,
  A_HOST_FREE,
  A_STREAM,
  A_LOAD,
  A_INFO,
  ASKED
};
static const char *const asked_names[] = {
    "create_device",  "create_host",      "map",         "setaccess",      "unmap",
    "release",        "cuMemAlloc",       "cuMemFree",   "cuMemHostAlloc", "cuMemFreeHost",
    "cuStreamCreate", "cuModuleLoadData", "cuMemGetInfo"};
struct subject {
  enum asked what;
  size_t bytes;
  CUdeviceptr va, memory;
  CUmemGenericAllocationHandle handle;
  void *host;
  CUstream stream;
  CUmodule module;
  size_t free, total;
};

/* What the call needs. */
static void prepare(struct subject *s) {
  switch (s->what) {
  case A_MAP:
  case A_RELEASE:
    must_succeed(create(ON_DEVICE, s->bytes, &s->handle), "cuMemCreate", __FILE__, __LINE__);
    break;
  case A_ACCESS:
    must_succeed(create(ON_DEVICE, s->bytes, &s->handle), "cuMemCreate", __FILE__, __LINE__);
    must_succeed(map(s->va, s->bytes, s->handle), "cuMemMap", __FILE__, __LINE__);
    break;
  case A_UNMAP:
    s->handle = put(s->va, s->bytes, ON_DEVICE);
    break;
  case A_FREE:
    MUST(cuMemAlloc_v2, &s->memory, s->bytes);
    break;
  case A_HOST_FREE:
    s->host = host_alloc(s->bytes);
    break;
  default:
    break;
  }
}

/* Takes back what a successful call made, and what it needed. */
static void undo(struct subject *s) {
  switch (s->what) {
  case A_CREATE_DEVICE:
  case A_CREATE_HOST:
  case A_UNMAP:
    MUST(cuMemRelease, s->handle);
    break;
  case A_MAP:
  case A_ACCESS:
    take_away(s->va, s->bytes, s->handle);
    break;
  case A_ALLOC:
    MUST(cuMemFree_v2, s->memory);
    break;
  case A_HOST_ALLOC:
    MUST(cuMemFreeHost, s->host);
    break;
  case A_STREAM:
    MUST(cuStreamDestroy_v2, s->stream);
    break;
  case A_LOAD:
    MUST(cuModuleUnload, s->module);
    break;
  default:
    break;
  }
}

static CUresult call(void *argument) {
  struct subject *s = argument;
  switch (s->what) {
  case A_CREATE_DEVICE:
    return create(ON_DEVICE, s->bytes, &s->handle);
  case A_CREATE_HOST:
    return create(ON_HOST, s->bytes, &s->handle);
  case A_MAP:
    return map(s->va, s->bytes, s->handle);
  case A_ACCESS:
    return grant(s->va, s->bytes, FOR_DEVICE);
  case A_UNMAP:
    return CALL_CU(cuMemUnmap, s->va, s->bytes);
  case A_RELEASE:
    return CALL_CU(cuMemRelease, s->handle);
  case A_ALLOC:
    return CALL_CU(cuMemAlloc_v2, &s->memory, s->bytes);
  case A_FREE:
    return CALL_CU(cuMemFree_v2, s->memory);
  case A_HOST_ALLOC:
    return CALL_CU(cuMemHostAlloc, &s->host, s->bytes, 0);
  case A_HOST_FREE:
    return CALL_CU(cuMemFreeHost, s->host);
  case A_STREAM:
    return CALL_CU(cuStreamCreate, &s->stream, CU_STREAM_NON_BLOCKING);
  case A_LOAD:
    return CALL_CU(cuModuleLoadData, &s->module, kernel_text());
  default:
    return CALL_CU(cuMemGetInfo_v2, &s->free, &s->total);
  }
}

static void does_it_wait(enum asked what) {
  struct subject subject = {.what = what, .bytes = machine.granularity};
  subject.va = reserve(subject.bytes);
  CUresult result = CUDA_SUCCESS;
  bool waits = true;
  step(named("asking whether %s waits for a running kernel", asked_names[what]));
  for (int tries = 0; tries < 2 && waits; tries++) {
    prepare(&subject);
    waits = waits_for_work(machine.stream, true, call, &subject, &result);
    must_succeed(result, asked_names[what], __FILE__, __LINE__);
    undo(&subject);
  }
  fact_bool(named("%s_waits_for_running_kernel", asked_names[what]), waits);
  MUST(cuMemAddressFree, subject.va, subject.bytes);
}

void probe_cost(void) {
  static const size_t megabytes[] = {2, 16, 32, 64};
  start();
  need_host();
  for (int place = ON_DEVICE; place <= ON_HOST; place++) {
    for (int size = 0; size < 4; size++) {
      step(named("timing handles of %zu MiB on the %s", megabytes[size], place_names[place]));
      one_size((enum place)place, megabytes[size]);
    }
    step("timing calls over many pieces");
    many_at_once((enum place)place);
    step("looking at new memory");
    is_new_memory_zero((enum place)place);
  }
  for (int what = 0; what < ASKED; what++)
    does_it_wait((enum asked)what);
}
