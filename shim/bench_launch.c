/* What a launch or a copy costs when it meets the hooks and nothing is to be done: a program of its
   own, with this library linked in and a driver of empty functions in the same process. Each row
   compares calls of the wrapper with calls straight into the empty function, in turns, and prints
   the difference; the fastest of several turns counts, since everything that disturbs only adds. */
#define _GNU_SOURCE
#include "driver.h"
#include "process.h"
#include "range.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LAUNCHES = 20000, TURNS = 25, MOVED = 1000, PIECE_BYTES = 4096 };

/* ---- the driver ---- */

static const struct kernel {
  size_t count, bytes; /* parameters, and the size of each */
} kernels[] = {{0, 0}, {12, 8}, {1, 25544}};

static CUresult no_kernel(void) {
  return CUDA_ERROR_INVALID_HANDLE;
}
static CUresult empty(void) {
  return CUDA_SUCCESS;
}
static CUresult granularity(size_t *bytes, const CUmemAllocationProp *properties,
                            CUmemAllocationGranularity_flags flags) {
  (void)properties, (void)flags;
  *bytes = PIECE_BYTES;
  return CUDA_SUCCESS;
}
static CUresult attribute(int *value, CUdevice_attribute which, CUdevice device) {
  (void)device;
  *value = which == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID ? 0 : 1;
  return CUDA_SUCCESS;
}
static CUresult current_device(CUdevice *device) {
  return *device = 0, CUDA_SUCCESS;
}
static CUresult current_context(CUcontext *context) {
  *context = (CUcontext)(uintptr_t)64;
  return CUDA_SUCCESS;
}
static CUresult reserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint,
                        unsigned long long flags) {
  static CUdeviceptr next = 0x7f0000000000;
  (void)alignment, (void)hint, (void)flags;
  *address = next;
  next += bytes;
  return CUDA_SUCCESS;
}
static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes,
                       const CUmemAllocationProp *properties, unsigned long long flags) {
  static CUmemGenericAllocationHandle next = 1;
  (void)bytes, (void)properties, (void)flags;
  *handle = next++;
  return CUDA_SUCCESS;
}
static CUresult memory(size_t *room, size_t *total) {
  *room = *total = (size_t)80 << 30;
  return CUDA_SUCCESS;
}
static CUresult name(const char **text, CUfunction function) {
  (void)function;
  *text = "_Z4someN4nameEPf";
  return CUDA_SUCCESS;
}
static CUresult parameter(CUfunction function, size_t index, size_t *offset, size_t *bytes) {
  const struct kernel *kernel = (const struct kernel *)function;
  if (index >= kernel->count)
    return CUDA_ERROR_INVALID_VALUE;
  *offset = index * kernel->bytes;
  if (bytes)
    *bytes = kernel->bytes;
  return CUDA_SUCCESS;
}
static CUresult not_capturing(CUstream stream, CUstreamCaptureStatus *status) {
  (void)stream;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

/* Stored as a bare address: most slots have another type than `empty`, which takes no argument and
   returns at once. */
static void set(void *slot, CUresult (*function)(void)) {
  memcpy(slot, &function, sizeof function);
}

static void fill_driver(void) {
#define HOOK(symbol, base, version, per_thread, parameters, arguments) set(&driver.symbol, empty);
#define USE(symbol, base, version) set(&driver.symbol, empty);
#include "hooks.def"
#undef HOOK
#undef USE
  set(&driver.cuKernelGetParamInfo, no_kernel); /* these are functions, not kernels */
  set(&driver.cuKernelGetName, no_kernel);
  driver.cuMemGetAllocationGranularity = granularity;
  driver.cuDeviceGetAttribute = attribute;
  driver.cuCtxGetDevice = current_device;
  driver.cuCtxGetCurrent = current_context;
  driver.cuMemAddressReserve = reserve;
  driver.cuMemCreate = create;
  driver.cuMemGetInfo_v2 = memory;
  driver.cuFuncGetName = name;
  driver.cuFuncGetParamInfo = parameter;
  driver.cuStreamIsCapturing = not_capturing;
}

/* ---- measuring ---- */

typedef __typeof__(driver.cuLaunchKernel) launch_function;

static double seconds(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* volatile: the compiler is not to see which function is called. */
static double ns_per_launch(launch_function volatile launch, const struct kernel *kernel,
                            void **parameters) {
  double start = seconds();
  for (int i = 0; i < LAUNCHES; i++)
    if (launch((CUfunction)kernel, 1, 1, 1, 128, 1, 1, 0, NULL, parameters, NULL) != CUDA_SUCCESS)
      abort();
  return (seconds() - start) * 1e9 / LAUNCHES;
}

static void row(const struct kernel *kernel, unsigned moved, bool last) {
  static unsigned char values[25544];
  void *parameters[16];
  double hooked = 1e9, bare = 1e9;
  for (size_t i = 0; i < sizeof values; i++)
    values[i] = (unsigned char)(i * 37); /* no addresses */
  for (size_t i = 0; i < kernel->count; i++)
    parameters[i] = values + i * kernel->bytes;
  for (int turn = 0; turn < TURNS; turn++) {
    double through = ns_per_launch(hook_cuLaunchKernel, kernel, parameters);
    double straight = ns_per_launch(driver.cuLaunchKernel, kernel, parameters);
    hooked = through < hooked ? through : hooked;
    bare = straight < bare ? straight : bare;
  }
  printf("{\"bytes\": %zu, \"moved\": %u, \"ns\": %.1f, \"unhooked_ns\": %.1f}%s",
         kernel->count * kernel->bytes, moved, hooked - bare, bare, last ? "" : ",\n ");
}

/* Copies to and from memory that is none of ours. */
typedef __typeof__(driver.cuMemcpyHtoDAsync_v2) copy_function;

static double ns_per_copy(copy_function volatile copy) {
  static char host[64];
  double start = seconds();
  for (int i = 0; i < LAUNCHES; i++)
    if (copy(0x1000000, host, sizeof host, NULL) != CUDA_SUCCESS)
      abort();
  return (seconds() - start) * 1e9 / LAUNCHES;
}

static double copy_overhead(void) {
  double hooked = 1e9, bare = 1e9;
  for (int turn = 0; turn < TURNS; turn++) {
    double through = ns_per_copy(hook_cuMemcpyHtoDAsync_v2);
    double straight = ns_per_copy(driver.cuMemcpyHtoDAsync_v2);
    hooked = through < hooked ? through : hooked;
    bare = straight < bare ? straight : bare;
  }
  return hooked - bare;
}

int main(void) {
  CUdeviceptr pointer;
  (void)setenv("OFFLOAD_PIECE", "4096", 1);
  (void)setenv("OFFLOAD_LOG", "quiet", 1);
  (void)unsetenv("OFFLOAD_MODE");
  fill_driver();
  process_started();
  if (!process_active()) {
    fprintf(stderr, "launch-bench: the hooks did not start\n");
    return EXIT_FAILURE;
  }
  enum { KERNELS = sizeof kernels / sizeof *kernels };
  printf("{\"launch_overhead_ns\": [\n ");
  for (int i = 0; i < KERNELS; i++)
    row(&kernels[i], 0, false);
  const double copy_none_moved = copy_overhead();
  if (range_create(&pointer, (size_t)MOVED * PIECE_BYTES, PIECE_HOST) != CUDA_SUCCESS ||
      !range_any_host()) {
    fprintf(stderr, "launch-bench: no range on the host could be made\n");
    return EXIT_FAILURE;
  }
  for (int i = 0; i < KERNELS; i++)
    row(&kernels[i], MOVED, i == KERNELS - 1);
  printf("],\n\"copy_overhead_ns\": [\n {\"moved\": 0, \"ns\": %.1f},\n {\"moved\": %d, \"ns\": "
         "%.1f}]}\n",
         copy_none_moved, MOVED, copy_overhead());
  return EXIT_SUCCESS;
}
