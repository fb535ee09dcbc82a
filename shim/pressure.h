/* A device that ran out of memory. The first failing request of a size on a thread is answered out
   of memory: frameworks then release what they cache and ask again. The second is helped. */
#ifndef OFFLOAD_PRESSURE_H
#define OFFLOAD_PRESSURE_H
#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* `first` is what range_create(DEVICE) said; anything but CUDA_ERROR_OUT_OF_MEMORY comes back at
   once. CUDA_SUCCESS with a range or (only rounding up to pieces didn't fit) native memory, or CUDA_ERROR_OUT_OF_MEMORY. Not under the enqueue lock. */
CUresult pressure_allocate(CUdeviceptr *pointer, size_t bytes, CUresult first);

/* A device request of this size on this thread succeeded: a later failing one is a first again.
 * range_create tells. */
void pressure_satisfied(size_t bytes);

/* An allocation of at least OFFLOAD_MIN_ALLOCATION that stays native began or ended its life: its
   size may be repeated by state. `movable`: it would have become a range but for OFFLOAD_MODE=observe. Freeing an unknown pointer is nothing. */
void pressure_native_allocated(CUdeviceptr pointer, size_t bytes, bool movable);
void pressure_native_freed(CUdeviceptr pointer);

/* That which holds an address; false when none does. */
struct native_allocation {
  CUdeviceptr pointer;
  size_t bytes;
  CUdevice device;
  bool movable;
};
bool pressure_native_find(CUdeviceptr address, struct native_allocation *);

/* The program's memory on a device, ranges and natives of at least OFFLOAD_MIN_ALLOCATION: `bytes` more, or less. Now; at its most since
   pressure_most_again. */
void pressure_count(CUdevice, int64_t bytes);
size_t pressure_live_bytes(CUdevice);
size_t pressure_most_bytes(CUdevice);
void pressure_most_again(CUdevice);
#endif
