/* Kernels, their attributes and occupancy; addresses of variables; libraries loaded at run time. */
#include "runtime.h"
#include <string.h>

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
  RUNTIME_ENTER();
  return runtime_fail(runtime_kernel(host, (CUkernel *)kernel));
}

cudaError_t cudaGetKernel(cudaKernel_t *kernel, const void *host) {
  RUNTIME_ENTER();
  return runtime_fail(runtime_kernel(host, (CUkernel *)kernel));
}

cudaError_t cudaGetFuncBySymbol(cudaFunction_t *function, const void *host) {
  RUNTIME_ENTER();
  return runtime_fail(runtime_function(host, (CUfunction *)function));
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *host) {
  RUNTIME_ENTER();
  CUfunction function;
  cudaError_t error = runtime_function(host, &function);
  if (error != cudaSuccess)
    return runtime_fail(error);
  memset(attributes, 0, sizeof *attributes);
#define GET(field, NAME)                                                                           \
  do {                                                                                             \
    int value;                                                                                     \
    if (driver.cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_##NAME, function) == CUDA_SUCCESS)     \
      attributes->field = (__typeof__(attributes->field))value;                                    \
  } while (0)
  GET(sharedSizeBytes, SHARED_SIZE_BYTES);
  GET(constSizeBytes, CONST_SIZE_BYTES);
  GET(localSizeBytes, LOCAL_SIZE_BYTES);
  GET(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK);
  GET(numRegs, NUM_REGS);
  GET(ptxVersion, PTX_VERSION);
  GET(binaryVersion, BINARY_VERSION);
  GET(maxDynamicSharedSizeBytes, MAX_DYNAMIC_SHARED_SIZE_BYTES);
#undef GET
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attribute, int value) {
  RUNTIME_ENTER();
  CUfunction function;
  cudaError_t error = runtime_function(host, &function);
  if (error != cudaSuccess)
    return runtime_fail(error);
  return runtime_result(
      driver.cuFuncSetAttribute(function, (CUfunction_attribute)attribute, value));
}

/* A hint; a simulated multiprocessor has no cache to divide. */
cudaError_t cudaFuncSetCacheConfig(const void *host, enum cudaFuncCache config) {
  (void)config;
  RUNTIME_ENTER();
  CUkernel kernel;
  return runtime_fail(runtime_kernel(host, &kernel));
}

cudaError_t cudaFuncGetName(const char **name, const void *host) {
  RUNTIME_ENTER();
  CUfunction function;
  cudaError_t error = runtime_function(host, &function);
  return error != cudaSuccess ? runtime_fail(error)
                              : runtime_result(driver.cuFuncGetName(name, function));
}

cudaError_t cudaFuncGetParamInfo(const void *host, size_t index, size_t *offset, size_t *bytes) {
  RUNTIME_ENTER();
  CUfunction function;
  cudaError_t error = runtime_function(host, &function);
  return error != cudaSuccess
             ? runtime_fail(error)
             : runtime_result(driver.cuFuncGetParamInfo(function, index, offset, bytes));
}

/* ---- occupancy ---- */

static cudaError_t occupancy(int *blocks, const void *host, int block_threads, size_t shared_bytes,
                             unsigned flags) {
  RUNTIME_ENTER();
  CUfunction function;
  cudaError_t error = runtime_function(host, &function);
  if (error != cudaSuccess)
    return runtime_fail(error);
  return runtime_result(driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
      blocks, function, block_threads, shared_bytes, flags));
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *host,
                                                          int block_threads, size_t shared_bytes) {
  return occupancy(blocks, host, block_threads, shared_bytes, CU_OCCUPANCY_DEFAULT);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *host,
                                                                   int block_threads,
                                                                   size_t shared_bytes,
                                                                   unsigned flags) {
  return occupancy(blocks, host, block_threads, shared_bytes, flags);
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, const void *host, int blocks,
                                                      int block_threads) {
  RUNTIME_ENTER();
  CUfunction function;
  cudaError_t error = runtime_function(host, &function);
  if (error != cudaSuccess)
    return runtime_fail(error);
  return runtime_result(
      driver.cuOccupancyAvailableDynamicSMemPerBlock(bytes, function, blocks, block_threads));
}

/* ---- variables ---- */

cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol) {
  RUNTIME_ENTER();
  size_t bytes;
  return runtime_fail(runtime_variable(symbol, (CUdeviceptr *)pointer, &bytes));
}

cudaError_t cudaGetSymbolSize(size_t *bytes, const void *symbol) {
  RUNTIME_ENTER();
  CUdeviceptr address;
  return runtime_fail(runtime_variable(symbol, &address, bytes));
}

/* ---- libraries ---- */

/* The options steer a compiler that the simulated driver doesn't have. */
cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code,
                                enum cudaJitOption *jit_options, void **jit_values,
                                unsigned jit_count, enum cudaLibraryOption *options, void **values,
                                unsigned count) {
  (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
  RUNTIME_ENTER();
  return runtime_result(
      driver.cuLibraryLoadData((CUlibrary *)library, code, NULL, NULL, 0, NULL, NULL, 0));
}

cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuLibraryUnload((CUlibrary)library));
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuLibraryGetKernel((CUkernel *)kernel, (CUlibrary)library, name));
}

cudaError_t cudaLibraryGetGlobal(void **pointer, size_t *bytes, cudaLibrary_t library,
                                 const char *name) {
  RUNTIME_ENTER();
  return runtime_result(
      driver.cuLibraryGetGlobal((CUdeviceptr *)pointer, bytes, (CUlibrary)library, name));
}
