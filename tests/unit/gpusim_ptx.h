/* What the interpreter needs of the rest of the simulator, small enough to be seen through:
   device memory is a list of blocks with addresses that mean nothing to the CPU. Included once
   by each test of the interpreter. */
#ifndef GPUSIM_PTX_TEST_H
#define GPUSIM_PTX_TEST_H
#include "tests/gpusim/internal.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct gpusim_settings gpusim_settings = {
#define SWITCH(field, NAME, type, initial, help) .field = initial,
#include "tests/gpusim/switches.def"
#undef SWITCH
};

struct block {
  uintptr_t address;
  size_t bytes;
  uint8_t *backing;
  bool writable;
};
static struct block blocks[256];
static int block_count;
static uint64_t generation = 1;
static uintptr_t next_address = 0x10000000000u;
static char last_trace[1024];

static uintptr_t device_new(size_t bytes) {
  struct block *b = &blocks[block_count++];
  if (block_count > 256)
    abort();
  *b = (struct block){next_address, bytes, calloc(1, bytes ? bytes : 1), true};
  next_address += (bytes + 0x10000) & ~(uintptr_t)0xfff;
  generation++;
  return b->address;
}
static void device_reset(void) {
  while (block_count)
    free(blocks[--block_count].backing);
  generation++;
}
static struct block *block_of(uintptr_t address) {
  for (int i = 0; i < block_count; i++)
    if (address - blocks[i].address < blocks[i].bytes)
      return &blocks[i];
  return NULL;
}
uint8_t *gpusim_backing(uintptr_t address) {
  struct block *b = block_of(address);
  return b ? b->backing + (address - b->address) : NULL;
}
bool gpusim_memory_bounds(int device, uintptr_t address, uintptr_t *low, uintptr_t *high,
                          bool *writable) {
  struct block *b = block_of(address);
  if (!b || device)
    return false;
  *low = b->address;
  *high = b->address + b->bytes;
  *writable = b->writable;
  return true;
}
bool gpusim_memory_on_host(uintptr_t address) {
  (void)address;
  return false;
}
/* Unmaps the block at `unmapped` when the generation has been asked for so often. */
static int unmap_after;
static uintptr_t unmapped;
uint64_t gpusim_memory_generation(void) {
  if (unmap_after && !--unmap_after) {
    block_of(unmapped)->address = 1;
    generation++;
  }
  return generation;
}
uintptr_t gpusim_memory_static(size_t bytes, size_t alignment) {
  (void)alignment; /* addresses are multiples of 4096 */
  return device_new(bytes);
}
void gpusim_memory_static_free(uintptr_t address) {
  (void)address; /* device_reset */
}
int gpusim_ptx_acceptable_version(const char *ptx) {
  (void)ptx;
  return 0;
}

static uint64_t counters[GPUSIM_COUNTERS];
void gpusim_count(enum gpusim_counter counter, uint64_t add) {
  counters[counter] += add;
}
void gpusim_trace(int level, const char *format, ...) {
  va_list args;
  if (level > gpusim_settings.trace && level > 0)
    return;
  va_start(args, format);
  vsnprintf(last_trace, sizeof last_trace, format, args);
  va_end(args);
}
static void *host(uintptr_t address) {
  return gpusim_backing(address);
}
static char launch_error[1024];
/* The cache of native code beside the test programs, not in anyone's home. */
__attribute__((unused)) static void cache_here(void) {
  char path[4096];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  path[length > 0 ? length : 0] = 0;
  char *name = strrchr(path, '/');
  if (!name || (size_t)(name - path) + 16 > sizeof path)
    abort();
  strcpy(name, "/native_cache");
  setenv("XDG_CACHE_HOME", path, 1);
}
/* With both_engines every launch is made twice, on the same memory: interpreted, then native. They
   must agree in memory, result and message. */
static bool both_engines;
static int disagreements;
/* All device memory, one block after another; to be freed. */
static uint8_t *memory_copy(void) {
  size_t bytes = 1;
  for (int k = 0; k < block_count; k++)
    bytes += blocks[k].bytes;
  uint8_t *copy = calloc(1, bytes), *to = copy;
  for (int k = 0; copy && k < block_count; to += blocks[k++].bytes)
    if (blocks[k].backing)
      memcpy(to, blocks[k].backing, blocks[k].bytes);
  return copy;
}
/* Whether memory is as in the copy; with `restore` it is so afterwards. */
static bool memory_is(const uint8_t *copy, bool restore) {
  bool same = copy != NULL;
  for (int k = 0; copy && k < block_count; copy += blocks[k++].bytes) {
    if (!blocks[k].backing)
      continue;
    same &= !memcmp(blocks[k].backing, copy, blocks[k].bytes);
    if (restore)
      memcpy(blocks[k].backing, copy, blocks[k].bytes);
  }
  return same;
}
static int run_in_both(struct gpusim_kernel *kernel, const uint8_t *packed,
                       const struct gpusim_launch *shape) {
  char message[sizeof launch_error];
  uint8_t *before = memory_copy();
  gpusim_settings.engine = "interpreter";
  int result = gpusim_kernel_run(kernel, packed, shape, launch_error, sizeof launch_error);
  memcpy(message, launch_error, sizeof message);
  launch_error[0] = 0;
  uint8_t *after = memory_copy();
  memory_is(before, true);
  gpusim_settings.engine = "native";
  bool same = gpusim_kernel_run(kernel, packed, shape, launch_error, sizeof launch_error) == result;
  same &= !strcmp(message, launch_error) && memory_is(after, false);
  free(before);
  free(after);
  if (!same)
    printf("# %s: interpreted %d '%s', native '%s', or other memory\n", kernel->name, result,
           message, launch_error);
  disagreements += !same;
  return result;
}
/* Parameters are given as pointers, as in cuLaunchKernel. */
static int launch(struct gpusim_kernel *kernel, uint32_t grid, uint32_t threads, int count,
                  void **arguments) {
  if (!kernel || kernel->parameter_count != count)
    return -1;
  uint8_t *packed = calloc(1, kernel->parameter_bytes + 1u);
  for (int i = 0; i < count; i++)
    memcpy(packed + kernel->parameters[i].offset, arguments[i], kernel->parameters[i].bytes);
  struct gpusim_launch shape = {{grid, 1, 1}, {threads, 1, 1}, 0, 0, kernel->name, NULL};
  launch_error[0] = 0;
  int result = both_engines
                   ? run_in_both(kernel, packed, &shape)
                   : gpusim_kernel_run(kernel, packed, &shape, launch_error, sizeof launch_error);
  free(packed);
  return result;
}
#endif
