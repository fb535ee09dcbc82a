/* The driver, opened by name so that nothing of CUDA is linked; the device; the kernels. */
#include "gpu/kernels_ptx.h"
#include "probe.h"
#include <dlfcn.h>
#include <string.h>

struct driver cu;
struct machine machine;
static void *library;
static CUmodule module;

const char *kernel_text(void) {
  return probe_kernels_ptx;
}
void *driver_symbol(const char *name) {
  return dlsym(library, name);
}
bool unsupported(CUresult result) {
  return result == CUDA_ERROR_NOT_SUPPORTED;
}

void open_driver(void) {
  step("opening libcuda.so.1");
  library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    const char *reason = dlerror();
    give_up("no driver: %s", reason != NULL ? reason : "libcuda.so.1 can't be opened");
  }
#define CALL(symbol) *(void **)&cu.symbol = dlsym(library, #symbol);
#include "driver.def"
#undef CALL
  machine.simulated = dlsym(library, "gpusim_host_view") != NULL;
  if (machine.simulated)
    report_simulated();
}

int device_attribute(CUdevice_attribute attribute) {
  int value = 0;
  return CALL_CU(cuDeviceGetAttribute, &value, attribute, machine.device) == CUDA_SUCCESS ? value
                                                                                          : -1;
}

void start(void) {
  open_driver();
  step("starting the driver");
  int count = 0;
  MUST(cuInit, 0);
  MUST(cuDeviceGetCount, &count);
  if (count < 1)
    give_up("the driver sees no device");
  MUST(cuDeviceGet, &machine.device, 0);
  MUST(cuDevicePrimaryCtxRetain, &machine.context, machine.device);
  MUST(cuCtxSetCurrent, machine.context);
  MUST(cuStreamCreate, &machine.stream, CU_STREAM_NON_BLOCKING);
  machine.multiprocessors = device_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  machine.numa_node = device_attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
  step("loading the kernels");
  MUST(cuModuleLoadData, &module, kernel_text());
  MUST(cuMemAlloc_v2, &machine.errors, 256);
}

CUfunction kernel(const char *name) {
  CUfunction function = NULL;
  MUST(cuModuleGetFunction, &function, module, name);
  return function;
}

unsigned blocks_for(uint64_t elements) {
  uint64_t needed = (elements + THREADS - 1) / THREADS;
  uint64_t most = 8 * (uint64_t)(machine.multiprocessors > 0 ? machine.multiprocessors : 1);
  return (unsigned)(needed < 1 ? 1 : needed < most ? needed : most);
}

CUresult launch(CUfunction function, unsigned blocks, unsigned threads, CUstream stream,
                void **parameters) {
  return CALL_CU(cuLaunchKernel, function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters,
                 NULL);
}

CUresult fill(CUdeviceptr at, uint64_t words, uint32_t seed, uint32_t stride, CUstream stream) {
  static CUfunction function;
  if (function == NULL)
    function = kernel("probe_fill");
  void *parameters[] = {&at, &words, &seed, &stride};
  return launch(function, blocks_for(words), THREADS, stream, parameters);
}

uint64_t mismatches(CUdeviceptr at, uint64_t words, uint32_t seed, uint32_t stride,
                    CUstream stream) {
  static CUfunction function;
  uint64_t count = 0;
  if (function == NULL)
    function = kernel("probe_check");
  void *parameters[] = {&at, &words, &seed, &stride, &machine.errors};
  MUST(cuMemsetD32Async, machine.errors, 0, 2, stream);
  must_succeed(launch(function, blocks_for(words), THREADS, stream, parameters), "probe_check",
               __FILE__, __LINE__);
  MUST(cuStreamSynchronize, stream);
  MUST(cuMemcpyDtoH_v2, &count, machine.errors, sizeof count);
  return count;
}

void fill_here(uint32_t *at, uint64_t words, uint32_t seed, uint32_t stride) {
  for (uint64_t i = 0; i < words; i++)
    at[i] = seed + (uint32_t)i * stride;
}

uint64_t mismatches_here(const uint32_t *at, uint64_t words, uint32_t seed, uint32_t stride) {
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < words; i++)
    wrong += ((const volatile uint32_t *)at)[i] != seed + (uint32_t)i * stride;
  return wrong;
}
