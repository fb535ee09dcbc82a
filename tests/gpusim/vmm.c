/* Virtual memory management: reservations, mappings and access. The rules are cuda.h's, taken
   strictly, because a shim that moves memory under a program lives by them: offset 0, only whole
   mappings unmapped, no access at first, host access only on memory made on the host, and nothing
   unmapped while work that names it is queued or running.

   A mapping's bytes are always open at its backing address; what a kernel or copy may do is decided
   by the block's masks. The device address itself is opened to the CPU only by a host descriptor.
 */
#include "tests/gpusim/driver.h"
#include <stdlib.h>
#include <sys/mman.h>

static struct gpusim_table reservations; /* memory lock */

static bool aligned(uintptr_t address, size_t bytes) {
  return bytes != 0 && address + bytes > address && address % gpusim_settings.granularity == 0 &&
         bytes % gpusim_settings.granularity == 0;
}

/* Not for children: they would share the pages. */
static bool open_pages(void *at, const struct gpusim_block *block, int protection) {
  if (mmap(at, block->span.bytes, protection, MAP_SHARED | MAP_FIXED, block->handle->fd,
           (off_t)block->handle->offset) != MAP_FAILED)
    return madvise(at, block->span.bytes, MADV_DONTFORK) == 0;
  gpusim_trace(1, "mmap refused %zu bytes: with many pieces, raise vm.max_map_count",
               block->span.bytes);
  return false;
}

/* ---- reservations ---- */

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
  CUresult result = gpusim_ready_vmm();
  if (result != CUDA_SUCCESS)
    return result;
  if (pointer == NULL || flags != 0 || bytes == 0 || bytes % gpusim_settings.granularity != 0 ||
      (alignment & (alignment - 1)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  size_t least = gpusim_settings.granularity;
  /* without a hint at 2 MiB, as on a device, whatever the granularity of the test */
  if (hint == 0 && least < (size_t)2 << 20)
    least = (size_t)2 << 20;
  gpusim_memory_lock();
  uintptr_t at = gpusim_address_take(bytes, alignment > least ? alignment : least, hint);
  if (at != 0) {
    struct gpusim_span *reservation = gpusim_new(sizeof *reservation);
    *reservation = (struct gpusim_span){at, bytes};
    gpusim_table_add(&reservations, reservation);
  }
  gpusim_memory_unlock();
  if (at == 0)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *pointer = at;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes) {
  CUresult result = gpusim_ready_vmm();
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_memory_lock();
  struct gpusim_span *reservation = gpusim_table_find(&reservations, pointer);
  if (reservation == NULL || reservation->low != pointer || reservation->bytes != bytes ||
      gpusim_table_overlaps(&gpusim_blocks, pointer, pointer + bytes)) {
    gpusim_trace(1, "cuMemAddressFree: not exactly one reservation, or still mapped");
    result = CUDA_ERROR_INVALID_VALUE;
  } else {
    gpusim_table_remove(&reservations, reservation);
    free(reservation);
    gpusim_address_give(pointer);
  }
  gpusim_memory_unlock();
  return result;
}

/* ---- mappings ---- */

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle value, unsigned long long flags) {
  CUresult result = gpusim_ready_vmm();
  if (result != CUDA_SUCCESS)
    return result;
  if (flags != 0 || offset != 0 || !aligned(pointer, bytes))
    return CUDA_ERROR_INVALID_VALUE;
  gpusim_memory_lock();
  struct gpusim_handle *handle = gpusim_handle_of(value);
  struct gpusim_span *reservation = gpusim_table_find(&reservations, pointer);
  if (handle == NULL || handle->user_references == 0 || bytes > handle->bytes ||
      reservation == NULL || pointer + bytes > reservation->low + reservation->bytes ||
      gpusim_table_overlaps(&gpusim_blocks, pointer, pointer + bytes)) {
    gpusim_memory_unlock();
    return CUDA_ERROR_INVALID_VALUE;
  }
  struct gpusim_block *block = gpusim_new(sizeof *block);
  block->span = (struct gpusim_span){pointer, bytes};
  block->kind = BLOCK_MAPPING;
  block->device = handle->on_host ? 0 : handle->properties.location.id;
  block->mapped_bytes = bytes;
  block->handle = handle;
  block->host_access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  if (open_pages(gpusim_backing(pointer), block, PROT_READ | PROT_WRITE)) {
    block->id = gpusim_block_number();
    handle->mappings++;
    gpusim_table_add(&gpusim_blocks, &block->span);
    gpusim_memory_changed();
  } else {
    free(block);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  gpusim_memory_unlock();
  return result;
}

/* The blocks from `first` on are mappings that fill [pointer, pointer + bytes) exactly, none of
 * them cut. */
static bool whole_mappings(uintptr_t pointer, size_t bytes, size_t *first, size_t *end) {
  uintptr_t at = pointer;
  size_t i = *first = gpusim_table_position(&gpusim_blocks, pointer);
  for (; at < pointer + bytes; i++) {
    if (i == gpusim_blocks.count || gpusim_blocks.items[i]->low != at ||
        ((struct gpusim_block *)gpusim_blocks.items[i])->kind != BLOCK_MAPPING)
      return false;
    at += gpusim_blocks.items[i]->bytes;
  }
  *end = i;
  return at == pointer + bytes;
}

static void unmap(struct gpusim_block *block) {
  gpusim_close_pages(gpusim_backing(block->span.low), block->span.bytes);
  if (block->host_access != CU_MEM_ACCESS_FLAGS_PROT_NONE)
    gpusim_close_pages((void *)block->span.low, block->span.bytes);
  gpusim_table_remove(&gpusim_blocks, &block->span);
  block->handle->mappings--;
  gpusim_handle_collect(block->handle);
  free(block);
}

/* Does not wait for the device: a real one does so in most cases only, and a shim must not rely on
 * it. */
CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
  CUresult result = gpusim_ready_vmm();
  if (result != CUDA_SUCCESS)
    return result;
  if (!aligned(pointer, bytes))
    return CUDA_ERROR_INVALID_VALUE;
  size_t first, end;
  gpusim_lock(); /* nothing can be submitted between the check and the unmapping */
  gpusim_memory_lock();
  if (!whole_mappings(pointer, bytes, &first, &end)) {
    gpusim_trace(1, "cuMemUnmap of %#llx, %zu bytes: not exactly whole mappings", pointer, bytes);
    result = CUDA_ERROR_INVALID_VALUE;
  } else if (!gpusim_unused(pointer, pointer + bytes, "cuMemUnmap")) {
    result = CUDA_ERROR_ILLEGAL_ADDRESS;
  } else {
    while (end-- > first)
      unmap((struct gpusim_block *)gpusim_blocks.items[end]);
    gpusim_memory_changed();
  }
  gpusim_memory_unlock();
  gpusim_unlock();
  return result;
}

/* ---- access ---- */

static CUresult check_access(const CUmemAccessDesc *access, size_t first, size_t end) {
  if (access->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
      access->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
      access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    return CUDA_ERROR_INVALID_VALUE;
  if (access->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
    return access->location.id >= 0 && access->location.id < gpusim_settings.devices
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_DEVICE;
  if (!gpusim_location_on_host(&access->location))
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = first; i < end; i++)
    if (((struct gpusim_block *)gpusim_blocks.items[i])->handle->properties.location.type !=
        access->location.type) {
      gpusim_trace(1, "cuMemSetAccess: a host descriptor on memory that was not made there");
      return CUDA_ERROR_INVALID_VALUE;
    }
  return CUDA_SUCCESS;
}

static CUresult set_host_access(struct gpusim_block *block, CUmemAccess_flags flags) {
  int protection = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE : PROT_READ;
  bool done = flags == CU_MEM_ACCESS_FLAGS_PROT_NONE
                  ? gpusim_close_pages((void *)block->span.low, block->span.bytes)
                  : open_pages((void *)block->span.low, block, protection);
  if (!done)
    return CUDA_ERROR_OUT_OF_MEMORY;
  block->host_access = flags;
  return CUDA_SUCCESS;
}

static void set_device_access(struct gpusim_block *block, int device, CUmemAccess_flags flags) {
  uint32_t bit = UINT32_C(1) << device;
  block->readable &= ~bit;
  block->writable &= ~bit;
  if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
    block->readable |= bit;
  if (flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    block->writable |= bit;
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *access,
                        size_t count) {
  CUresult result = gpusim_ready_vmm();
  if (result != CUDA_SUCCESS)
    return result;
  if (access == NULL || count == 0 || !aligned(pointer, bytes))
    return CUDA_ERROR_INVALID_VALUE;
  size_t first, end;
  gpusim_memory_lock();
  if (!whole_mappings(pointer, bytes, &first, &end)) {
    gpusim_trace(1, "cuMemSetAccess of %#llx, %zu bytes: not exactly whole mappings", pointer,
                 bytes);
    result = CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t d = 0; d < count && result == CUDA_SUCCESS; d++)
    result = check_access(&access[d], first, end);
  /* all descriptors are right: nothing below is refused, short of the machine's own limits */
  for (size_t d = 0; d < count && result == CUDA_SUCCESS; d++)
    for (size_t i = first; i < end && result == CUDA_SUCCESS; i++) {
      struct gpusim_block *block = (struct gpusim_block *)gpusim_blocks.items[i];
      if (gpusim_location_on_host(&access[d].location))
        result = set_host_access(block, access[d].flags);
      else
        set_device_access(block, access[d].location.id, access[d].flags);
    }
  gpusim_memory_changed();
  gpusim_memory_unlock();
  return result;
}

static struct gpusim_block *mapping_at(uintptr_t address) {
  struct gpusim_block *block = (struct gpusim_block *)gpusim_table_find(&gpusim_blocks, address);
  return block != NULL && block->kind == BLOCK_MAPPING ? block : NULL;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                        CUdeviceptr pointer) {
  CUresult result = gpusim_ready_vmm();
  if (result != CUDA_SUCCESS)
    return result;
  if (flags == NULL || location == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  bool host = gpusim_location_on_host(location);
  if (!host) {
    result = location->type == CU_MEM_LOCATION_TYPE_DEVICE ? gpusim_ready_device(location->id)
                                                           : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
      return result;
  }
  gpusim_memory_lock_shared();
  struct gpusim_block *block = mapping_at(pointer);
  if (block == NULL)
    result = CUDA_ERROR_INVALID_VALUE;
  else if (host)
    *flags = block->host_access;
  else
    *flags = gpusim_block_allows(block, location->id, true)    ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
             : gpusim_block_allows(block, location->id, false) ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                                               : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  gpusim_memory_unlock();
  return result;
}

/* Any address within a mapping; each retain is paired with a release. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
  CUresult result = gpusim_ready_vmm();
  if (result != CUDA_SUCCESS)
    return result;
  if (handle == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  gpusim_memory_lock();
  struct gpusim_block *block = mapping_at((uintptr_t)address);
  if (block == NULL) {
    result = CUDA_ERROR_INVALID_VALUE;
  } else {
    block->handle->user_references++;
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)block->handle;
  }
  gpusim_memory_unlock();
  return result;
}
