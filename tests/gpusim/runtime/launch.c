/* Kernel launches, host functions, and the way from a program to driver functions. Compiled twice,
 * see runtime.h. */
#include "runtime.h"

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define __cudaLaunchKernel __cudaLaunchKernel_ptsz
enum { ENTRY_POINT_FLAGS = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM };
#else
enum { ENTRY_POINT_FLAGS = CU_GET_PROC_ADDRESS_DEFAULT };
#endif

/* The runtime has a word of its own for a grid or block that a kernel can't have. */
static cudaError_t launch_result(CUresult result) {
  return result == CUDA_ERROR_INVALID_VALUE ? runtime_fail(cudaErrorInvalidConfiguration)
                                            : runtime_result(result);
}

static cudaError_t launch(CUfunction function, dim3 grid, dim3 block, void **arguments,
                          size_t shared_bytes, cudaStream_t stream) {
  if (shared_bytes > UINT32_MAX)
    return runtime_fail(cudaErrorInvalidConfiguration);
  return launch_result(driver.cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y,
                                             block.z, (unsigned)shared_bytes, stream, arguments,
                                             NULL));
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                               size_t shared_bytes, cudaStream_t stream);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                               size_t shared_bytes, cudaStream_t stream) {
  RUNTIME_ENTER();
  if (kernel == NULL) /* nvcc's code ignores the error of __cudaGetKernel */
    return runtime_fail(cudaErrorInvalidDeviceFunction);
  CUfunction function;
  CUresult result = driver.cuKernelGetFunction(&function, (CUkernel)kernel);
  if (result != CUDA_SUCCESS)
    return runtime_result(result);
  return launch(function, grid, block, arguments, shared_bytes, stream);
}

cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments,
                             size_t shared_bytes, cudaStream_t stream) {
  RUNTIME_ENTER();
  CUfunction function;
  cudaError_t error = runtime_function(host, &function);
  if (error != cudaSuccess)
    return runtime_fail(error);
  return launch(function, grid, block, arguments, shared_bytes, stream);
}

_Static_assert(sizeof(cudaLaunchAttribute) == sizeof(CUlaunchAttribute),
               "launch attributes are handed on as they are");

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *host,
                                void **arguments) {
  RUNTIME_ENTER();
  if (config == NULL || config->dynamicSmemBytes > UINT32_MAX)
    return runtime_fail(cudaErrorInvalidConfiguration);
  CUfunction function;
  cudaError_t error = runtime_function(host, &function);
  if (error != cudaSuccess)
    return runtime_fail(error);
  CUlaunchConfig driver_config = {
      .gridDimX = config->gridDim.x,
      .gridDimY = config->gridDim.y,
      .gridDimZ = config->gridDim.z,
      .blockDimX = config->blockDim.x,
      .blockDimY = config->blockDim.y,
      .blockDimZ = config->blockDim.z,
      .sharedMemBytes = (unsigned)config->dynamicSmemBytes,
      .hStream = config->stream,
      .attrs = (CUlaunchAttribute *)config->attrs,
      .numAttrs = config->numAttrs,
  };
  return launch_result(driver.cuLaunchKernelEx(&driver_config, function, arguments, NULL));
}

cudaError_t cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **arguments,
                                        size_t shared_bytes, cudaStream_t stream) {
  RUNTIME_ENTER();
  if (shared_bytes > UINT32_MAX)
    return runtime_fail(cudaErrorInvalidConfiguration);
  CUfunction function;
  cudaError_t error = runtime_function(host, &function);
  if (error != cudaSuccess)
    return runtime_fail(error);
  return launch_result(driver.cuLaunchCooperativeKernel(function, grid.x, grid.y, grid.z, block.x,
                                                        block.y, block.z, (unsigned)shared_bytes,
                                                        stream, arguments));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *user) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuLaunchHostFunc(stream, function, user));
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *status) {
  RUNTIME_INIT();
  if (name == NULL || function == NULL || version > INT32_MAX)
    return runtime_fail(cudaErrorInvalidValue);
  if (flags == cudaEnableDefault)
    flags = ENTRY_POINT_FLAGS;
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
  *function = NULL;
  CUresult result = driver.cuGetProcAddress(name, function, (int)version, flags, &found);
  if (status == NULL)
    return runtime_result(result);
  /* With a status to tell the reason, a missing name is not an error. */
  *status = (enum cudaDriverEntryPointQueryResult)found;
  return result == CUDA_ERROR_NOT_FOUND ? cudaSuccess : runtime_result(result);
}

cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *status) {
  return cudaGetDriverEntryPointByVersion(name, function, CUDART_VERSION, flags, status);
}
