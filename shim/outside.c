/* State that stays because of where it lies (outside.h): in pieces that are not all state; outside of ranges, in pools of cudaMallocAsync, and virtual memory that the program maps itself, as
   PyTorch's expandable segments are. The driver tells them apart. */
#include "outside.h"
#include "../policy/report.h"
#include "driver.h"
#include "range.h"

static bool in_pool(uintptr_t address) {
  CUmemoryPool pool = NULL;
  return driver.cuPointerGetAttribute &&
         !driver.cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) && pool;
}

static bool in_mapping(uintptr_t address) {
  CUmemGenericAllocationHandle handle;
  if (!driver.cuMemRetainAllocationHandle || !driver.cuMemRelease ||
      driver.cuMemRetainAllocationHandle(&handle, (void *)address))
    return false;
  (void)driver.cuMemRelease(handle);
  return true;
}

void outside_tell(const struct moment *moments, size_t count) {
  static bool said;
  size_t pooled = 0, mapped = 0;
  for (size_t i = 0; i < count && !said; i++) {
    if (moments[i].range || !moments[i].bytes)
      continue;
    if (in_pool(moments[i].address))
      pooled += moments[i].bytes;
    else if (in_mapping(moments[i].address))
      mapped += moments[i].bytes;
  }
  if (pooled)
    report_notice(
        "%zu bytes of optimizer state lie in a pool of cudaMallocAsync and stay on the device: "
        "take backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF",
        pooled);
  if (mapped)
    report_notice(
        "%zu bytes of optimizer state lie in virtual memory that the program maps itself and stay "
        "on the device: take expandable_segments:True out of PYTORCH_CUDA_ALLOC_CONF",
        mapped);
  said |= pooled || mapped;
}

/* Told again when it has become twice as much: a part of a model that joined later. */
void outside_tell_shared(struct range *const *ranges, size_t count) {
  static size_t told;
  size_t shared = 0, all = 0, piece_bytes = 0;
  for (size_t i = 0; i < count; i++) {
    const bool movable =
        !atomic_load(&ranges[i]->immovable) && !atomic_load(&ranges[i]->streams_lost);
    for (uint32_t k = 0; k < ranges[i]->piece_count; k++) {
      const struct piece *piece = &ranges[i]->pieces[k];
      const bool whole = piece->covered_bytes == census_whole(ranges[i], k);
      all += piece->named_bytes;
      if (!movable || piece->tier != PIECE_DEVICE || !piece->named_bytes)
        continue;
      if (whole && piece->streak < piece->streak_needed)
        return; /* it is about to move */
      /* One that is whole stays for its partner's sake. */
      shared += piece->named_bytes;
      piece_bytes = ranges[i]->piece_bytes;
    }
  }
  if (!shared || shared < all / 8 || shared / 2 < told)
    return;
  told = shared;
  report_reason(
      "%zu of %zu bytes of optimizer state stay on the device: they share pieces of %zu bytes "
      "with other memory; state of tensors of several pieces moves",
      shared, all, piece_bytes);
}
