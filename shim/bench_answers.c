/* What the driver of bench_driver.c answers where success alone would not do: addresses and handles
   that are never used, a device with room, and the resolver. */
#define __CUDA_API_VERSION_INTERNAL /* cuda.h then declares every version under its own name */
#include "driver.h"
#include <string.h>

enum { PIECE_BYTES = 2 << 20 };
#pragma GCC visibility push(default)

static CUdeviceptr next_address(size_t bytes) {
  static CUdeviceptr next = 0x7f0000000000;
  const CUdeviceptr address = next;
  next += (bytes + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES;
  return address;
}

CUresult cuDriverGetVersion(int *version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  (void)device;
  *value = attribute == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID ? 0 : 1;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice *device) {
  *device = 0;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext *context) {
  *context = (CUcontext)(uintptr_t)64;
  return CUDA_SUCCESS;
}
CUresult cuMemGetInfo_v2(size_t *room, size_t *total) {
  *room = *total = (size_t)80 << 30;
  return CUDA_SUCCESS;
}
CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags flags) {
  (void)properties, (void)flags;
  *bytes = PIECE_BYTES;
  return CUDA_SUCCESS;
}
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
  *address = next_address(bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
  (void)alignment, (void)hint, (void)flags;
  *address = next_address(bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *properties, unsigned long long flags) {
  static CUmemGenericAllocationHandle next = 1;
  (void)bytes, (void)properties, (void)flags;
  *handle = next++;
  return CUDA_SUCCESS;
}
/* A handle for virtual memory, as the real driver answers: bench_calls.c tells ranges by it. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
  (void)address;
  *handle = 1;
  return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  (void)stream;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult cuFuncGetName(const char **name, CUfunction function) {
  (void)function;
  *name = "_Z4someN4nameEPf";
  return CUDA_SUCCESS;
}
/* Twelve parameters of eight bytes, whatever the function. */
CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *bytes) {
  (void)function;
  if (index >= 12)
    return CUDA_ERROR_INVALID_VALUE;
  *offset = index * 8;
  if (bytes)
    *bytes = 8;
  return CUDA_SUCCESS;
}
CUresult cuKernelGetName(const char **name, CUkernel kernel) {
  (void)name, (void)kernel;
  return CUDA_ERROR_INVALID_HANDLE; /* these are functions, not kernels */
}
CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *bytes) {
  (void)kernel, (void)index, (void)offset, (void)bytes;
  return CUDA_ERROR_INVALID_HANDLE;
}

/* ---- the resolver: the newest version that was asked for ---- */

static const struct name {
  const char *base;
  int version, per_thread;
  void *function;
} names[] = {
#define HOOK(symbol, base, version, per_thread, parameters, arguments)                             \
  {base, version, per_thread, (void *)symbol},
#define USE(symbol, base, version) {base, version, 0, (void *)symbol},
#include "hooks.def"
#undef HOOK
#undef USE
};

CUresult cuGetProcAddress_v2(const char *name, void **pointer, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
  const int per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  int best = -1;
  *pointer = NULL;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (names[i].version <= version && names[i].version > best &&
        names[i].per_thread <= per_thread && !strcmp(names[i].base, name)) {
      best = names[i].version;
      *pointer = names[i].function;
    }
  if (status)
    *status = *pointer ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return CUDA_SUCCESS;
}
CUresult cuGetProcAddress(const char *name, void **pointer, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(name, pointer, version, flags, NULL);
}
#pragma GCC visibility pop
