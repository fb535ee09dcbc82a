/* The table of ranges (range.h): finding, listing, what is watched. Making and freeing them is
   range_make.c's, moving pieces move.c's, knowing what is state state.c's.

   Ranges that are freed while a capture is open wait in a list of their own: giving memory back
   synchronises, which would invalidate the capture. They leave the table at once, so no address in
   them is found any more. */
#include "range.h"
#include "../policy/report.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Protects the table and the ranges' `known`. */
static pthread_rwlock_t table_lock = PTHREAD_RWLOCK_INITIALIZER;
static struct range **table; /* sorted by base */
static size_t table_count, table_room;
static struct range **waiting; /* freed under a capture */
static size_t waiting_count, waiting_room;

/* Addresses outside [low, high) are in no range; read without the lock. A pointer's owner got it
 * after both were stored. */
static _Atomic uintptr_t low = UINTPTR_MAX, high = 0;
static _Atomic uintptr_t watched_low = UINTPTR_MAX, watched_high = 0;
static _Atomic uint64_t host_pieces, drive_pieces;

/* ---- the table ---- */

/* Number of ranges with a base at or below the address. */
static size_t position(uintptr_t address) {
  size_t from = 0, to = table_count;
  while (from < to) {
    size_t middle = from + (to - from) / 2;
    if (table[middle]->base <= address)
      from = middle + 1;
    else
      to = middle;
  }
  return from;
}

void range_table_hold(void) {
  pthread_rwlock_rdlock(&table_lock);
}

void range_table_release(void) {
  pthread_rwlock_unlock(&table_lock);
}

struct range *range_held(uintptr_t address) {
  size_t i = position(address);
  return i && address - table[i - 1]->base < table[i - 1]->bytes ? table[i - 1] : NULL;
}

struct range *range_nth(size_t i) {
  return i < table_count ? table[i] : NULL;
}

struct range *range_find(uintptr_t address) {
  if (address < atomic_load_explicit(&low, memory_order_relaxed) ||
      address >= atomic_load_explicit(&high, memory_order_relaxed))
    return NULL;
  range_table_hold();
  struct range *range = range_held(address);
  range_table_release();
  return range;
}

void range_bounds(uintptr_t *from, uintptr_t *to) {
  *from = atomic_load_explicit(&low, memory_order_relaxed);
  *to = atomic_load_explicit(&high, memory_order_relaxed);
}

/* Under the write lock. */
static void set_bounds(void) {
  atomic_store_explicit(&low, table_count ? table[0]->base : UINTPTR_MAX, memory_order_relaxed);
  atomic_store_explicit(
      &high, table_count ? table[table_count - 1]->base + table[table_count - 1]->bytes : 0,
      memory_order_relaxed);
}

static bool append(struct range ***list, size_t *count, size_t *room) {
  if (*count < *room)
    return true;
  size_t more = *room ? 2 * *room : 64;
  struct range **grown = realloc(*list, more * sizeof **list);
  if (!grown)
    return false;
  *list = grown;
  *room = more;
  return true;
}

bool range_table_insert(struct range *range) {
  pthread_rwlock_wrlock(&table_lock);
  bool room = append(&table, &table_count, &table_room);
  if (room) {
    size_t i = position(range->base);
    memmove(table + i + 1, table + i, (table_count - i) * sizeof *table);
    table[i] = range;
    table_count++;
    set_bounds();
  }
  pthread_rwlock_unlock(&table_lock);
  return room;
}

bool range_table_remove(struct range *range, bool wait) {
  pthread_rwlock_wrlock(&table_lock);
  size_t i = position(range->base);
  bool found = i && table[i - 1] == range;
  if (found) {
    memmove(table + i - 1, table + i, (table_count - i) * sizeof *table);
    table_count--;
    set_bounds();
    if (wait && append(&waiting, &waiting_count, &waiting_room)) /* else its memory is lost */
      waiting[waiting_count++] = range;
  }
  pthread_rwlock_unlock(&table_lock);
  return found;
}

struct range *range_table_waiting(CUcontext context) {
  struct range *found = NULL;
  pthread_rwlock_wrlock(&table_lock);
  for (size_t i = 0; i < waiting_count && !found; i++)
    if (!context || waiting[i]->context == context) {
      found = waiting[i];
      waiting[i] = waiting[--waiting_count];
    }
  pthread_rwlock_unlock(&table_lock);
  return found;
}

struct range **range_list(size_t *count) {
  range_table_hold();
  struct range **list = table_count ? malloc(table_count * sizeof *list) : NULL;
  *count = list ? table_count : 0;
  if (list)
    memcpy(list, table, table_count * sizeof *list);
  range_table_release();
  return list;
}

bool range_size_live(size_t bytes) {
  bool live = false;
  range_table_hold();
  for (size_t i = 0; i < table_count && !live; i++)
    live = table[i]->bytes == bytes;
  range_table_release();
  return live;
}

/* ---- what is watched ---- */

void range_watch_changed(void) {
  pthread_rwlock_wrlock(
      &table_lock); /* writers only: two of them must not interleave their stores */
  uintptr_t from = UINTPTR_MAX, to = 0;
  for (size_t i = 0; i < table_count; i++) {
    const struct range *range = table[i];
    if (!atomic_load_explicit(&range->has_state, memory_order_relaxed) &&
        !atomic_load_explicit(&range->host_pieces, memory_order_relaxed) &&
        !atomic_load_explicit(&range->drive_pieces, memory_order_relaxed))
      continue;
    from = range->base < from ? range->base : from;
    to = range->base + range->bytes;
  }
  atomic_store_explicit(&watched_low, from, memory_order_relaxed);
  atomic_store_explicit(&watched_high, to, memory_order_relaxed);
  pthread_rwlock_unlock(&table_lock);
}

void range_watched(uintptr_t *from, uintptr_t *to) {
  *from = atomic_load_explicit(&watched_low, memory_order_relaxed);
  *to = atomic_load_explicit(&watched_high, memory_order_relaxed);
}

void range_set_known(struct range *range, struct extent *known, size_t count) {
  pthread_rwlock_wrlock(&table_lock);
  struct extent *old = range->known;
  range->known = known;
  range->known_count = count;
  pthread_rwlock_unlock(&table_lock);
  free(old);
}

bool range_any_host(void) {
  return atomic_load_explicit(&host_pieces, memory_order_relaxed) != 0 || range_any_drive();
}

bool range_any_drive(void) {
  return atomic_load(&drive_pieces) != 0; /* seq_cst: behind a touch (drive.h) */
}

bool range_off_device(uintptr_t address, size_t bytes, bool *drive) {
  const struct range *range = range_find(address);
  *drive = false;
  if (!range || !bytes || bytes > range->bytes - (address - range->base))
    return false;
  bool off = true;
  size_t last = (address - range->base + bytes - 1) / range->piece_bytes;
  for (size_t i = (address - range->base) / range->piece_bytes; i <= last; i++) {
    const enum piece_tier tier = range->pieces[i].tier;
    *drive |= tier == PIECE_DRIVE;
    off &= tier != PIECE_DEVICE;
  }
  return off;
}

bool range_on_host(uintptr_t address, size_t bytes) {
  bool drive;
  return range_off_device(address, bytes, &drive) && !drive;
}

void range_count_host(struct range *range, bool more) {
  const int64_t bytes = (int64_t)range->piece_bytes;
  if (more) {
    atomic_fetch_add(&range->host_pieces, 1);
    atomic_fetch_add(&host_pieces, 1);
  } else {
    atomic_fetch_sub(&range->host_pieces, 1);
    atomic_fetch_sub(&host_pieces, 1);
  }
  report_moved(more ? bytes : -bytes);
}

void range_count_drive(struct range *range, bool more) {
  const int64_t bytes = (int64_t)range->piece_bytes;
  if (more) {
    atomic_fetch_add(&range->drive_pieces, 1);
    atomic_fetch_add(&drive_pieces, 1);
  } else {
    atomic_fetch_sub(&range->drive_pieces, 1);
    atomic_fetch_sub(&drive_pieces, 1);
  }
  report_on_drives(more ? bytes : -bytes);
}

static void piece_set(struct range *range, struct piece *piece, enum piece_tier tier) {
  const enum piece_tier before = piece->tier;
  if (before != tier) {
    if (before != PIECE_DEVICE)
      (before == PIECE_HOST ? range_count_host : range_count_drive)(range, false);
    if (tier != PIECE_DEVICE)
      (tier == PIECE_HOST ? range_count_host : range_count_drive)(range, true);
  }
  piece->tier = tier;
  atomic_fetch_add_explicit(&range->writes, 1, memory_order_release);
}

void range_piece_to_drive(struct range *range, uint32_t index, uint32_t unit) {
  range->pieces[index].unit = unit;
  range->pieces[index].handle = 0;
  piece_set(range, &range->pieces[index], PIECE_DRIVE);
}

void range_piece_set(struct range *range, uint32_t index, CUmemGenericAllocationHandle handle,
                     enum piece_tier tier) {
  range->pieces[index].handle = handle;
  piece_set(range, &range->pieces[index], tier);
}

void range_dont_fork(uintptr_t address, size_t bytes) {
  /* NOLINTNEXTLINE(performance-no-int-to-ptr): an address is what the driver gives */
  (void)madvise((void *)address, bytes, MADV_DONTFORK);
}
