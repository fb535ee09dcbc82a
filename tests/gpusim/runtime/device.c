/* Devices: choosing one, attributes, limits, peers; versions; the profiler's switches. */
#include "runtime.h"
#include <string.h>

cudaError_t cudaDriverGetVersion(int *version) {
  cudaError_t error = runtime_init();
  if (version == NULL)
    return runtime_fail(cudaErrorInvalidValue);
  *version = 0; /* "no driver" is an answer here, not an error */
  return error == cudaErrorInsufficientDriver ? cudaSuccess
                                              : runtime_result(driver.cuDriverGetVersion(version));
}

cudaError_t cudaRuntimeGetVersion(int *version) {
  if (version == NULL)
    return runtime_fail(cudaErrorInvalidValue);
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
  RUNTIME_INIT();
  *count = runtime_device_count();
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
  RUNTIME_INIT();
  *device = runtime_device();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  RUNTIME_INIT();
  if (!runtime_device_valid(device))
    return runtime_fail(cudaErrorInvalidDevice);
  return runtime_result(runtime_set_device(device));
}

cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags) {
  RUNTIME_INIT();
  if (!runtime_device_valid(device))
    return runtime_fail(cudaErrorInvalidDevice);
  if (flags == cudaInitDeviceFlagsAreValid) {
    CUresult result = driver.cuDevicePrimaryCtxSetFlags(device, device_flags);
    if (result != CUDA_SUCCESS)
      return runtime_result(result);
  }
  CUcontext context;
  return runtime_result(runtime_primary_context(device, &context));
}

cudaError_t cudaSetDeviceFlags(unsigned flags) {
  RUNTIME_INIT();
  return runtime_result(driver.cuDevicePrimaryCtxSetFlags(runtime_device(), flags));
}

cudaError_t cudaGetDeviceFlags(unsigned *flags) {
  RUNTIME_INIT();
  int active;
  return runtime_result(driver.cuDevicePrimaryCtxGetState(runtime_device(), flags, &active));
}

cudaError_t cudaDeviceSynchronize(void) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuCtxSynchronize());
}

cudaError_t cudaDeviceReset(void) {
  RUNTIME_INIT();
  int device = runtime_device();
  CUresult result = driver.cuDevicePrimaryCtxReset(device);
  if (result == CUDA_SUCCESS) {
    runtime_primary_context_forget(device);
    result = driver.cuCtxSetCurrent(NULL);
  }
  return runtime_result(result);
}

/* The enumerations of attributes, limits and the like have the driver's values. */
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  RUNTIME_INIT();
  return runtime_result(driver.cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device));
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device) {
  RUNTIME_INIT();
  return runtime_result(driver.cuDeviceGetPCIBusId(text, bytes, device));
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *text) {
  RUNTIME_INIT();
  return runtime_result(driver.cuDeviceGetByPCIBusId(device, text));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuCtxGetStreamPriorityRange(least, greatest));
}

cudaError_t cudaDeviceSetLimit(enum cudaLimit limit, size_t value) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuCtxSetLimit((CUlimit)limit, value));
}

cudaError_t cudaDeviceGetLimit(size_t *value, enum cudaLimit limit) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuCtxGetLimit(value, (CUlimit)limit));
}

/* A hint; a simulated multiprocessor has no cache to divide. */
cudaError_t cudaDeviceSetCacheConfig(enum cudaFuncCache config) {
  (void)config;
  RUNTIME_ENTER();
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
  RUNTIME_INIT();
  if (!runtime_device_valid(device))
    return runtime_fail(cudaErrorInvalidDevice);
  memset(properties, 0, sizeof *properties);
  driver.cuDeviceGetName(properties->name, sizeof properties->name, device);
  driver.cuDeviceTotalMem(&properties->totalGlobalMem, device);
  driver.cuDeviceGetUuid(&properties->uuid, device);
#define GET(field, NAME)                                                                           \
  do {                                                                                             \
    int value = 0;                                                                                 \
    driver.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_##NAME, device);                       \
    properties->field = (__typeof__(properties->field))value;                                      \
  } while (0)
  GET(major, COMPUTE_CAPABILITY_MAJOR);
  GET(minor, COMPUTE_CAPABILITY_MINOR);
  GET(multiProcessorCount, MULTIPROCESSOR_COUNT);
  GET(warpSize, WARP_SIZE);
  GET(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK);
  GET(maxThreadsDim[0], MAX_BLOCK_DIM_X);
  GET(maxThreadsDim[1], MAX_BLOCK_DIM_Y);
  GET(maxThreadsDim[2], MAX_BLOCK_DIM_Z);
  GET(maxGridSize[0], MAX_GRID_DIM_X);
  GET(maxGridSize[1], MAX_GRID_DIM_Y);
  GET(maxGridSize[2], MAX_GRID_DIM_Z);
  GET(sharedMemPerBlock, MAX_SHARED_MEMORY_PER_BLOCK);
  GET(sharedMemPerBlockOptin, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  GET(sharedMemPerMultiprocessor, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  GET(regsPerBlock, MAX_REGISTERS_PER_BLOCK);
  GET(regsPerMultiprocessor, MAX_REGISTERS_PER_MULTIPROCESSOR);
  GET(totalConstMem, TOTAL_CONSTANT_MEMORY);
  GET(l2CacheSize, L2_CACHE_SIZE);
  GET(maxThreadsPerMultiProcessor, MAX_THREADS_PER_MULTIPROCESSOR);
  GET(maxBlocksPerMultiProcessor, MAX_BLOCKS_PER_MULTIPROCESSOR);
  GET(unifiedAddressing, UNIFIED_ADDRESSING);
  GET(managedMemory, MANAGED_MEMORY);
  GET(concurrentManagedAccess, CONCURRENT_MANAGED_ACCESS);
  GET(canMapHostMemory, CAN_MAP_HOST_MEMORY);
  GET(concurrentKernels, CONCURRENT_KERNELS);
  GET(asyncEngineCount, ASYNC_ENGINE_COUNT);
  GET(ECCEnabled, ECC_ENABLED);
  GET(pciBusID, PCI_BUS_ID);
  GET(pciDeviceID, PCI_DEVICE_ID);
  GET(pciDomainID, PCI_DOMAIN_ID);
  GET(memoryBusWidth, GLOBAL_MEMORY_BUS_WIDTH);
  GET(memoryPoolsSupported, MEMORY_POOLS_SUPPORTED);
  GET(cooperativeLaunch, COOPERATIVE_LAUNCH);
  GET(textureAlignment, TEXTURE_ALIGNMENT);
  GET(streamPrioritiesSupported, STREAM_PRIORITIES_SUPPORTED);
  GET(integrated, INTEGRATED);
#undef GET
  return cudaSuccess;
}

/* ---- peers ---- */

cudaError_t cudaDeviceCanAccessPeer(int *possible, int device, int peer) {
  RUNTIME_INIT();
  return runtime_result(driver.cuDeviceCanAccessPeer(possible, device, peer));
}

cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr attribute, int from,
                                      int to) {
  RUNTIME_INIT();
  return runtime_result(
      driver.cuDeviceGetP2PAttribute(value, (CUdevice_P2PAttribute)attribute, from, to));
}

static cudaError_t peer_context(int peer, CUcontext *context) {
  if (!runtime_device_valid(peer))
    return cudaErrorInvalidDevice;
  return (cudaError_t)runtime_primary_context(peer, context);
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  RUNTIME_ENTER();
  CUcontext context;
  cudaError_t error = peer_context(peer, &context);
  return error != cudaSuccess ? runtime_fail(error)
                              : runtime_result(driver.cuCtxEnablePeerAccess(context, flags));
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  RUNTIME_ENTER();
  CUcontext context;
  cudaError_t error = peer_context(peer, &context);
  return error != cudaSuccess ? runtime_fail(error)
                              : runtime_result(driver.cuCtxDisablePeerAccess(context));
}

/* ---- the profiler's switches: nothing listens ---- */

cudaError_t cudaProfilerStart(void);
cudaError_t cudaProfilerStart(void) {
  RUNTIME_ENTER();
  return cudaSuccess;
}

cudaError_t cudaProfilerStop(void);
cudaError_t cudaProfilerStop(void) {
  RUNTIME_ENTER();
  return cudaSuccess;
}
