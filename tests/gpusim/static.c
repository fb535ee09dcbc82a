/* Memory for __device__ variables. Libraries bring thousands of small ones, so they share chunks;
   each is still a block of its own, so that a kernel that runs off its end is caught. One copy
   serves all devices, unlike on real ones. */
#include "tests/gpusim/driver.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { CHUNK_BYTES = 1 << 20, VARIABLE_ALIGNMENT = 256 };
struct chunk {
  struct chunk *next;
  uintptr_t low;
  size_t bytes, filled;
  int variables;
};
static struct chunk *chunks; /* memory lock */

static struct chunk *open_chunk(size_t bytes) {
  size_t size = gpusim_round_up(bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES, 4096);
  uintptr_t low = gpusim_address_take(size, (size_t)2 << 20, 0);
  if (low == 0)
    return NULL;
  if (mmap(gpusim_backing(low), size, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    gpusim_address_give(low);
    return NULL;
  }
  struct chunk *chunk = gpusim_new(sizeof *chunk);
  *chunk = (struct chunk){chunks, low, size, 0, 0};
  chunks = chunk;
  return chunk;
}

uintptr_t gpusim_memory_static(size_t bytes, size_t alignment) {
  if (alignment < VARIABLE_ALIGNMENT)
    alignment = VARIABLE_ALIGNMENT;
  uintptr_t address = 0;
  gpusim_memory_lock();
  struct chunk *chunk = chunks;
  if (chunk == NULL || gpusim_round_up(chunk->filled, alignment) + bytes > chunk->bytes)
    chunk = open_chunk(bytes);
  if (chunk != NULL) {
    address = chunk->low + gpusim_round_up(chunk->filled, alignment);
    /* at least one byte beyond, so that the end of one variable is not the start of the next */
    chunk->filled = address - chunk->low + bytes + 1;
    chunk->variables++;
    struct gpusim_block *block = gpusim_new(sizeof *block);
    block->span = (struct gpusim_span){address, bytes ? bytes : 1};
    block->kind = BLOCK_STATIC;
    block->context = gpusim_primary(0);
    block->id = gpusim_block_number();
    gpusim_table_add(&gpusim_blocks, &block->span);
    gpusim_memory_changed();
  }
  gpusim_memory_unlock();
  return address;
}

void gpusim_memory_static_free(uintptr_t address) {
  gpusim_memory_lock();
  struct gpusim_block *block = (struct gpusim_block *)gpusim_table_find(&gpusim_blocks, address);
  struct chunk **link = &chunks;
  while (*link != NULL && address - (*link)->low >= (*link)->bytes)
    link = &(*link)->next;
  if (block != NULL && block->kind == BLOCK_STATIC && *link != NULL) {
    gpusim_table_remove(&gpusim_blocks, &block->span);
    free(block);
    gpusim_memory_changed();
    struct chunk *chunk = *link;
    if (--chunk->variables == 0) {
      *link = chunk->next;
      gpusim_close_pages(gpusim_backing(chunk->low), chunk->bytes);
      gpusim_address_give(chunk->low);
      free(chunk);
    }
  }
  gpusim_memory_unlock();
}
