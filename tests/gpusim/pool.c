/* Stream-ordered allocation. The address is found at the call; the memory is given back when the
   stream reaches the free. A pool keeps nothing for later: what is freed is free at once, whatever
   its release threshold. */
#include "tests/gpusim/driver.h"

struct CUmemPoolHandle_st {
  int device;
  bool is_default;
  uint64_t threshold, used, high;
  uint32_t access; /* further devices whose kernels may touch its memory */
};
/* Under the memory lock. Pools are never freed: a block may outlive the handle of its pool. */
static struct CUmemPoolHandle_st defaults[GPUSIM_MAX_DEVICES];
static CUmemoryPool current[GPUSIM_MAX_DEVICES];

bool gpusim_pool_allows(CUmemoryPool pool, int device) {
  return pool != NULL && (pool->access >> device & 1) != 0;
}

void gpusim_pool_taken(CUmemoryPool pool, size_t bytes) {
  pool->used += bytes;
  if (pool->used > pool->high)
    pool->high = pool->used;
}

void gpusim_pool_returned(CUmemoryPool pool, size_t bytes) {
  pool->used -= bytes;
}

static CUmemoryPool default_pool(int device) {
  defaults[device].device = device;
  defaults[device].is_default = true;
  gpusim_handle_add(&defaults[device], HANDLE_POOL, NULL);
  return &defaults[device];
}

static CUresult check_pool(CUmemoryPool pool) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  return gpusim_handle_is(pool, HANDLE_POOL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
  CUresult result = gpusim_ready_device(device);
  if (result != CUDA_SUCCESS || pool == NULL)
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
  gpusim_memory_lock();
  *pool = default_pool(device);
  gpusim_memory_unlock();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
  CUresult result = gpusim_ready_device(device);
  if (result != CUDA_SUCCESS || pool == NULL)
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
  gpusim_memory_lock();
  *pool = current[device] != NULL ? current[device] : default_pool(device);
  gpusim_memory_unlock();
  return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  CUresult result = gpusim_ready_device(device);
  if (result == CUDA_SUCCESS)
    result = check_pool(pool);
  if (result != CUDA_SUCCESS || pool->device != device)
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
  gpusim_memory_lock();
  current[device] = pool;
  gpusim_memory_unlock();
  return CUDA_SUCCESS;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  if (pool == NULL || properties == NULL || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
    return CUDA_ERROR_NOT_SUPPORTED;
  result = gpusim_ready_device(properties->location.id);
  if (result != CUDA_SUCCESS)
    return result;
  *pool = gpusim_new(sizeof **pool);
  (*pool)->device = properties->location.id;
  gpusim_handle_add(*pool, HANDLE_POOL, *pool);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  CUresult result = check_pool(pool);
  if (result != CUDA_SUCCESS || pool->is_default)
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
  gpusim_handle_remove(pool);
  gpusim_memory_lock();
  if (current[pool->device] == pool)
    current[pool->device] = NULL;
  gpusim_memory_unlock();
  return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes) {
  (void)bytes; /* nothing is kept */
  return check_pool(pool);
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count) {
  CUresult result = check_pool(pool);
  if (result == CUDA_SUCCESS && (access == NULL || count == 0))
    result = CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
    result = access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE
                 ? gpusim_ready_device(access[i].location.id)
                 : CUDA_ERROR_INVALID_VALUE;
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_memory_lock();
  for (size_t i = 0; i < count; i++) {
    uint32_t bit = UINT32_C(1) << access[i].location.id;
    pool->access =
        access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? pool->access & ~bit : pool->access | bit;
  }
  gpusim_memory_changed();
  gpusim_memory_unlock();
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location) {
  CUresult result = check_pool(pool);
  if (result != CUDA_SUCCESS)
    return result;
  if (flags == NULL || location == NULL || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  result = gpusim_ready_device(location->id);
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_memory_lock_shared();
  bool allowed = pool->device == location->id || gpusim_pool_allows(pool, location->id);
  gpusim_memory_unlock();
  *flags = allowed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
  CUresult result = check_pool(pool);
  if (result != CUDA_SUCCESS || value == NULL)
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
  gpusim_memory_lock();
  switch (attribute) {
  case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
    pool->threshold = *(cuuint64_t *)value;
    break;
  case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
  case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: /* cuda.h: only 0, which starts anew */
    pool->high = pool->used;
    break;
  case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
  case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
  case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
    break;
  default:
    result = CUDA_ERROR_INVALID_VALUE;
  }
  gpusim_memory_unlock();
  return result;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
  CUresult result = check_pool(pool);
  if (result != CUDA_SUCCESS || value == NULL)
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
  gpusim_memory_lock_shared();
  switch (attribute) {
  case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
    *(cuuint64_t *)value = pool->threshold;
    break;
  case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
  case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
    *(cuuint64_t *)value = pool->used;
    break;
  case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
  case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
    *(cuuint64_t *)value = pool->high;
    break;
  case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
  case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
  case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
    *(int *)value = 1;
    break;
  default:
    result = CUDA_ERROR_INVALID_VALUE;
  }
  gpusim_memory_unlock();
  return result;
}

/* ---- allocation and free in a stream's order ---- */

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                 CUstream handle) {
  struct CUstream_st *stream;
  uintptr_t address;
  if (pointer == NULL || !gpusim_handle_is(pool, HANDLE_POOL))
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = gpusim_enter_wait(handle, &stream); /* allocation nodes aren't simulated */
  if (result != CUDA_SUCCESS)
    return result;
  CUcontext context = stream->context;
  gpusim_unlock();
  if (pool->device != context->device)
    return CUDA_ERROR_NOT_SUPPORTED;
  result = gpusim_allocate(context, BLOCK_DEVICE, bytes, 0, pool, &address);
  if (result != CUDA_SUCCESS)
    return result;
  *pointer = address;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
  CUcontext context;
  CUmemoryPool pool = NULL;
  CUresult result = gpusim_enter(&context);
  if (result == CUDA_SUCCESS)
    result = cuDeviceGetMemPool(&pool, context->device);
  return result == CUDA_SUCCESS ? cuMemAllocFromPoolAsync(pointer, bytes, pool, stream) : result;
}

static CUresult run_free(void *address) {
  return gpusim_free((uintptr_t)address, 1u << BLOCK_DEVICE) == CUDA_SUCCESS
             ? CUDA_SUCCESS
             : CUDA_ERROR_ILLEGAL_ADDRESS; /* freed twice: the second one was queued too */
}

static const struct operation_kind free_kind = {.name = "free", .run = run_free};

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream handle) {
  struct CUstream_st *stream;
  CUresult result = gpusim_enter_submit(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_memory_lock_shared();
  struct gpusim_block *block = (struct gpusim_block *)gpusim_table_find(&gpusim_blocks, pointer);
  bool right = block != NULL && block->span.low == pointer && block->kind == BLOCK_DEVICE;
  gpusim_memory_unlock();
  if (!right) {
    gpusim_unlock();
    return CUDA_ERROR_INVALID_VALUE;
  }
  return gpusim_submit_leave(stream, &free_kind, (void *)(uintptr_t)pointer);
}
