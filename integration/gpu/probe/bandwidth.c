/* P6: GB/s of copies and of kernels on three kinds of host memory: cuMemHostAlloc, one large host
   handle, host handles of 2 MiB as the library makes them; one way, and both ways at once. */
#include "probe.h"

enum { REPEATS = 4 }; /* the first is not counted */

struct memory {
  const char *name;
  CUdeviceptr at;
};

static size_t
    bytes; /* of each kind; a half of it goes up and the other down where both ways are asked */
static CUdeviceptr device;
static CUstream second;

enum motion {
  CE_UP,
  CE_DOWN,
  CE_BOTH,
  CE_UP_DTOD,
  CE_DOWN_DTOD,
  SM_READ,
  SM_WRITE,
  SM_UPDATE,
  MOTIONS
};
static const char *const motion_names[] = {"copy_up",  "copy_down",         "copy_both_each_way",
                                           "dtod_up",  "dtod_down",         "sm_read",
                                           "sm_write", "sm_update_each_way"};

static CUresult by_kernel(const char *name, CUdeviceptr at, void *third) {
  uint64_t lines = bytes / 16;
  void *parameters[] = {&at, &lines, third};
  return launch(kernel(name), blocks_for(lines), THREADS, machine.stream, parameters);
}

static CUresult begin_motion(enum motion motion, CUdeviceptr host) {
  size_t half = bytes / 2;
  uint32_t value = 1;
  void *here = (void *)(uintptr_t)host;
  CUresult result;
  switch (motion) {
  case CE_UP:
    return CALL_CU(cuMemcpyHtoDAsync_v2, device, here, bytes, machine.stream);
  case CE_DOWN:
    return CALL_CU(cuMemcpyDtoHAsync_v2, here, device, bytes, machine.stream);
  case CE_BOTH:
    result = CALL_CU(cuMemcpyHtoDAsync_v2, device, here, half, machine.stream);
    return result != CUDA_SUCCESS
               ? result
               : CALL_CU(cuMemcpyDtoHAsync_v2, (char *)here + half, device + half, half, second);
  case CE_UP_DTOD:
    return CALL_CU(cuMemcpyDtoDAsync_v2, device, host, bytes, machine.stream);
  case CE_DOWN_DTOD:
    return CALL_CU(cuMemcpyDtoDAsync_v2, host, device, bytes, machine.stream);
  case SM_READ:
    return by_kernel("probe_read", host, &machine.errors);
  case SM_WRITE:
    return by_kernel("probe_write", host, &value);
  default:
    return by_kernel("probe_update", host, NULL);
  }
}

static void measure(enum motion motion, const struct memory *memory) {
  double best = 0;
  size_t each_way = motion == CE_BOTH ? bytes / 2 : bytes;
  step(named("measuring %s on %s", motion_names[motion], memory->name));
  for (int i = 0; i < REPEATS; i++) {
    double begin = now_us();
    CUresult result = begin_motion(motion, memory->at);
    if (!expect(result == CUDA_SUCCESS, "%s on %s works, not %s", motion_names[motion],
                memory->name, result_name(result)))
      return;
    MUST(cuStreamSynchronize, machine.stream);
    MUST(cuStreamSynchronize, second);
    double rate = (double)each_way / (now_us() - begin) / 1e3;
    best = i > 0 && rate > best ? rate : best;
  }
  fact_number(named("%s_%s_GBps", motion_names[motion], memory->name), best);
}

void probe_bandwidth(void) {
  start();
  need_host();
  size_t piece = machine.granularity > 2 * MIB ? machine.granularity : 2 * MIB;
  bytes = (machine.simulated ? 2 : 256) * piece;
  fact_count("buffer_bytes", bytes);
  MUST(cuMemAlloc_v2, &device, bytes);
  MUST(cuStreamCreate, &second, CU_STREAM_NON_BLOCKING);
  step("making host memory");
  struct memory memories[] = {{"pinned", (CUdeviceptr)(uintptr_t)host_alloc(bytes)},
                              {"vmm", reserve(bytes)},
                              {"vmm_2MiB", reserve(bytes)}};
  put(memories[1].at, bytes, ON_HOST);
  for (size_t at = 0; at < bytes; at += piece)
    put(memories[2].at + at, piece, ON_HOST);
  for (int memory = 0; memory < 3; memory++) {
    fill_here((uint32_t *)(uintptr_t)memories[memory].at, bytes / 4, 1, 1);
    for (int motion = 0; motion < MOTIONS; motion++)
      measure((enum motion)motion, &memories[memory]);
  }
}
