/* Entry points for memory that isn't mapped by hand: cuMemAlloc, pinned, registered and managed
   memory, and what the program may ask about a pointer. Stream-ordered pools are in pool.c. */
#include "tests/gpusim/driver.h"
#include <string.h>

/* gpusim_enter, and not while a capture forbids unsafe calls. */
static CUresult enter_unsafe(CUcontext *context) {
  CUresult result = gpusim_enter(context);
  if (result == CUDA_SUCCESS)
    result = gpusim_capture_unsafe();
  if (result == CUDA_SUCCESS)
    gpusim_driver_settle(*context, "an allocation");
  return result;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  CUcontext context;
  CUresult result = gpusim_enter(&context);
  if (result != CUDA_SUCCESS)
    return result;
  if (free_bytes == NULL || total_bytes == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  gpusim_memory_lock_shared();
  *total_bytes = gpusim_settings.memory;
  *free_bytes = gpusim_settings.memory - gpusim_used(context->device);
  gpusim_memory_unlock();
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
  CUcontext context;
  uintptr_t address;
  CUresult result = enter_unsafe(&context);
  if (result == CUDA_SUCCESS && pointer == NULL)
    result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS)
    result = gpusim_allocate(context, BLOCK_DEVICE, bytes, 0, NULL, &address);
  if (result == CUDA_SUCCESS)
    *pointer = address;
  return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                            unsigned element_bytes) {
  if (pitch == NULL || (element_bytes != 4 && element_bytes != 8 && element_bytes != 16))
    return CUDA_ERROR_INVALID_VALUE;
  *pitch = gpusim_round_up(width, 512);
  return cuMemAlloc_v2(pointer, *pitch * height);
}

/* Waits for the work of the context that owns the block: cuda.h promises no more than "may
   synchronise", programs rely on it. Returns false when the block is not one of `kinds`.
   gpusim_mutex held. */
static bool drain_owner(uintptr_t address, unsigned kinds) {
  gpusim_memory_lock_shared();
  struct gpusim_block *block = (struct gpusim_block *)gpusim_table_find(&gpusim_blocks, address);
  bool right = block != NULL && block->span.low == address && (kinds >> block->kind & 1) != 0;
  CUcontext owner = right ? block->context : NULL;
  gpusim_memory_unlock();
  if (owner != NULL)
    gpusim_drain_context(owner);
  return right;
}

static CUresult release(uintptr_t address, unsigned kinds, CUresult wrong) {
  CUcontext context;
  CUresult result = enter_unsafe(&context);
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_lock();
  gpusim_driver_hold("a free");
  bool right = drain_owner(address, kinds);
  bool freed = right && gpusim_free(address, kinds) == CUDA_SUCCESS;
  gpusim_driver_let_go();
  gpusim_unlock();
  if (!right) {
    gpusim_trace(1, "free of %#lx, where no such allocation begins", (unsigned long)address);
    return wrong;
  }
  return freed ? (CUresult)context->sticky : wrong;
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
  CUcontext context;
  if (pointer == 0)
    return gpusim_enter(&context);
  return release(pointer, 1u << BLOCK_DEVICE | 1u << BLOCK_MANAGED, CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
  CUcontext context;
  uintptr_t address;
  CUresult result = enter_unsafe(&context);
  if (result == CUDA_SUCCESS &&
      (pointer == NULL || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)))
    result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS)
    result = gpusim_allocate(context, BLOCK_MANAGED, bytes, flags, NULL, &address);
  if (result == CUDA_SUCCESS)
    *pointer = address;
  return result;
}

/* ---- pinned host memory ---- */

CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
  const unsigned all =
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  CUcontext context;
  uintptr_t address;
  CUresult result = enter_unsafe(&context);
  if (result == CUDA_SUCCESS && (pointer == NULL || (flags & ~all) != 0))
    result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS)
    result = gpusim_allocate(context, BLOCK_PINNED, bytes, flags, NULL, &address);
  if (result == CUDA_SUCCESS)
    *pointer = (void *)address;
  return result;
}

CUresult cuMemAllocHost_v2(void **pointer, size_t bytes) {
  return cuMemHostAlloc(pointer, bytes, 0);
}

CUresult cuMemFreeHost(void *pointer) {
  return release((uintptr_t)pointer, 1u << BLOCK_PINNED, CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags) {
  const unsigned all =
      CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
  CUcontext context;
  CUresult result = enter_unsafe(&context);
  if (result != CUDA_SUCCESS)
    return result;
  if (pointer == NULL || bytes == 0 || (flags & ~all) != 0 ||
      gpusim_region_contains((uintptr_t)pointer))
    return CUDA_ERROR_INVALID_VALUE;
  if (bytes > gpusim_register_limit())
    return CUDA_ERROR_OUT_OF_MEMORY;
  return gpusim_register(context, (uintptr_t)pointer, bytes, flags);
}

CUresult cuMemHostUnregister(void *pointer) {
  return release((uintptr_t)pointer, 1u << BLOCK_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

/* A copy of the block at an address; false when there is none. */
static bool block_at(uintptr_t address, struct gpusim_block *copy,
                     struct gpusim_handle *handle_copy) {
  gpusim_memory_lock_shared();
  struct gpusim_block *block = (struct gpusim_block *)gpusim_table_find(&gpusim_blocks, address);
  if (block != NULL) {
    *copy = *block;
    if (block->handle != NULL)
      *handle_copy = *block->handle;
  }
  gpusim_memory_unlock();
  return block != NULL;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device_pointer, void *pointer, unsigned flags) {
  CUcontext context;
  struct gpusim_block block;
  struct gpusim_handle handle;
  CUresult result = gpusim_enter(&context);
  if (result != CUDA_SUCCESS)
    return result;
  if (flags != 0 || device_pointer == NULL || !block_at((uintptr_t)pointer, &block, &handle) ||
      (block.kind != BLOCK_PINNED && block.kind != BLOCK_REGISTERED))
    return CUDA_ERROR_INVALID_VALUE;
  *device_pointer = (CUdeviceptr)pointer;
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned *flags, void *pointer) {
  CUcontext context;
  struct gpusim_block block;
  struct gpusim_handle handle;
  CUresult result = gpusim_enter(&context);
  if (result != CUDA_SUCCESS)
    return result;
  if (flags == NULL || !block_at((uintptr_t)pointer, &block, &handle) || block.kind != BLOCK_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  *flags = block.flags;
  return CUDA_SUCCESS;
}

/* ---- questions ---- */

/* On mapped memory the answer is one mapping, not the reservation: what NCCL walks segments with.
 */
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer) {
  CUcontext context;
  struct gpusim_block block;
  struct gpusim_handle handle;
  CUresult result = gpusim_enter(&context);
  if (result != CUDA_SUCCESS)
    return result;
  if (!block_at(pointer, &block, &handle) || block.kind == BLOCK_REGISTERED)
    return CUDA_ERROR_NOT_FOUND;
  if (base != NULL)
    *base = block.span.low;
  if (bytes != NULL)
    *bytes = block.span.bytes;
  return CUDA_SUCCESS;
}

static CUresult answer(void *out, CUpointer_attribute attribute, CUdeviceptr pointer,
                       const struct gpusim_block *block, const struct gpusim_handle *handle) {
  bool mapping = block->kind == BLOCK_MAPPING;
  bool host = block->kind == BLOCK_PINNED || block->kind == BLOCK_REGISTERED ||
              (mapping && handle->on_host);
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_CONTEXT:
    *(CUcontext *)out = mapping ? gpusim_primary(block->device) : block->context;
    break;
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: /* a piece that moved to the host answers HOST */
    *(unsigned *)out = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    break;
  case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    *(CUdeviceptr *)out = pointer;
    break;
  case CU_POINTER_ATTRIBUTE_HOST_POINTER: /* only where the CPU may read */
    if ((mapping && block->host_access == CU_MEM_ACCESS_FLAGS_PROT_NONE) ||
        (!host && block->kind != BLOCK_MANAGED))
      return CUDA_ERROR_INVALID_VALUE;
    *(void **)out = (void *)pointer;
    break;
  case CU_POINTER_ATTRIBUTE_BUFFER_ID:
  case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: /* every block is one physical allocation */
    *(unsigned long long *)out = block->id;
    break;
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    *(char *)out = block->kind == BLOCK_MANAGED;
    break;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    *(int *)out = block->device;
    break;
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: /* of mapped memory: the reservation */
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE: {
    struct gpusim_span span = block->span;
    if (mapping) {
      gpusim_memory_lock_shared();
      struct gpusim_span *reservation = gpusim_address_taken(pointer);
      if (reservation != NULL)
        span = *reservation;
      gpusim_memory_unlock();
    }
    if (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
      *(CUdeviceptr *)out = span.low;
    else
      *(size_t *)out = span.bytes;
    break;
  }
  case CU_POINTER_ATTRIBUTE_MAPPED:
    *(char *)out = 1;
    break;
  case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    *(unsigned long long *)out =
        mapping ? (unsigned long long)handle->properties.requestedHandleTypes : 0;
    break;
  case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    *(unsigned *)out = gpusim_current() == NULL ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE
                       : gpusim_block_allows(block, gpusim_current()->device, true)
                           ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE
                       : gpusim_block_allows(block, gpusim_current()->device, false)
                           ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ
                           : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
    break;
  case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    *(CUmemoryPool *)out = block->pool;
    break;
  case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    *(size_t *)out = block->span.bytes;
    break;
  case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    *(CUdeviceptr *)out = block->span.low;
    break;
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
  case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    *(char *)out = 0;
    break;
  case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    *(unsigned *)out = 0;
    break;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr pointer) {
  struct gpusim_block block;
  struct gpusim_handle handle;
  memset(&handle, 0, sizeof handle);
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  if (out == NULL || !block_at(pointer, &block, &handle))
    return CUDA_ERROR_INVALID_VALUE;
  return answer(out, attribute, pointer, &block, &handle);
}

/* cuda.h: an unknown pointer is not an error here; each attribute gets its null value. */
static void answer_null(void *out, CUpointer_attribute attribute) {
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
  case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
  case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    *(unsigned *)out = 0;
    break;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    *(int *)out = CU_DEVICE_INVALID;
    break;
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
  case CU_POINTER_ATTRIBUTE_MAPPED:
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
  case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    *(char *)out = 0;
    break;
  default:
    *(void **)out = NULL;
  }
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **out,
                                CUdeviceptr pointer) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  if (count == 0 || attributes == NULL || out == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; i++)
    if (cuPointerGetAttribute(out[i], attributes[i], pointer) != CUDA_SUCCESS)
      answer_null(out[i], attributes[i]);
  return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                               CUdeviceptr pointer) {
  struct gpusim_block block;
  struct gpusim_handle handle;
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  if (value == NULL || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ||
      !block_at(pointer, &block, &handle))
    return CUDA_ERROR_INVALID_VALUE;
  return block.kind == BLOCK_MAPPING ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

/* Hints for managed memory, which the simulator never migrates: checked and done. */
static CUresult check_managed(CUdeviceptr pointer) {
  CUcontext context;
  struct gpusim_block block;
  struct gpusim_handle handle;
  CUresult result = gpusim_enter(&context);
  if (result != CUDA_SUCCESS)
    return result;
  return block_at(pointer, &block, &handle) && block.kind == BLOCK_MANAGED
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation location,
                               unsigned flags, CUstream stream) {
  (void)bytes, (void)location, (void)stream;
  return flags == 0 ? check_managed(pointer) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, CUmem_advise advice,
                        CUmemLocation location) {
  (void)bytes, (void)advice, (void)location;
  return check_managed(pointer);
}
