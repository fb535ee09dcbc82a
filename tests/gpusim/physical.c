/* Physical memory of the virtual memory management calls: cuMemCreate, reference counts, export and
   import. Mapping is in vmm.c. All state here is under the memory lock.

   Bytes of all handles lie in one memory file, so that thousands of small handles cost no
   descriptors. Only a handle that was created exportable has a file of its own: that file is what
   another process receives, and its name says where the memory is. A handle lives while the program
   holds a reference or a mapping of it exists. */
#define _GNU_SOURCE /* memfd_create, fallocate */
#include "tests/gpusim/driver.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ARENA_BYTES ((size_t)1 << 40) /* sparse: only what is in use takes memory */
static int arena = -1;
static struct gpusim_table pieces; /* of the arena in use; `low` is an offset */
static uint64_t next_offset;
static struct gpusim_handle *shared; /* handles with a file of their own */
static size_t host_bytes;

bool gpusim_location_on_host(const CUmemLocation *location) {
  return location->type == CU_MEM_LOCATION_TYPE_HOST ||
         location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

struct gpusim_handle *gpusim_handle_of(CUmemGenericAllocationHandle handle) {
  void *pointer = (void *)(uintptr_t)handle;
  return gpusim_handle_is(pointer, HANDLE_MEMORY) ? pointer : NULL;
}

/* ---- bytes ---- */

static bool find_piece(uint64_t from, size_t bytes, uint64_t *offset) {
  uint64_t at = from;
  for (size_t i = gpusim_table_position(&pieces, at); i < pieces.count; i++) {
    if (pieces.items[i]->low >= at + bytes)
      break;
    at = pieces.items[i]->low + pieces.items[i]->bytes;
  }
  *offset = at;
  return at + bytes <= ARENA_BYTES;
}

static bool fill(int fd, uint64_t offset, size_t bytes) {
  /* The program's stack may be small. */
  static const unsigned char pattern[1 << 16] = {[0 ...(1 << 16) - 1] = GPUSIM_POISON_BYTE};
  while (bytes > 0) {
    size_t part = bytes < sizeof pattern ? bytes : sizeof pattern;
    ssize_t done = pwrite(fd, pattern, part, (off_t)offset);
    if (done <= 0)
      return false;
    offset += (uint64_t)done;
    bytes -= (size_t)done;
  }
  return true;
}

static bool open_arena(void) {
  if (arena >= 0)
    return true;
  arena = memfd_create("gpusim", MFD_CLOEXEC);
  if (arena >= 0 && ftruncate(arena, (off_t)ARENA_BYTES) == 0)
    return true;
  if (arena >= 0)
    close(arena);
  arena = -1;
  return false;
}

/* A place in the arena; handles made one after another lie side by side, so that their mappings
 * merge. */
static bool take_piece(struct gpusim_handle *handle) {
  if (!open_arena() || (!find_piece(next_offset, handle->bytes, &handle->offset) &&
                        !find_piece(0, handle->bytes, &handle->offset)))
    return false;
  handle->fd = arena;
  struct gpusim_span *span = gpusim_new(sizeof *span);
  *span = (struct gpusim_span){handle->offset, handle->bytes};
  gpusim_table_add(&pieces, span);
  next_offset = handle->offset + handle->bytes;
  return true;
}

static bool take_file(struct gpusim_handle *handle) {
  char name[64];
  snprintf(name, sizeof name, "gpusim-%s-%d", handle->on_host ? "host" : "device",
           handle->properties.location.id);
  handle->fd = memfd_create(name, MFD_CLOEXEC);
  if (handle->fd >= 0 && ftruncate(handle->fd, (off_t)handle->bytes) == 0) {
    handle->next_shared = shared;
    shared = handle;
    return true;
  }
  if (handle->fd >= 0)
    close(handle->fd);
  handle->fd = -1;
  return false;
}

static void give_bytes(struct gpusim_handle *handle) {
  if (handle->fd != arena) {
    for (struct gpusim_handle **link = &shared; *link != NULL; link = &(*link)->next_shared)
      if (*link == handle) {
        *link = handle->next_shared;
        break;
      }
    close(handle->fd);
    return;
  }
  fallocate(arena, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)handle->offset,
            (off_t)handle->bytes);
  struct gpusim_span *span = gpusim_table_find(&pieces, handle->offset);
  gpusim_table_remove(&pieces, span);
  free(span);
}

/* ---- references ---- */

static void count_bytes(struct gpusim_handle *handle, bool more) {
  if (handle->imported)
    return; /* the exporter's device holds it */
  if (handle->on_host) {
    host_bytes = more ? host_bytes + handle->bytes : host_bytes - handle->bytes;
    gpusim_count_peak(GPUSIM_COUNT_host_piece_bytes_peak, host_bytes);
  } else if (!more) {
    gpusim_discharge(handle->properties.location.id, handle->bytes);
  }
}

void gpusim_handle_collect(struct gpusim_handle *handle) {
  if (handle->user_references > 0 || handle->mappings > 0)
    return;
  gpusim_handle_remove(handle);
  count_bytes(handle, false);
  give_bytes(handle);
  free(handle);
}

static CUresult check_properties(const CUmemAllocationProp *properties) {
  const CUmemLocation *location = &properties->location;
  unsigned types = (unsigned)properties->requestedHandleTypes;
  if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if ((types & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0)
    return CUDA_ERROR_NOT_SUPPORTED;
  switch (location->type) {
  case CU_MEM_LOCATION_TYPE_DEVICE:
    return gpusim_ready_device(location->id);
  case CU_MEM_LOCATION_TYPE_HOST:
    return types == 0 ? gpusim_host_location(location) : CUDA_ERROR_INVALID_VALUE;
  default: /* HOST_NUMA_CURRENT is refused there */
    return gpusim_host_location(location);
  }
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags flags) {
  CUresult result = gpusim_ready_vmm();
  if (result != CUDA_SUCCESS)
    return result;
  if (granularity == NULL || properties == NULL ||
      (flags != CU_MEM_ALLOC_GRANULARITY_MINIMUM && flags != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
    return CUDA_ERROR_INVALID_VALUE;
  *granularity = gpusim_settings.granularity;
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes,
                     const CUmemAllocationProp *properties, unsigned long long flags) {
  CUresult result = gpusim_ready_vmm();
  if (result != CUDA_SUCCESS)
    return result;
  if (out == NULL || properties == NULL || flags != 0 || bytes == 0 ||
      bytes % gpusim_settings.granularity != 0)
    return CUDA_ERROR_INVALID_VALUE;
  result = check_properties(properties);
  if (result != CUDA_SUCCESS)
    return result;
  struct gpusim_handle *handle = gpusim_new(sizeof *handle);
  handle->bytes = bytes;
  handle->properties = *properties;
  handle->on_host = gpusim_location_on_host(&properties->location);
  handle->user_references = 1;
  gpusim_memory_lock();
  bool charged = handle->on_host || gpusim_charge(properties->location.id, bytes);
  bool placed =
      charged && (properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE ? take_file(handle)
                                                                              : take_piece(handle));
  if (placed && gpusim_settings.poison && !fill(handle->fd, handle->offset, bytes)) {
    give_bytes(handle);
    placed = false;
  }
  if (placed) {
    if (handle->on_host)
      count_bytes(handle, true);
    gpusim_handle_add(handle, HANDLE_MEMORY, NULL);
    *out = (CUmemGenericAllocationHandle)(uintptr_t)handle;
  } else {
    if (charged && !handle->on_host)
      gpusim_discharge(properties->location.id, bytes);
    free(handle);
  }
  gpusim_memory_unlock();
  return placed ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle value) {
  CUresult result = gpusim_ready_vmm();
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_memory_lock();
  struct gpusim_handle *handle = gpusim_handle_of(value);
  if (handle == NULL || handle->user_references == 0) {
    result = CUDA_ERROR_INVALID_VALUE;
  } else {
    handle->user_references--;
    gpusim_handle_collect(handle);
  }
  gpusim_memory_unlock();
  return result;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                CUmemGenericAllocationHandle value) {
  CUresult result = gpusim_ready_vmm();
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_memory_lock_shared();
  struct gpusim_handle *handle = gpusim_handle_of(value);
  if (properties == NULL || handle == NULL)
    result = CUDA_ERROR_INVALID_VALUE;
  else
    *properties = handle->properties;
  gpusim_memory_unlock();
  return result;
}

/* ---- sharing ---- */

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle value,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  CUresult result = gpusim_ready_vmm();
  if (result != CUDA_SUCCESS)
    return result;
  if (out == NULL || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  gpusim_memory_lock_shared();
  struct gpusim_handle *handle = gpusim_handle_of(value);
  int fd = handle != NULL && handle->fd != arena ? fcntl(handle->fd, F_DUPFD_CLOEXEC, 0) : -1;
  gpusim_memory_unlock();
  if (fd < 0)
    return CUDA_ERROR_INVALID_VALUE;
  *(int *)out = fd;
  return CUDA_SUCCESS;
}

/* The handle of this process that has the same file, for imports into the exporter itself. */
static struct gpusim_handle *same_file(const struct stat *wanted) {
  struct stat own;
  for (struct gpusim_handle *handle = shared; handle != NULL; handle = handle->next_shared)
    if (fstat(handle->fd, &own) == 0 && own.st_ino == wanted->st_ino &&
        own.st_dev == wanted->st_dev)
      return handle;
  return NULL;
}

/* Reads where a memory file lies from the name that take_file gave it. */
static bool read_location(int fd, CUmemLocation *location) {
  char path[64], name[128], kind[8];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(path, name, sizeof name - 1);
  if (length <= 0)
    return false;
  name[length] = 0;
  if (sscanf(name, "/memfd:gpusim-%6[a-z]-%d", kind, &location->id) != 2)
    return false;
  location->type =
      strcmp(kind, "host") == 0 ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE;
  return location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
         (location->id >= 0 && location->id < gpusim_settings.devices);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *os_handle,
                                        CUmemAllocationHandleType type) {
  CUresult result = gpusim_ready_vmm();
  if (result != CUDA_SUCCESS)
    return result;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  struct stat status;
  CUmemLocation location;
  int theirs = (int)(intptr_t)os_handle;
  if (out == NULL || fstat(theirs, &status) != 0 || !read_location(theirs, &location))
    return CUDA_ERROR_INVALID_VALUE;
  gpusim_memory_lock();
  struct gpusim_handle *handle = same_file(&status);
  if (handle != NULL) {
    handle->user_references++;
  } else {
    int fd = fcntl(theirs, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
      gpusim_memory_unlock();
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    handle = gpusim_new(sizeof *handle);
    handle->bytes = (size_t)status.st_size;
    handle->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    handle->properties.requestedHandleTypes = type;
    handle->properties.location = location;
    handle->on_host = gpusim_location_on_host(&location);
    handle->imported = true;
    handle->user_references = 1;
    handle->fd = fd;
    handle->next_shared = shared;
    shared = handle;
    gpusim_handle_add(handle, HANDLE_MEMORY, NULL);
  }
  gpusim_memory_unlock();
  *out = (CUmemGenericAllocationHandle)(uintptr_t)handle;
  return CUDA_SUCCESS;
}
