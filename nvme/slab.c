/* Memory that a ring's transfers go to and from. Anyone may call; no state.

   A drive is told of a transfer as runs of pages that lie side by side, and takes a bounded number of them at once: 1 MiB of scattered
   4 KiB pages is 256 runs, more than many queues take, so that it is cut in two, and a virtual drive pays for each. Huge pages make it
   one run. */
#define _GNU_SOURCE
#include "engine.h"
#include <sys/mman.h>

static const size_t HUGE_PAGE = (size_t)1 << 21;

static size_t whole(size_t bytes) {
  return (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
}

void *engine_slab_map(size_t bytes) {
  if (!bytes || bytes > SIZE_MAX / 2)
    return NULL;
  const size_t kept = whole(bytes), asked = kept + HUGE_PAGE;
  char *const raw = mmap(NULL, asked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED)
    return NULL;
  const size_t before = (HUGE_PAGE - (uintptr_t)raw % HUGE_PAGE) % HUGE_PAGE;
  char *const slab = raw + before;
  if (before)
    munmap(raw, before);
  munmap(slab + kept, HUGE_PAGE - before);
  /* A kernel without huge pages refuses, and is only slower. A child would get copies of pages that the ring holds. */
  madvise(slab, kept, MADV_HUGEPAGE);
  if (!madvise(slab, kept, MADV_DONTFORK))
    return slab;
  munmap(slab, kept);
  return NULL;
}

void engine_slab_unmap(void *slab, size_t bytes) {
  if (slab)
    munmap(slab, whole(bytes));
}
