/* Copies, memsets and stream-ordered allocation. Compiled twice, see runtime.h.

   A copy goes to the driver function that its kind names, so that a preloaded library sees the
   calls that NVIDIA's runtime makes; the driver itself finds out what the addresses are. */
#include "runtime.h"

static cudaError_t copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, enum cudaMemcpyKind kind) {
  switch (kind) {
  case cudaMemcpyHostToDevice:
    return runtime_result(driver.cuMemcpyHtoD(to, (const void *)(uintptr_t)from, bytes));
  case cudaMemcpyDeviceToHost:
    return runtime_result(driver.cuMemcpyDtoH((void *)(uintptr_t)to, from, bytes));
  case cudaMemcpyDeviceToDevice:
    return runtime_result(driver.cuMemcpyDtoD(to, from, bytes));
  case cudaMemcpyHostToHost:
  case cudaMemcpyDefault:
    return runtime_result(driver.cuMemcpy(to, from, bytes));
  }
  return runtime_fail(cudaErrorInvalidMemcpyDirection);
}

static cudaError_t copy_async(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                              enum cudaMemcpyKind kind, cudaStream_t stream) {
  switch (kind) {
  case cudaMemcpyHostToDevice:
    return runtime_result(
        driver.cuMemcpyHtoDAsync(to, (const void *)(uintptr_t)from, bytes, stream));
  case cudaMemcpyDeviceToHost:
    return runtime_result(driver.cuMemcpyDtoHAsync((void *)(uintptr_t)to, from, bytes, stream));
  case cudaMemcpyDeviceToDevice:
    return runtime_result(driver.cuMemcpyDtoDAsync(to, from, bytes, stream));
  case cudaMemcpyHostToHost:
  case cudaMemcpyDefault:
    return runtime_result(driver.cuMemcpyAsync(to, from, bytes, stream));
  }
  return runtime_fail(cudaErrorInvalidMemcpyDirection);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  RUNTIME_ENTER();
  return copy(device_address(to), device_address(from), bytes, kind);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
  RUNTIME_ENTER();
  return copy_async(device_address(to), device_address(from), bytes, kind, stream);
}

static CUDA_MEMCPY2D rows(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                          size_t width_bytes, size_t height) {
  return (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                         .srcDevice = device_address(from),
                         .srcPitch = from_pitch,
                         .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                         .dstDevice = device_address(to),
                         .dstPitch = to_pitch,
                         .WidthInBytes = width_bytes,
                         .Height = height};
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                         size_t width_bytes, size_t height, enum cudaMemcpyKind kind) {
  RUNTIME_ENTER();
  if (kind > cudaMemcpyDefault)
    return runtime_fail(cudaErrorInvalidMemcpyDirection);
  CUDA_MEMCPY2D description = rows(to, to_pitch, from, from_pitch, width_bytes, height);
  return runtime_result(driver.cuMemcpy2DUnaligned(&description));
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width_bytes, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream) {
  RUNTIME_ENTER();
  if (kind > cudaMemcpyDefault)
    return runtime_fail(cudaErrorInvalidMemcpyDirection);
  CUDA_MEMCPY2D description = rows(to, to_pitch, from, from_pitch, width_bytes, height);
  return runtime_result(driver.cuMemcpy2DAsync(&description, stream));
}

cudaError_t cudaMemset(void *address, int value, size_t bytes) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuMemsetD8(device_address(address), (unsigned char)value, bytes));
}

cudaError_t cudaMemsetAsync(void *address, int value, size_t bytes, cudaStream_t stream) {
  RUNTIME_ENTER();
  return runtime_result(
      driver.cuMemsetD8Async(device_address(address), (unsigned char)value, bytes, stream));
}

cudaError_t cudaMemset2D(void *address, size_t pitch, int value, size_t width_bytes,
                         size_t height) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuMemsetD2D8(device_address(address), pitch, (unsigned char)value,
                                            width_bytes, height));
}

cudaError_t cudaMemset2DAsync(void *address, size_t pitch, int value, size_t width_bytes,
                              size_t height, cudaStream_t stream) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuMemsetD2D8Async(
      device_address(address), pitch, (unsigned char)value, width_bytes, height, stream));
}

/* ---- __device__ and __constant__ variables ---- */

/* The address `offset` bytes into a variable, when `bytes` from there lie inside it. */
static cudaError_t variable_part(const void *symbol, size_t offset, size_t bytes,
                                 CUdeviceptr *address) {
  CUdeviceptr start = 0;
  size_t size_bytes = 0;
  cudaError_t error = runtime_variable(symbol, &start, &size_bytes);
  if (error == cudaSuccess && (offset > size_bytes || bytes > size_bytes - offset))
    error = cudaErrorInvalidValue;
  *address = start + offset;
  return error;
}

cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset,
                               enum cudaMemcpyKind kind) {
  RUNTIME_ENTER();
  CUdeviceptr to;
  cudaError_t error = variable_part(symbol, offset, bytes, &to);
  return error != cudaSuccess ? runtime_fail(error) : copy(to, device_address(from), bytes, kind);
}

cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset,
                                 enum cudaMemcpyKind kind) {
  RUNTIME_ENTER();
  CUdeviceptr from;
  cudaError_t error = variable_part(symbol, offset, bytes, &from);
  return error != cudaSuccess ? runtime_fail(error) : copy(device_address(to), from, bytes, kind);
}

cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t bytes,
                                    size_t offset, enum cudaMemcpyKind kind, cudaStream_t stream) {
  RUNTIME_ENTER();
  CUdeviceptr to;
  cudaError_t error = variable_part(symbol, offset, bytes, &to);
  return error != cudaSuccess ? runtime_fail(error)
                              : copy_async(to, device_address(from), bytes, kind, stream);
}

cudaError_t cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t bytes, size_t offset,
                                      enum cudaMemcpyKind kind, cudaStream_t stream) {
  RUNTIME_ENTER();
  CUdeviceptr from;
  cudaError_t error = variable_part(symbol, offset, bytes, &from);
  return error != cudaSuccess ? runtime_fail(error)
                              : copy_async(device_address(to), from, bytes, kind, stream);
}

/* ---- stream-ordered allocation ---- */

cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream) {
  RUNTIME_ENTER();
  if (pointer == NULL)
    return runtime_fail(cudaErrorInvalidValue);
  *pointer = NULL;
  if (bytes == 0)
    return cudaSuccess;
  return runtime_result(driver.cuMemAllocAsync((CUdeviceptr *)pointer, bytes, stream));
}

cudaError_t cudaMallocFromPoolAsync(void **pointer, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  RUNTIME_ENTER();
  if (pointer == NULL)
    return runtime_fail(cudaErrorInvalidValue);
  return runtime_result(
      driver.cuMemAllocFromPoolAsync((CUdeviceptr *)pointer, bytes, pool, stream));
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) {
  RUNTIME_ENTER();
  if (pointer == NULL)
    return cudaSuccess;
  return runtime_result(driver.cuMemFreeAsync(device_address(pointer), stream));
}

_Static_assert(sizeof(struct cudaMemLocation) == sizeof(CUmemLocation),
               "locations are handed on as they are");

cudaError_t cudaMemPrefetchAsync(const void *pointer, size_t bytes, struct cudaMemLocation location,
                                 unsigned flags, cudaStream_t stream) {
  RUNTIME_ENTER();
  CUmemLocation to = {.type = (CUmemLocationType)location.type, .id = location.id};
  return runtime_result(
      driver.cuMemPrefetchAsync(device_address(pointer), bytes, to, flags, stream));
}
