/* State that stays because of where it lies (elsewhere.h). By what call memory that isn't ours was
   made is asked of the driver once per kind: memory of cuMemCreate has a handle to retain, memory of
   cuMemAllocAsync has a pool, managed memory says so; what is none of these came by cuMemAlloc, and
   other reasons say why it stayed native. */
#include "elsewhere.h"
#include "../policy/report.h"
#include "driver.h"
#include "range.h"

enum kind { KIND_PLAIN, KIND_VIRTUAL, KIND_POOL, KIND_MANAGED, KINDS };

static enum kind kind_of(uintptr_t address) {
  CUmemGenericAllocationHandle handle;
  CUmemoryPool pool = NULL;
  /* NOLINTNEXTLINE(performance-no-int-to-ptr): an address is what the driver takes */
  if (driver.cuMemRetainAllocationHandle &&
      driver.cuMemRetainAllocationHandle(&handle, (void *)address) == CUDA_SUCCESS) {
    (void)driver.cuMemRelease(handle);
    return KIND_VIRTUAL;
  }
  bool managed = false;
  if (driver.cuPointerGetAttribute &&
      driver.cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) ==
          CUDA_SUCCESS &&
      managed)
    return KIND_MANAGED;
  if (driver.cuPointerGetAttribute &&
      driver.cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) ==
          CUDA_SUCCESS &&
      pool)
    return KIND_POOL;
  return KIND_PLAIN;
}

void elsewhere_note(const struct moment *moments, size_t count) {
  static bool said;
  size_t bytes[KINDS] = {0}, all = 0;
  char size[REPORT_SIZE_BYTES];
  for (size_t i = 0; i < count; i++)
    if (!moments[i].range && !range_find(moments[i].address))
      all += moments[i].bytes;
  atomic_store_explicit(&report.totals.native_state_bytes, all, memory_order_relaxed);
  if (said || !all)
    return;
  said = true;
  for (size_t i = 0; i < count; i++)
    if (!moments[i].range && !range_find(moments[i].address))
      bytes[kind_of(moments[i].address)] += moments[i].bytes;
  if (bytes[KIND_PLAIN] != all)
    atomic_store_explicit(&report.state_elsewhere, true, memory_order_relaxed);
  if (bytes[KIND_MANAGED])
    report_reason(
        "%s of optimizer state lies in managed memory, which the driver moves itself, and "
        "is left to it",
        report_size_text(bytes[KIND_MANAGED], size));
  if (bytes[KIND_VIRTUAL])
    report_reason("%s of optimizer state lies in virtual memory that the program maps itself "
                  "and stays there (PyTorch: take expandable_segments:True out of "
                  "PYTORCH_CUDA_ALLOC_CONF)",
                  report_size_text(bytes[KIND_VIRTUAL], size));
  if (bytes[KIND_POOL])
    report_reason("%s of optimizer state lies in a memory pool (cudaMallocAsync) and stays "
                  "there (PyTorch: take backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF)",
                  report_size_text(bytes[KIND_POOL], size));
}

void elsewhere_note_held(struct range *const *ranges, size_t count) {
  static bool said[2];
  size_t bytes[2] = {0};
  char size[REPORT_SIZE_BYTES];
  for (size_t i = 0; i < count; i++)
    for (uint32_t k = 0; k < ranges[i]->piece_count; k++) {
      const struct piece *piece = &ranges[i]->pieces[k];
      if (!range_movable(ranges[i]) && piece->tier == PIECE_DEVICE &&
          piece->streak >= piece->streak_needed)
        bytes[atomic_load(&ranges[i]->graph_holds) != 0] += piece->named_bytes;
    }
  if (bytes[0] && !said[0])
    report_reason("%s of state (and its partners) stays on the device: its memory was "
                  "registered, exported, opened to a peer, or is used by too many streams",
                  report_size_text(bytes[0], size));
  if (bytes[1] && !said[1])
    report_reason("%s of state (and its partners) stays on the device as long as CUDA graphs name "
                  "its memory; it moves when those graphs are destroyed",
                  report_size_text(bytes[1], size));
  said[0] |= bytes[0] != 0;
  said[1] |= bytes[1] != 0;
}

/* Told again when it has become twice as much: a part of a model that joined later. */
void elsewhere_note_shared(struct range *const *ranges, size_t count) {
  static size_t told;
  size_t shared = 0, all = 0, piece_bytes = 0;
  for (size_t i = 0; i < count; i++) {
    for (uint32_t k = 0; k < ranges[i]->piece_count; k++) {
      const struct piece *piece = &ranges[i]->pieces[k];
      const bool whole = piece->covered_bytes == census_whole(ranges[i], k);
      all += piece->named_bytes;
      if (!range_movable(ranges[i]) || piece->tier != PIECE_DEVICE || !piece->named_bytes)
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
  char sizes[3][REPORT_SIZE_BYTES];
  report_reason("%s of %s of optimizer state stays on the device: it shares pieces of %s "
                "with other memory, and pieces move whole; larger tensors fill pieces of their own",
                report_size_text(shared, sizes[0]), report_size_text(all, sizes[1]),
                report_size_text(piece_bytes, sizes[2]));
}
