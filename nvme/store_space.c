/* Where units lie: the slots of each directory's file, the space they take, and the units' numbers. The rules are in
   store_internal.h. */
#define _GNU_SOURCE
#include "store_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A file system that refused is asked again when so much more is free. */
static const uint64_t AGAIN_BYTES = 64 << 20;

struct store_unit *store_unit(struct store *store, uint32_t unit) {
  pthread_mutex_lock(&store->table);
  struct store_unit *found = unit < store->unit_count ? store->units[unit] : NULL;
  pthread_mutex_unlock(&store->table);
  return found;
}

static bool failed(const struct store_directory *directory) {
  return atomic_load_explicit(&directory->failed, memory_order_relaxed);
}

/* Slots that may be added to the file. With `space` held. */
static uint64_t growth(const struct store *store, const struct store_directory *directory) {
  const uint64_t taken = directory->slots * store->stripe_bytes;
  if (failed(directory) || taken >= directory->share_bytes)
    return 0;
  const uint64_t free_bytes = drive_file_free_bytes(directory->file.file);
  if (free_bytes <= directory->untouched_bytes ||
      (directory->refused && free_bytes < directory->refused_free_bytes + AGAIN_BYTES))
    return 0;
  const uint64_t free_part = (free_bytes - directory->untouched_bytes) / directory->sharing;
  const uint64_t share = directory->share_bytes - taken;
  const uint64_t slots = (free_part < share ? free_part : share) / store->stripe_bytes;
  const uint64_t most = UINT32_MAX - directory->slots; /* of a slot's number */
  return slots < most ? slots : most;
}

/* Slots that may be added to all files within the limit. With `space` held. */
static uint64_t within_limit(const struct store *store) {
  if (!store->config.limit_bytes)
    return UINT64_MAX;
  const uint64_t most = store->config.limit_bytes / store->stripe_bytes;
  uint64_t taken = 0;
  for (unsigned i = 0; i < store->count; i++)
    taken += store->directories[i].slots;
  return taken < most ? most - taken : 0;
}

/* Slots of the directory that hold nothing and may be used. With `space` held. */
static uint64_t unused_in(const struct store_directory *directory) {
  return failed(directory) ? 0 : directory->unused_count;
}

uint64_t store_room(struct store *store) {
  uint64_t unused = 0, more = 0;
  pthread_mutex_lock(&store->space);
  for (unsigned i = 0; i < store->count; i++) {
    unused += unused_in(&store->directories[i]);
    more += growth(store, &store->directories[i]);
  }
  const uint64_t limit = within_limit(store);
  pthread_mutex_unlock(&store->space);
  return (unused + (more < limit ? more : limit)) / store->stripes;
}

/* Which directory each stripe goes to: in turn, to those that have room. False when all together have too little. `add` is how
   many slots each must get for it. With `space` held. */
static bool plan(struct store *store, uint8_t *places, uint64_t *add) {
  uint64_t unused[STORE_DIRECTORIES_MOST], more[STORE_DIRECTORIES_MOST];
  uint64_t limit = within_limit(store);
  unsigned next = store->next;
  for (unsigned i = 0; i < store->count; i++) {
    unused[i] = unused_in(&store->directories[i]);
    more[i] = growth(store, &store->directories[i]);
    add[i] = 0;
  }
  for (unsigned stripe = 0; stripe < store->stripes; stripe++) {
    unsigned tries = 0;
    while (tries < store->count && !unused[next] && !(more[next] && limit)) {
      next = (next + 1) % store->count;
      tries++;
    }
    if (tries == store->count)
      return false;
    if (unused[next]) {
      unused[next]--;
    } else {
      more[next]--;
      limit--;
      add[next]++;
    }
    places[stripe] = (uint8_t)next;
    next = (next + 1) % store->count;
  }
  return true;
}

/* 0 or an errno. */
static int take_space(struct store_directory *directory, uint64_t at, uint64_t bytes) {
  if (faults_strike(directory->faults, FAULT_ALLOCATE_ENOSPC))
    return ENOSPC;
  while (fallocate(directory->file.file, 0, (off_t)at, (off_t)bytes))
    if (errno != EINTR)
      return errno;
  return 0;
}

/* Adds slots to a file; they are unused then. 0 or an errno. With `space` held. */
static int grow(struct store *store, struct store_directory *directory, uint64_t slots) {
  const uint64_t end = directory->slots + slots;
  if (end > directory->unused_most) {
    const size_t most = (size_t)(end + end / 2 + 64);
    uint32_t *grown = realloc(directory->unused, most * sizeof *grown);
    if (!grown)
      return ENOMEM;
    directory->unused = grown;
    directory->unused_most = most;
  }
  const uint64_t stripe = store->stripe_bytes;
  const int error = take_space(directory, directory->slots * stripe, slots * stripe);
  if (error)
    return error;
  for (uint64_t slot = end; slot > directory->slots; slot--)
    directory->unused[directory->unused_count++] = (uint32_t)(slot - 1);
  directory->slots = end;
  return 0;
}

/* A number and a place to note what is where. NULL without memory. With `space` held. */
static struct store_unit *number(struct store *store, uint32_t *unit) {
  if (store->number_count) {
    *unit = store->numbers[--store->number_count];
    return store_unit(store, *unit);
  }
  if (store->unit_count == store->unit_most) {
    const uint32_t most = store->unit_most * 2 + 256;
    uint32_t *numbers = realloc(store->numbers, most * sizeof *numbers);
    if (!numbers)
      return NULL;
    store->numbers = numbers;
    struct store_unit **units = malloc(most * sizeof *units);
    if (!units)
      return NULL;
    pthread_mutex_lock(&store->table);
    struct store_unit **before = store->units;
    if (before)
      memcpy(units, before, store->unit_count * sizeof *units);
    store->units = units;
    store->unit_most = most;
    pthread_mutex_unlock(&store->table);
    free(before);
  }
  struct store_unit *made = calloc(1, sizeof *made + store->stripes * sizeof(struct store_stripe));
  if (!made)
    return NULL;
  pthread_mutex_lock(&store->table);
  store->units[store->unit_count] = made;
  *unit = store->unit_count++;
  pthread_mutex_unlock(&store->table);
  return made;
}

/* Makes the slots of one unit unused in the directories that `places` tells. False with a sentence. With `space` held. */
static bool make_room(struct store *store, uint8_t *places, char *why, size_t why_bytes) {
  uint64_t add[STORE_DIRECTORIES_MOST];
  int last = 0;
  const char *where = "";
  /* Each round that does not end has found a directory that takes no more. */
  while (plan(store, places, add)) {
    unsigned i = 0;
    while (i < store->count && (!add[i] || !(last = grow(store, &store->directories[i], add[i]))))
      i++;
    if (i == store->count)
      return true;
    where = store->directories[i].path;
    if (last == ENOMEM)
      break;
    store->directories[i].refused = true;
    store->directories[i].refused_free_bytes =
        drive_file_free_bytes(store->directories[i].file.file);
  }
  unsigned lost = 0;
  uint64_t unused = 0; /* fewer than a unit's */
  for (unsigned i = 0; i < store->count; i++) {
    lost += failed(&store->directories[i]);
    unused += unused_in(&store->directories[i]);
  }
  if (lost == store->count)
    snprintf(why, why_bytes, "OFFLOAD_NVME: the drives of all %u directories failed; name others",
             lost);
  else if (last)
    snprintf(why, why_bytes, "OFFLOAD_NVME: no more space in %.100s: %s; free some, or name more",
             where, strerror(last));
  else if (within_limit(store) < store->stripes - unused)
    snprintf(why, why_bytes, "OFFLOAD_NVME_LIMIT: its %llu bytes hold no more pieces; raise it",
             (unsigned long long)store->config.limit_bytes);
  else
    snprintf(why, why_bytes,
             "OFFLOAD_NVME: this process's share of the free space of %u directories is used; free "
             "some, or name more",
             store->count - lost);
  return false;
}

bool store_allocate(struct store *store, uint32_t *unit, char *why, size_t why_bytes) {
  pthread_mutex_lock(&store->space);
  uint8_t *places = calloc(store->stripes, sizeof *places);
  struct store_unit *made = NULL;
  if (!places)
    snprintf(why, why_bytes, "OFFLOAD_NVME: no memory");
  else if (make_room(store, places, why, why_bytes) && !(made = number(store, unit)))
    snprintf(why, why_bytes, "OFFLOAD_NVME: no memory");
  for (unsigned i = 0; made && i < store->stripes; i++) {
    struct store_directory *directory = &store->directories[places[i]];
    made->stripes[i] = (struct store_stripe){
        .slot = directory->unused[--directory->unused_count],
        .directory = places[i],
    };
    store->next = (places[i] + 1u) % store->count;
  }
  if (made) {
    made->allocated = true;
    made->written = false;
    atomic_fetch_add_explicit(&store->resident_units, 1, memory_order_relaxed);
  }
  pthread_mutex_unlock(&store->space);
  free(places);
  return made != NULL;
}

void store_release(struct store *store, uint32_t unit) {
  pthread_mutex_lock(&store->space);
  struct store_unit *found = store_unit(store, unit);
  if (found && found->allocated) {
    for (unsigned i = store->stripes; i-- > 0;) {
      struct store_directory *directory = &store->directories[found->stripes[i].directory];
      directory->unused[directory->unused_count++] = found->stripes[i].slot;
    }
    store_unkeep(store, found);
    found->allocated = found->written = false;
    store->numbers[store->number_count++] = unit;
    atomic_fetch_sub_explicit(&store->resident_units, 1, memory_order_relaxed);
  }
  pthread_mutex_unlock(&store->space);
}

void store_space_close(struct store *store) {
  for (uint32_t unit = 0; unit < store->unit_count; unit++) {
    store_unkeep(store, store->units[unit]);
    free(store->units[unit]);
  }
  free(store->units);
  free(store->numbers);
  for (unsigned i = 0; i < store->count; i++)
    free(store->directories[i].unused);
}
