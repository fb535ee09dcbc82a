/* Everything with bytes behind it: the device address region, the table of blocks, accounting, and
   what the interpreter and the copies ask about an address. Entry points are in allocation.c,
   mappings in vmm.c.

   Device addresses lie in one region reserved at cuInit. Its lower half is never readable; the byte
   of device address `a` is at `a + half`. The kernel chooses where the region goes, so it fits
   sanitizers' shadow layouts too. Addresses are handed out upwards and taken again only after a
   full turn: a stale pointer meets nothing, not a neighbour. */
#include "tests/gpusim/driver.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__SANITIZE_THREAD__)
#define REGION_LIMIT ((size_t)1 << 37) /* ThreadSanitizer leaves 1.5 TiB for all mappings */
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define REGION_LIMIT ((size_t)1 << 37)
#endif
#endif
#ifndef REGION_LIMIT
#define REGION_LIMIT ((size_t)1 << 40)
#endif
enum { PAGE = 4096, GAP = 1 << 16 };

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
struct gpusim_table gpusim_blocks;
static struct gpusim_table taken; /* addresses of the region in use: allocations and reservations */
static uintptr_t region_low, next_address;
static size_t region_bytes; /* of one half */
static _Atomic uint64_t generation = 1;
static size_t used[GPUSIM_MAX_DEVICES];
static uint64_t next_block_id = 1;

void gpusim_memory_lock_shared(void) {
  pthread_rwlock_rdlock(&lock);
}

void gpusim_memory_lock(void) {
  pthread_rwlock_wrlock(&lock);
}

void gpusim_memory_unlock(void) {
  pthread_rwlock_unlock(&lock);
}

void gpusim_memory_changed(void) {
  /* release: whoever sees the new number and then asks under the lock sees the change */
  atomic_fetch_add_explicit(&generation, 1, memory_order_release);
}

uint64_t gpusim_memory_generation(void) {
  return atomic_load_explicit(&generation, memory_order_acquire);
}

size_t gpusim_round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/* ---- the region ---- */

void gpusim_region_start(void) {
  for (region_bytes = REGION_LIMIT; region_bytes >= (size_t)1 << 32; region_bytes /= 2) {
    void *at =
        mmap(NULL, 2 * region_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at != MAP_FAILED) {
      region_low = (uintptr_t)at;
      next_address = gpusim_round_up(region_low, (size_t)2 << 20);
      return;
    }
  }
  fprintf(stderr,
          "gpusim: no room for device addresses; raise the address space limit (ulimit -v)\n");
  abort();
}

bool gpusim_region_contains(uintptr_t address) {
  return address - region_low < region_bytes;
}

uint8_t *gpusim_backing(uintptr_t address) {
  return (uint8_t *)(gpusim_region_contains(address) ? address + region_bytes : address);
}

bool gpusim_close_pages(void *at, size_t bytes) {
  if (mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) !=
      MAP_FAILED)
    return true;
  gpusim_trace(0, "%zu bytes could not be closed: with many pieces, raise vm.max_map_count", bytes);
  return false;
}

GPUSIM_EXPORT void *gpusim_host_view(void *device_pointer) {
  return gpusim_backing((uintptr_t)device_pointer);
}

/* ---- tables: spans sorted by address, never overlapping ---- */

size_t gpusim_table_position(const struct gpusim_table *table, uintptr_t address) {
  size_t low = 0, high = table->count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (table->items[middle]->low + table->items[middle]->bytes <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

struct gpusim_span *gpusim_table_find(const struct gpusim_table *table, uintptr_t address) {
  size_t i = gpusim_table_position(table, address);
  return i < table->count && table->items[i]->low <= address ? table->items[i] : NULL;
}

bool gpusim_table_overlaps(const struct gpusim_table *table, uintptr_t low, uintptr_t high) {
  size_t i = gpusim_table_position(table, low);
  return i < table->count && table->items[i]->low < high;
}

void gpusim_table_add(struct gpusim_table *table, struct gpusim_span *span) {
  if (table->count == table->capacity) {
    size_t capacity = table->capacity ? 2 * table->capacity : 256;
    struct gpusim_span **items = gpusim_new(capacity * sizeof *items);
    if (table->count > 0)
      memcpy(items, table->items, table->count * sizeof *items);
    free(table->items);
    table->items = items;
    table->capacity = capacity;
  }
  size_t i = gpusim_table_position(table, span->low);
  memmove(table->items + i + 1, table->items + i, (table->count - i) * sizeof *table->items);
  table->items[i] = span;
  table->count++;
}

void gpusim_table_remove(struct gpusim_table *table, struct gpusim_span *span) {
  size_t i = gpusim_table_position(table, span->low);
  table->count--;
  memmove(table->items + i, table->items + i + 1, (table->count - i) * sizeof *table->items);
}

/* ---- addresses ---- */

static void mark_taken(uintptr_t low, size_t bytes) {
  struct gpusim_span *span = gpusim_new(sizeof *span);
  *span = (struct gpusim_span){low, bytes};
  gpusim_table_add(&taken, span);
}

/* The first hole at or above `from`, with a gap on both sides; 0 when the region ends before. */
static uintptr_t find_hole(uintptr_t from, size_t bytes, size_t alignment) {
  uintptr_t at = gpusim_round_up(from, alignment);
  for (size_t i = gpusim_table_position(&taken, at); i < taken.count; i++) {
    if (taken.items[i]->low >= at + bytes + GAP)
      break;
    at = gpusim_round_up(taken.items[i]->low + taken.items[i]->bytes + GAP, alignment);
  }
  return at + bytes + GAP <= region_low + region_bytes ? at : 0;
}

uintptr_t gpusim_address_take(size_t bytes, size_t alignment, uintptr_t hint) {
  if (bytes > region_bytes)
    return 0;
  uintptr_t at = 0;
  /* a hint may lie right beside another reservation, as it may with a driver */
  if (hint != 0 && hint % alignment == 0 && gpusim_region_contains(hint) &&
      hint + bytes <= region_low + region_bytes &&
      !gpusim_table_overlaps(&taken, hint, hint + bytes))
    at = hint;
  if (at == 0)
    at = find_hole(next_address, bytes, alignment);
  if (at == 0)
    at = find_hole(region_low + GAP, bytes, alignment);
  if (at == 0)
    return 0;
  if (at != hint)
    next_address = at + bytes + GAP;
  mark_taken(at, bytes);
  return at;
}

struct gpusim_span *gpusim_address_taken(uintptr_t address) {
  return gpusim_table_find(&taken, address);
}

void gpusim_address_give(uintptr_t low) {
  struct gpusim_span *span = gpusim_table_find(&taken, low);
  gpusim_table_remove(&taken, span);
  free(span);
}

/* ---- accounting ---- */

bool gpusim_charge(int device, size_t bytes) {
  if (bytes > gpusim_settings.memory - used[device])
    return false;
  used[device] += bytes;
  size_t all = 0;
  for (int i = 0; i < gpusim_settings.devices; i++)
    all += used[i];
  gpusim_count_peak(GPUSIM_COUNT_device_bytes_peak, all);
  return true;
}

void gpusim_discharge(int device, size_t bytes) {
  used[device] -= bytes;
}

size_t gpusim_used(int device) {
  return used[device];
}

/* ---- allocations ---- */

static bool charged(enum gpusim_block_kind kind) {
  return kind == BLOCK_DEVICE || kind == BLOCK_MANAGED;
}

/* Pages for a block, open at its backing address; 0 when the machine has none. */
static uintptr_t open_pages(enum gpusim_block_kind kind, size_t bytes) {
  uintptr_t address = 0;
  void *want = NULL;
  int fixed = 0;
  if (kind == BLOCK_DEVICE) {
    address = gpusim_address_take(bytes, bytes >= (size_t)1 << 20 ? (size_t)2 << 20 : GAP, 0);
    if (address == 0)
      return 0;
    want = gpusim_backing(address);
    fixed = MAP_FIXED;
  }
  void *at = mmap(want, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
  if (at == MAP_FAILED) {
    if (address != 0)
      gpusim_address_give(address);
    return 0;
  }
  madvise(at, bytes, MADV_DONTFORK); /* the driver's mappings aren't a child's */
  if (gpusim_settings.poison)
    memset(at, GPUSIM_POISON_BYTE, bytes);
  return address != 0 ? address : (uintptr_t)at;
}

CUresult gpusim_allocate(CUcontext context, enum gpusim_block_kind kind, size_t bytes,
                         unsigned flags, CUmemoryPool pool, uintptr_t *address) {
  if (bytes == 0 || address == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (bytes > SIZE_MAX / 2)
    return CUDA_ERROR_OUT_OF_MEMORY;
  size_t pages = gpusim_round_up(bytes, PAGE);
  gpusim_memory_lock();
  if (!context->alive) { /* else it ends later, and frees this, too */
    gpusim_memory_unlock();
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  if (charged(kind) && !gpusim_charge(context->device, pages)) {
    gpusim_memory_unlock();
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  uintptr_t at = open_pages(kind, pages);
  if (at == 0) {
    if (charged(kind))
      gpusim_discharge(context->device, pages);
    gpusim_memory_unlock();
    gpusim_trace(1, "the machine has no memory for %zu bytes", bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  struct gpusim_block *block = gpusim_new(sizeof *block);
  block->span = (struct gpusim_span){at, bytes};
  block->kind = kind;
  block->device = context->device;
  block->context = context;
  block->id = next_block_id++;
  block->mapped_bytes = pages;
  block->flags = flags;
  block->pool = pool;
  if (pool != NULL)
    gpusim_pool_taken(pool, pages);
  gpusim_table_add(&gpusim_blocks, &block->span);
  gpusim_memory_changed();
  gpusim_memory_unlock();
  *address = at;
  return CUDA_SUCCESS;
}

/* Memory lock held. */
static void free_block(struct gpusim_block *block) {
  gpusim_table_remove(&gpusim_blocks, &block->span);
  if (block->kind == BLOCK_DEVICE) {
    gpusim_close_pages(gpusim_backing(block->span.low), block->mapped_bytes);
    gpusim_address_give(block->span.low);
  } else if (block->kind != BLOCK_REGISTERED) {
    munmap((void *)block->span.low, block->mapped_bytes);
  }
  if (charged(block->kind))
    gpusim_discharge(block->device, block->mapped_bytes);
  if (block->pool != NULL)
    gpusim_pool_returned(block->pool, block->mapped_bytes);
  free(block);
  gpusim_memory_changed();
}

CUresult gpusim_free(uintptr_t address, unsigned kinds) {
  gpusim_memory_lock();
  struct gpusim_block *block = (struct gpusim_block *)gpusim_table_find(&gpusim_blocks, address);
  bool right = block != NULL && block->span.low == address && (kinds >> block->kind & 1) != 0;
  if (right)
    free_block(block);
  gpusim_memory_unlock();
  return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void gpusim_free_context(CUcontext context) {
  gpusim_memory_lock();
  for (size_t i = gpusim_blocks.count; i-- > 0;) {
    struct gpusim_block *block = (struct gpusim_block *)gpusim_blocks.items[i];
    if (block->context == context && block->kind != BLOCK_STATIC)
      free_block(block);
  }
  gpusim_memory_unlock();
}

CUresult gpusim_register(CUcontext context, uintptr_t address, size_t bytes, unsigned flags) {
  gpusim_memory_lock();
  bool overlaps = gpusim_table_overlaps(&gpusim_blocks, address, address + bytes);
  bool alive = context->alive;
  if (alive && !overlaps) {
    struct gpusim_block *block = gpusim_new(sizeof *block);
    block->span = (struct gpusim_span){address, bytes};
    block->kind = BLOCK_REGISTERED;
    block->device = context->device;
    block->context = context;
    block->id = next_block_id++;
    block->flags = flags;
    gpusim_table_add(&gpusim_blocks, &block->span);
    gpusim_memory_changed();
  }
  gpusim_memory_unlock();
  if (!alive)
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return overlaps ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : CUDA_SUCCESS;
}

uint64_t gpusim_block_number(void) {
  return next_block_id++;
}

/* ---- who may touch what; memory lock held, shared is enough ---- */

bool gpusim_block_on_host(const struct gpusim_block *block) {
  return block->kind == BLOCK_PINNED || block->kind == BLOCK_REGISTERED ||
         (block->kind == BLOCK_MAPPING && block->handle->on_host);
}

bool gpusim_block_allows(const struct gpusim_block *block, int device, bool write) {
  switch (block->kind) {
  case BLOCK_MAPPING:
    return ((write ? block->writable : block->readable) >> device & 1) != 0;
  case BLOCK_DEVICE:
    return block->device == device || gpusim_peer_enabled(device, block->device) ||
           gpusim_pool_allows(block->pool, device);
  default:
    return true;
  }
}

bool gpusim_memory_bounds(int device, uintptr_t address, uintptr_t *low, uintptr_t *high,
                          bool *writable) {
  gpusim_memory_lock_shared();
  struct gpusim_block *block = (struct gpusim_block *)gpusim_table_find(&gpusim_blocks, address);
  bool allowed = block != NULL && gpusim_block_allows(block, device, false);
  if (allowed) {
    *low = block->span.low;
    *high = block->span.low + block->span.bytes;
    *writable = gpusim_block_allows(block, device, true);
  }
  gpusim_memory_unlock();
  return allowed;
}

bool gpusim_memory_on_host(uintptr_t address) {
  gpusim_memory_lock_shared();
  struct gpusim_block *block = (struct gpusim_block *)gpusim_table_find(&gpusim_blocks, address);
  bool on_host = block != NULL && gpusim_block_on_host(block);
  gpusim_memory_unlock();
  return on_host;
}

CUresult gpusim_place_of(int device, uintptr_t low, size_t bytes, bool write,
                         enum gpusim_place *place) {
  CUresult result = CUDA_SUCCESS;
  uintptr_t at = low, high = low + bytes;
  bool on_host = false, on_device = false;
  *place = PLACE_DEVICE;
  if (high < low)
    return CUDA_ERROR_INVALID_VALUE;
  gpusim_memory_lock_shared();
  if (!gpusim_region_contains(low) && !gpusim_table_overlaps(&gpusim_blocks, low, high)) {
    *place = PLACE_PAGEABLE;
    at = high;
  }
  /* Only mappings may be crossed: a copy over the end of an allocation is an error even if another
   * one follows. */
  for (bool first = true; at < high && result == CUDA_SUCCESS; first = false) {
    struct gpusim_block *block = (struct gpusim_block *)gpusim_table_find(&gpusim_blocks, at);
    bool copies_allow =
        block != NULL && (block->kind == BLOCK_DEVICE || gpusim_block_allows(block, device, write));
    if (!copies_allow || (!first && block->kind != BLOCK_MAPPING)) {
      result = CUDA_ERROR_INVALID_VALUE;
      break;
    }
    if (gpusim_block_on_host(block))
      *place = PLACE_HOST;
    on_host = on_host || gpusim_block_on_host(block);
    on_device = on_device || !gpusim_block_on_host(block);
    at = block->span.low + block->span.bytes;
  }
  if (on_host && on_device && !gpusim_copies_cross_memories())
    result = CUDA_ERROR_INVALID_VALUE;
  gpusim_memory_unlock();
  return result;
}
