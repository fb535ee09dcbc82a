/* Units whose drive failed, in anonymous memory of ours: the only copy of what they hold. Called by the store's other files, on
   any thread, by whoever owns the unit. */
#define _GNU_SOURCE
#include "store_internal.h"
#include <string.h>
#include <sys/mman.h>

bool store_keep(struct store *store, struct store_unit *unit, const void *bytes) {
  const size_t unit_bytes = store->config.unit_bytes;
  if (!unit->kept) {
    void *kept = mmap(NULL, unit_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (kept == MAP_FAILED)
      return false;
    unit->kept = kept;
    atomic_fetch_add_explicit(&store->kept_bytes, unit_bytes, memory_order_relaxed);
  }
  memcpy(unit->kept, bytes, unit_bytes);
  unit->written = true;
  return true;
}

void store_unkeep(struct store *store, struct store_unit *unit) {
  if (!unit->kept)
    return;
  munmap(unit->kept, store->config.unit_bytes);
  unit->kept = NULL;
  atomic_fetch_sub_explicit(&store->kept_bytes, store->config.unit_bytes, memory_order_relaxed);
}
