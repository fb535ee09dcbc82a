/* Allocations and what is known about them: device, pinned, registered and managed memory, pools,
   IPC, copies between devices. */
#include "runtime.h"
#include <string.h>

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuMemGetInfo(free_bytes, total_bytes));
}

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
  RUNTIME_ENTER();
  if (pointer == NULL)
    return runtime_fail(cudaErrorInvalidValue);
  *pointer = NULL;
  if (bytes == 0)
    return cudaSuccess;
  return runtime_result(driver.cuMemAlloc((CUdeviceptr *)pointer, bytes));
}

cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width_bytes, size_t height) {
  RUNTIME_ENTER();
  return runtime_result(
      driver.cuMemAllocPitch((CUdeviceptr *)pointer, pitch, width_bytes, height, 4));
}

cudaError_t cudaFree(void *pointer) {
  RUNTIME_ENTER();
  if (pointer == NULL) /* the usual way to initialise the runtime */
    return cudaSuccess;
  return runtime_result(driver.cuMemFree(device_address(pointer)));
}

cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned flags) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuMemAllocManaged((CUdeviceptr *)pointer, bytes, flags));
}

cudaError_t cudaMemAdvise(const void *pointer, size_t bytes, enum cudaMemoryAdvise advice,
                          struct cudaMemLocation location) {
  RUNTIME_ENTER();
  CUmemLocation at = {.type = (CUmemLocationType)location.type, .id = location.id};
  return runtime_result(
      driver.cuMemAdvise(device_address(pointer), bytes, (CUmem_advise)advice, at));
}

/* ---- host memory; the flags have the driver's values ---- */

cudaError_t cudaMallocHost(void **pointer, size_t bytes) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuMemHostAlloc(pointer, bytes, 0));
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuMemHostAlloc(pointer, bytes, flags));
}

cudaError_t cudaFreeHost(void *pointer) {
  RUNTIME_ENTER();
  if (pointer == NULL)
    return cudaSuccess;
  return runtime_result(driver.cuMemFreeHost(pointer));
}

cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuMemHostRegister(pointer, bytes, flags));
}

cudaError_t cudaHostUnregister(void *pointer) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuMemHostUnregister(pointer));
}

cudaError_t cudaHostGetDevicePointer(void **device_pointer, void *pointer, unsigned flags) {
  RUNTIME_ENTER();
  return runtime_result(
      driver.cuMemHostGetDevicePointer((CUdeviceptr *)device_pointer, pointer, flags));
}

cudaError_t cudaHostGetFlags(unsigned *flags, void *pointer) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuMemHostGetFlags(flags, pointer));
}

/* ---- what a pointer is ---- */

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes,
                                     const void *pointer) {
  RUNTIME_ENTER();
  unsigned type = 0;
  int device = -2; /* the runtime's "no device" */
  unsigned managed = 0;
  void *device_pointer = NULL, *host_pointer = NULL;
  CUpointer_attribute names[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
      CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
      CU_POINTER_ATTRIBUTE_HOST_POINTER};
  void *values[] = {&type, &device, &managed, &device_pointer, &host_pointer};
  CUresult result = driver.cuPointerGetAttributes(sizeof names / sizeof *names, names, values,
                                                  device_address(pointer));
  memset(attributes, 0, sizeof *attributes);
  attributes->device = device;
  attributes->devicePointer = device_pointer;
  attributes->hostPointer = host_pointer;
  if (managed) {
    attributes->type = cudaMemoryTypeManaged;
  } else if (type == CU_MEMORYTYPE_DEVICE) {
    attributes->type = cudaMemoryTypeDevice;
  } else if (type == CU_MEMORYTYPE_HOST) {
    attributes->type = cudaMemoryTypeHost;
  } else {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->hostPointer = (void *)(uintptr_t)pointer;
  }
  return runtime_result(result);
}

/* ---- pools; their enumerations have the driver's values ---- */

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
  RUNTIME_INIT();
  return runtime_result(driver.cuDeviceGetDefaultMemPool(pool, device));
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device) {
  RUNTIME_INIT();
  return runtime_result(driver.cuDeviceGetMemPool(pool, device));
}

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  RUNTIME_INIT();
  return runtime_result(driver.cuDeviceSetMemPool(device, pool));
}

_Static_assert(sizeof(struct cudaMemPoolProps) == sizeof(CUmemPoolProps) &&
                   sizeof(struct cudaMemAccessDesc) == sizeof(CUmemAccessDesc),
               "pool properties and access are handed on as they are");

cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *properties) {
  RUNTIME_INIT();
  return runtime_result(driver.cuMemPoolCreate(pool, (const CUmemPoolProps *)properties));
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  RUNTIME_INIT();
  return runtime_result(driver.cuMemPoolDestroy(pool));
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes) {
  RUNTIME_INIT();
  return runtime_result(driver.cuMemPoolTrimTo(pool, bytes));
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute,
                                    void *value) {
  RUNTIME_INIT();
  return runtime_result(driver.cuMemPoolSetAttribute(pool, (CUmemPool_attribute)attribute, value));
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute,
                                    void *value) {
  RUNTIME_INIT();
  return runtime_result(driver.cuMemPoolGetAttribute(pool, (CUmemPool_attribute)attribute, value));
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *access,
                                 size_t count) {
  RUNTIME_INIT();
  return runtime_result(driver.cuMemPoolSetAccess(pool, (const CUmemAccessDesc *)access, count));
}

/* ---- other processes, other devices ---- */

_Static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(CUipcMemHandle),
               "handles are handed on as they are");

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer) {
  RUNTIME_ENTER();
  return runtime_result(
      driver.cuIpcGetMemHandle((CUipcMemHandle *)handle, device_address(pointer)));
}

cudaError_t cudaIpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle, unsigned flags) {
  RUNTIME_ENTER();
  CUipcMemHandle driver_handle;
  memcpy(&driver_handle, &handle, sizeof driver_handle);
  return runtime_result(driver.cuIpcOpenMemHandle((CUdeviceptr *)pointer, driver_handle, flags));
}

cudaError_t cudaIpcCloseMemHandle(void *pointer) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuIpcCloseMemHandle(device_address(pointer)));
}

static cudaError_t peer_contexts(int to_device, int from_device, CUcontext *to, CUcontext *from) {
  if (!runtime_device_valid(to_device) || !runtime_device_valid(from_device))
    return cudaErrorInvalidDevice;
  CUresult result = runtime_primary_context(to_device, to);
  if (result == CUDA_SUCCESS)
    result = runtime_primary_context(from_device, from);
  return (cudaError_t)result;
}

cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device,
                           size_t bytes) {
  RUNTIME_ENTER();
  CUcontext to_context, from_context;
  cudaError_t error = peer_contexts(to_device, from_device, &to_context, &from_context);
  if (error != cudaSuccess)
    return runtime_fail(error);
  return runtime_result(driver.cuMemcpyPeer(device_address(to), to_context, device_address(from),
                                            from_context, bytes));
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t bytes, cudaStream_t stream) {
  RUNTIME_ENTER();
  CUcontext to_context, from_context;
  cudaError_t error = peer_contexts(to_device, from_device, &to_context, &from_context);
  if (error != cudaSuccess)
    return runtime_fail(error);
  return runtime_result(driver.cuMemcpyPeerAsync(
      device_address(to), to_context, device_address(from), from_context, bytes, stream));
}
