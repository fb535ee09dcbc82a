/* The link and the GPU, for offload-probe (probe.h): copies and kernels between a little device memory and host pages made as those
   of the state are (HOST_NUMA handles on the GPU's node, HOST handles, else cuMemHostAlloc). Each rate is a median of a few batches of
   some milliseconds; what is slow (a simulated GPU) is measured with less. The driver is loaded by itself, and what was made is left to
   the process's end. */
#define _GNU_SOURCE
#include "../nvme/clock.h"
#include "probe.h"
#include "probe_ptx.h"
#include <ctype.h>
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct probe_gpu {
#define NEED(name) __typeof__(&name) name;
#define WANT(name) __typeof__(&name) name;
#include "probe_driver.def"
#undef NEED
#undef WANT
  CUdevice device;
  CUdeviceptr memory[2];   /* of the device */
  unsigned char *pages[2]; /* of the host: the same address for CPU and GPU */
  size_t bytes;            /* of each */
  CUstream streams[2];
  CUfunction read, write;
};

enum { BATCHES = 3, BLOCKS = 1024, BLOCK_THREADS = 256, STARTS = 64 };
static const size_t most_bytes = 96ul << 20, least_bytes = 1ul << 20, first_bytes = 256ul << 10;
/* Context, module and two buffers: less free memory than this is left to the program. */
static const size_t wanted_free_bytes = 512ul << 20;
static const uint64_t batch_ns = 8000000;

static bool load(struct probe_gpu *gpu, char *problem, size_t bytes) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!driver)
    return rates_fail(problem, bytes, "no NVIDIA driver: %s", dlerror());
#define WANT(name) gpu->name = (__typeof__(&name))(uintptr_t)dlsym(driver, #name);
#define NEED(name)                                                                                 \
  WANT(name)                                                                                       \
  if (!gpu->name)                                                                                  \
    return rates_fail(problem, bytes, "the driver lacks %s", #name);
#include "probe_driver.def"
#undef NEED
#undef WANT
  return true;
}

/* A number or a bus id; what is there is told where it is none. */
static bool find_device(struct probe_gpu *gpu, const char *which, char *problem, size_t bytes) {
  const bool number = *which && !which[strspn(which, "0123456789")];
  int count = 0;
  if (number ? !gpu->cuDeviceGet(&gpu->device, atoi(which))
             : !gpu->cuDeviceGetByPCIBusId(&gpu->device, which))
    return true;
  if (!gpu->cuDeviceGetCount || gpu->cuDeviceGetCount(&count))
    return rates_fail(problem, bytes, "no GPU %s here: name it by number or PCI bus id", which);
  if (count == 1)
    return rates_fail(problem, bytes,
                      "no GPU %s here, where there is one: name it 0, or by its PCI bus id", which);
  return rates_fail(
      problem, bytes,
      "no GPU %s here, where there are %d: name one by number, 0 to %d, or by PCI bus id", which,
      count, count - 1);
}

struct probe_gpu *probe_gpu_open(const char *which, struct rates_key *key, int *version,
                                 char *problem, size_t bytes) {
  struct probe_gpu *gpu = calloc(1, sizeof *gpu);
  CUresult result;
  if (!gpu || !load(gpu, problem, bytes)) {
    free(gpu);
    return NULL;
  }
  /* load has found all that is needed, or failed. NOLINTBEGIN(clang-analyzer-core.CallAndMessage) */
  if ((result = gpu->cuInit(0))) {
    rates_fail(problem, bytes, "cuInit answers %d: no GPU that this process may use", (int)result);
  } else if (!find_device(gpu, which, problem, bytes)) {
    /* said */
  } else if ((result = gpu->cuDriverGetVersion(version)) ||
             (result = gpu->cuDeviceGetPCIBusId(key->gpu, sizeof key->gpu, gpu->device))) {
    rates_fail(problem, bytes, "the driver answers error %d", (int)result);
  } else {
    if (!gpu->cuDeviceGetName || gpu->cuDeviceGetName(key->name, sizeof key->name, gpu->device))
      *key->name = 0;
    return gpu;
  }
  /* NOLINTEND(clang-analyzer-core.CallAndMessage) */
  free(gpu);
  return NULL;
}

/* Both buffers as one handle on host memory, open to the device and the CPU. */
static CUresult make_pages(struct probe_gpu *gpu, CUmemLocation location, CUdeviceptr *address) {
  const size_t bytes = 2 * gpu->bytes;
  const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .location = location};
  const CUmemAccessDesc access[] = {{{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu->device},
                                     CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
                                    {location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
  CUmemGenericAllocationHandle handle;
  CUresult result = gpu->cuMemAddressReserve(address, bytes, 0, 0, 0);
  if (result)
    return result;
  if (!(result = gpu->cuMemCreate(&handle, bytes, &properties, 0))) {
    if (!(result = gpu->cuMemMap(*address, bytes, 0, handle, 0))) {
      if ((result = gpu->cuMemSetAccess(*address, bytes, access, 2)))
        (void)gpu->cuMemUnmap(*address, bytes);
    }
    (void)gpu->cuMemRelease(handle); /* goes with its mapping */
  }
  if (result)
    (void)gpu->cuMemAddressFree(*address, bytes);
  return result;
}

/* The host's buffers, written to, and what they are charged to. */
static CUresult host_pages(struct probe_gpu *gpu, struct probe *probe) {
  const CUmemLocation locations[] = {
      {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = probe->node < 0 ? 0 : probe->node},
      {.type = CU_MEM_LOCATION_TYPE_HOST}};
  const bool handles = gpu->cuMemCreate && gpu->cuMemMap && gpu->cuMemSetAccess &&
                       gpu->cuMemAddressReserve && gpu->cuMemAddressFree && gpu->cuMemUnmap &&
                       gpu->cuMemRelease;
  const struct probe_usage before = probe_usage_now(probe->root);
  CUdeviceptr address = 0;
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  for (size_t i = 0; handles && result && i < sizeof locations / sizeof *locations; i++)
    result = make_pages(gpu, locations[i], &address);
  void *memory = (void *)(uintptr_t)address; // NOLINT(performance-no-int-to-ptr)
  const bool as_the_states = !result;
  if (result && (result = gpu->cuMemHostAlloc(&memory, 2 * gpu->bytes, 0)))
    return result;
  memset(memory, 1, 2 * gpu->bytes);
  gpu->pages[0] = memory;
  gpu->pages[1] = gpu->pages[0] + gpu->bytes;
  const struct probe_usage after = probe_usage_now(probe->root);
  if (as_the_states)
    probe_charged(&probe->rates, &before, &after, 2 * gpu->bytes);
  else
    probe_say(probe, "no host handles: what the state's host pages are charged to isn't known");
  return CUDA_SUCCESS;
}

static CUresult make(struct probe_gpu *gpu, struct probe *probe) {
  size_t free_bytes, total_bytes, granularity = 0;
  CUcontext context;
  CUresult result;
  const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .location = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA,
                                                       .id = probe->node < 0 ? 0 : probe->node}};
  if ((result = gpu->cuDevicePrimaryCtxRetain(&context, gpu->device)) ||
      (result = gpu->cuCtxSetCurrent(context)) ||
      (result = gpu->cuMemGetInfo_v2(&free_bytes, &total_bytes)))
    return result;
  if (total_bytes > 4 * wanted_free_bytes && free_bytes < wanted_free_bytes)
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (!gpu->cuMemGetAllocationGranularity ||
      gpu->cuMemGetAllocationGranularity(&granularity, &properties,
                                         CU_MEM_ALLOC_GRANULARITY_MINIMUM) ||
      granularity < least_bytes)
    granularity = 2 * least_bytes;
  gpu->bytes = total_bytes / 64 < most_bytes ? total_bytes / 64 : most_bytes;
  gpu->bytes = (gpu->bytes + granularity - 1) / granularity * granularity;
  for (unsigned i = 0; i < 2; i++)
    if ((result = gpu->cuMemAlloc_v2(&gpu->memory[i], gpu->bytes)) ||
        (result = gpu->cuStreamCreate(&gpu->streams[i], CU_STREAM_NON_BLOCKING)))
      return result;
  return host_pages(gpu, probe);
}

/* One piece of work of so many bytes, enqueued on the first stream. */
typedef CUresult operation(struct probe_gpu *, size_t bytes);

static CUresult up(struct probe_gpu *gpu, size_t bytes) {
  return gpu->cuMemcpyHtoDAsync_v2(gpu->memory[0], gpu->pages[0], bytes, gpu->streams[0]);
}
static CUresult down(struct probe_gpu *gpu, size_t bytes) {
  return gpu->cuMemcpyDtoHAsync_v2(gpu->pages[1], gpu->memory[1], bytes, gpu->streams[0]);
}
static CUresult within(struct probe_gpu *gpu, size_t bytes) {
  return gpu->cuMemcpyDtoDAsync_v2(gpu->memory[1], gpu->memory[0], bytes, gpu->streams[0]);
}
static CUresult tiny(struct probe_gpu *gpu, size_t bytes) {
  (void)bytes;
  return gpu->cuMemsetD32Async(gpu->memory[0], 0, 1, gpu->streams[0]);
}
static CUresult kernel(struct probe_gpu *gpu, CUfunction function, size_t bytes) {
  CUdeviceptr at = (CUdeviceptr)(uintptr_t)gpu->pages[0], out = gpu->memory[0];
  uint64_t words = bytes / 16;
  void *parameters[] = {&at, &words, &out};
  const uint64_t blocks = (words + BLOCK_THREADS - 1) / BLOCK_THREADS;
  return gpu->cuLaunchKernel(function, blocks < BLOCKS ? (unsigned)blocks : BLOCKS, 1, 1,
                             BLOCK_THREADS, 1, 1, 0, gpu->streams[0], parameters, NULL);
}
static CUresult kernel_read(struct probe_gpu *gpu, size_t bytes) {
  return kernel(gpu, gpu->read, bytes);
}
static CUresult kernel_write(struct probe_gpu *gpu, size_t bytes) {
  return kernel(gpu, gpu->write, bytes);
}

/* Nanoseconds that `count` of them take. */
static CUresult time_of(struct probe_gpu *gpu, operation *work, size_t bytes, unsigned count,
                        uint64_t *ns) {
  const uint64_t begun = clock_now_ns();
  CUresult result = CUDA_SUCCESS;
  for (unsigned i = 0; i < count && !result; i++)
    result = work(gpu, bytes);
  const CUresult ended = gpu->cuCtxSynchronize();
  *ns = clock_now_ns() - begun;
  *ns += !*ns;
  return result ? result : ended;
}

static void sort(double *values, unsigned count) {
  for (unsigned i = 1; i < count; i++)
    for (unsigned k = i; k && values[k - 1] > values[k]; k--) {
      const double larger = values[k - 1];
      values[k - 1] = values[k];
      values[k] = larger;
    }
}

/* How many bytes, how often, so that a batch takes some milliseconds. */
static CUresult size_up(struct probe_gpu *gpu, operation *work, size_t *bytes, unsigned *count) {
  uint64_t ns;
  CUresult result;
  size_t size = first_bytes < gpu->bytes ? first_bytes : gpu->bytes;
  if ((result = time_of(gpu, work, size, 1, &ns))) /* the first warms up */
    return result;
  for (;;) {
    uint64_t other_ns; /* one alone may have met somebody else's work */
    if ((result = time_of(gpu, work, size, 1, &ns)) ||
        (result = time_of(gpu, work, size, 1, &other_ns)))
      return result;
    ns = other_ns < ns ? other_ns : ns;
    if (size == gpu->bytes || ns > batch_ns / 4)
      break;
    size = size > gpu->bytes / 4 ? gpu->bytes : size * 4;
  }
  *bytes = size;
  const uint64_t fit = batch_ns / (ns + 1);
  *count = fit < 1 ? 1 : fit > STARTS ? STARTS : (unsigned)fit;
  return CUDA_SUCCESS;
}

/* The median rate, `times` the bytes; what fails is left at 0. */
static CUresult rate_of(struct probe_gpu *gpu, operation *work, double times, double *rate) {
  size_t bytes;
  unsigned count;
  uint64_t ns;
  double rates[BATCHES];
  CUresult result = size_up(gpu, work, &bytes, &count);
  for (unsigned i = 0; i < BATCHES && !result; i++) {
    result = time_of(gpu, work, bytes, count, &ns);
    rates[i] = times * (double)bytes * count * 1e9 / (double)ns;
  }
  if (result)
    return result;
  sort(rates, BATCHES);
  *rate = rates[BATCHES / 2];
  return CUDA_SUCCESS;
}

/* Both ways at once, each by its own events. */
static CUresult both(struct probe_gpu *gpu, double *up_rate, double *down_rate) {
  size_t bytes;
  unsigned count;
  CUevent events[4];
  double ups[BATCHES], downs[BATCHES];
  CUresult result = size_up(gpu, up, &bytes, &count);
  for (unsigned i = 0; i < 4 && !result; i++)
    result = gpu->cuEventCreate(&events[i], CU_EVENT_DEFAULT);
  for (unsigned batch = 0; batch < BATCHES && !result; batch++) {
    float ms[2] = {0, 0};
    const uint64_t begun = clock_now_ns();
    for (unsigned i = 0; i < 2 && !result; i++)
      result = gpu->cuEventRecord(events[i], gpu->streams[i]);
    for (unsigned i = 0; i < count && !result; i++)
      if (!(result =
                gpu->cuMemcpyHtoDAsync_v2(gpu->memory[0], gpu->pages[0], bytes, gpu->streams[0])))
        result = gpu->cuMemcpyDtoHAsync_v2(gpu->pages[1], gpu->memory[1], bytes, gpu->streams[1]);
    for (unsigned i = 0; i < 2 && !result; i++)
      result = gpu->cuEventRecord(events[2 + i], gpu->streams[i]);
    const CUresult ended = gpu->cuCtxSynchronize();
    const float all_ms = (float)(clock_now_ns() - begun) / 1e6F;
    result = result ? result : ended;
    for (unsigned i = 0; i < 2 && !result; i++)
      result = gpu->cuEventElapsedTime(&ms[i], events[i], events[2 + i]);
    ups[batch] = (double)bytes * count * 1e3 / (double)(ms[0] > 0 ? ms[0] : all_ms);
    downs[batch] = (double)bytes * count * 1e3 / (double)(ms[1] > 0 ? ms[1] : all_ms);
  }
  if (result)
    return result;
  sort(ups, BATCHES);
  sort(downs, BATCHES);
  *up_rate = ups[BATCHES / 2];
  *down_rate = downs[BATCHES / 2];
  return CUDA_SUCCESS;
}

/* Where our kernels can't be loaded, a kernel's accesses are taken to go as copies do. */
static CUresult kernels(struct probe_gpu *gpu, struct probe *probe) {
  CUmodule module;
  struct rates *rates = &probe->rates;
  rates->kernel_read = rates->up;
  rates->kernel_write = rates->down;
  if (!gpu->cuModuleLoadData || !gpu->cuModuleGetFunction || !gpu->cuLaunchKernel ||
      gpu->cuModuleLoadData(&module, probe_ptx) ||
      gpu->cuModuleGetFunction(&gpu->read, module, "off_rate_read") ||
      gpu->cuModuleGetFunction(&gpu->write, module, "off_rate_write")) {
    probe_say(probe, "the kernels can't be loaded: their rates are the copies'");
    return CUDA_SUCCESS;
  }
  const CUresult result = rate_of(gpu, kernel_read, 1, &rates->kernel_read);
  return result ? result : rate_of(gpu, kernel_write, 1, &rates->kernel_write);
}

bool probe_gpu_measure(struct probe_gpu *gpu, struct probe *probe, char *problem, size_t bytes) {
  struct rates *rates = &probe->rates;
  CUresult result = make(gpu, probe);
  if (result == CUDA_ERROR_OUT_OF_MEMORY)
    return rates_fail(problem, bytes, "the device has no memory to spare for measuring");
  if (result)
    return rates_fail(problem, bytes, "the device can't be used for measuring (error %d)",
                      (int)result);
  uint64_t ns;
  if ((result = rate_of(gpu, up, 1, &rates->up)) ||
      (result = rate_of(gpu, down, 1, &rates->down)) ||
      (result = both(gpu, &rates->up_both, &rates->down_both)) ||
      (result = rate_of(gpu, within, 2, &rates->device)) ||
      (result = time_of(gpu, tiny, 4, STARTS, &ns)) ||
      (result = time_of(gpu, tiny, 4, STARTS, &ns)))
    return rates_fail(problem, bytes, "the driver answers error %d while the link is measured",
                      (int)result);
  /* What a direction reached beside the other it can reach alone. */
  rates->up = rates->up > rates->up_both ? rates->up : rates->up_both;
  rates->down = rates->down > rates->down_both ? rates->down : rates->down_both;
  rates->launch = (double)ns / 1e9 / STARTS;
  if ((result = kernels(gpu, probe)))
    return rates_fail(problem, bytes, "the driver answers error %d while a kernel reads host pages",
                      (int)result);
  return true;
}
