/* Modules, libraries, kernels, what may be asked about them, launches. */
#include "tests/unit/gpusim_driver.h"

static CUmodule module;
static CUdeviceptr memory;

static void test_names(void) {
  CUfunction function = load_kernel(&module, "list");
  const char *name = NULL;
  size_t offset, bytes;
  unsigned count;
  MUST(cuFuncGetName(&name, function));
  tap_ok(strcmp(name, "list") == 0, "a function knows its name");
  tap_ok(cuFuncGetParamInfo(function, 0, &offset, &bytes) == CUDA_SUCCESS && offset == 0 &&
             bytes == 64 && cuFuncGetParamInfo(function, 1, &offset, &bytes) == CUDA_SUCCESS &&
             offset == 64 && bytes == 4,
         "and size and offset of each parameter");
  tap_ok(cuFuncGetParamInfo(function, 2, &offset, &bytes) == CUDA_ERROR_INVALID_VALUE,
         "and how many there are");
  MUST(cuModuleGetFunctionCount(&count, module));
  CUfunction all[2] = {NULL, NULL};
  MUST(cuModuleEnumerateFunctions(all, 2, module));
  tap_ok(count == 2 && (all[0] == function || all[1] == function),
         "a module enumerates its functions");
  tap_ok(cuModuleGetFunction(&function, module, "nothing") == CUDA_ERROR_NOT_FOUND,
         "a name it lacks is not found");
}

static void test_library(void) {
  CUlibrary library, of_kernel;
  CUkernel kernel;
  CUfunction function;
  const char *name;
  MUST(cuLibraryLoadData(&library, TEST_PTX, NULL, NULL, 0, NULL, NULL, 0));
  MUST(cuLibraryGetKernel(&kernel, library, "store"));
  MUST(cuKernelGetFunction(&function, kernel));
  MUST(cuKernelGetLibrary(&of_kernel, kernel));
  MUST(cuKernelGetName(&name, kernel));
  tap_ok(of_kernel == library && strcmp(name, "store") == 0, "a kernel knows its library");
  MUST(cuFuncGetName(&name, (CUfunction)(void *)kernel));
  MUST(launch_store((CUfunction)(void *)kernel, NULL, memory, 21));
  MUST(cuCtxSynchronize());
  tap_ok(device_word(memory) == 21, "a kernel passed as a function is launched");
  MUST(cuLibraryUnload(library));
  tap_ok(launch_store(function, NULL, memory, 22) == CUDA_ERROR_INVALID_HANDLE &&
             cuFuncGetName(&name, function) == CUDA_ERROR_INVALID_HANDLE,
         "after its library is unloaded it is no more");
  tap_ok(cuLibraryUnload(library) == CUDA_ERROR_INVALID_HANDLE, "nor is the library");
}

static void test_launch(void) {
  CUfunction function;
  MUST(cuModuleGetFunction(&function, module, "store"));
  CUdeviceptr address = memory;
  uint32_t value = 33;
  void *parameters[] = {&address, &value};
  struct {
    CUdeviceptr address;
    uint32_t value;
  } packed = {memory + 4, 34};
  size_t bytes = 12;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  MUST(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
  value = 0; /* taken at the call */
  MUST(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
  MUST(cuCtxSynchronize());
  tap_ok(device_word(memory) == 33, "parameters by pointer are taken at the call");
  tap_ok(device_word(memory + 4) == 34, "a packed buffer is taken as well");
  bytes = 8;
  tap_ok(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra) ==
             CUDA_ERROR_INVALID_VALUE,
         "a buffer that is too small is refused");
  tap_ok(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, extra) ==
                 CUDA_ERROR_INVALID_VALUE &&
             cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) ==
                 CUDA_ERROR_INVALID_VALUE,
         "both forms at once are refused, and neither");
  tap_ok(cuLaunchKernel(function, 0, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL) ==
                 CUDA_ERROR_INVALID_VALUE &&
             cuLaunchKernel(function, 1, 1, 1, 1, 2048, 1, 0, NULL, parameters, NULL) ==
                 CUDA_ERROR_INVALID_VALUE &&
             cuLaunchKernel(function, 1, 65536, 1, 1, 1, 1, 0, NULL, parameters, NULL) ==
                 CUDA_ERROR_INVALID_VALUE,
         "impossible grids and blocks are refused");
  tap_ok(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 60000, NULL, parameters, NULL) ==
             CUDA_ERROR_INVALID_VALUE,
         "more shared memory than was asked for is refused");
  MUST(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60000));
  value = 35;
  tap_ok(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 60000, NULL, parameters, NULL) == CUDA_SUCCESS,
         "and allowed after asking");
  int local;
  tap_ok(launch_store((CUfunction)(void *)&local, NULL, memory, 1) == CUDA_ERROR_INVALID_HANDLE,
         "what isn't a function is refused");
  MUST(cuCtxSynchronize());
}

static void test_other_launches(void) {
  CUfunction function;
  MUST(cuModuleGetFunction(&function, module, "store"));
  CUdeviceptr address = memory;
  uint32_t value = 44;
  void *parameters[] = {&address, &value};
  CUlaunchAttribute cooperative = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE};
  cooperative.value.cooperative = 1;
  CUlaunchConfig config = {.gridDimX = 1,
                           .gridDimY = 1,
                           .gridDimZ = 1,
                           .blockDimX = 1,
                           .blockDimY = 1,
                           .blockDimZ = 1,
                           .attrs = &cooperative,
                           .numAttrs = 1};
  MUST(cuLaunchKernelEx(&config, function, parameters, NULL));
  MUST(cuCtxSynchronize());
  tap_ok(device_word(memory) == 44, "cuLaunchKernelEx launches, cooperative ones too");
  tap_ok(cuLaunchCooperativeKernel(function, 1000, 1, 1, 1024, 1, 1, 0, NULL, parameters) ==
             CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
         "a cooperative grid must fit the device");
  CUcontext other;
  CUstream foreign;
  MUST(cuDevicePrimaryCtxRetain(&other, 1));
  MUST(cuCtxPushCurrent(other));
  MUST(cuStreamCreate(&foreign, 0));
  MUST(cuCtxPopCurrent(NULL));
  tap_ok(launch_store(function, foreign, memory, 1) == CUDA_ERROR_INVALID_HANDLE,
         "a launch on a stream of another context is refused");
  MUST(cuDevicePrimaryCtxRelease(1));
  int blocks = 0, grid = 0, block = 0;
  MUST(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 256, 0));
  MUST(cuOccupancyMaxPotentialBlockSize(&grid, &block, function, NULL, 0, 0));
  tap_ok(blocks == 8 && block == 1024 && grid == 8,
         "occupancy is that of 2048 threads a processor");
}

int main(void) {
  setenv("GPUSIM_DEVICES", "2", 1);
  start();
  MUST(cuMemAlloc(&memory, 4096));
  test_names();
  test_library();
  test_launch();
  test_other_launches();
  tap_ok(cuModuleLoadData(&module, "not an image") != CUDA_SUCCESS, "nonsense isn't an image");
  return tap_done();
}
