/* The set of live handles: which pointers the program may pass, and as what. A handle that was
   destroyed, or one of another kind, is an error code, never a read of freed memory. Open
   addressing with backward-shift deletion, behind a lock of its own that nothing else is taken
   under: any room may ask at any time. */
#include "tests/gpusim/driver.h"
#include <stdlib.h>

struct slot {
  const void *handle;
  void *owner;
  enum gpusim_handle_kind kind;
};
static struct slot *slots;
static size_t capacity, count; /* capacity is a power of two */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static size_t home(const void *handle) {
  return (size_t)(((uint64_t)(uintptr_t)handle * 0x9e3779b97f4a7c15u) >> 20) & (capacity - 1);
}

static struct slot *find(const void *handle) {
  if (capacity == 0 || handle == NULL)
    return NULL;
  for (size_t i = home(handle); slots[i].handle != NULL; i = (i + 1) & (capacity - 1))
    if (slots[i].handle == handle)
      return &slots[i];
  return NULL;
}

static void put(struct slot slot) {
  size_t i = home(slot.handle);
  while (slots[i].handle != NULL)
    i = (i + 1) & (capacity - 1);
  slots[i] = slot;
}

static void grow(void) {
  struct slot *old = slots;
  size_t old_capacity = capacity;
  capacity = capacity ? 2 * capacity : 256;
  slots = gpusim_new(capacity * sizeof *slots);
  for (size_t i = 0; i < old_capacity; i++)
    if (old[i].handle != NULL)
      put(old[i]);
  free(old);
}

void gpusim_handle_add(const void *handle, enum gpusim_handle_kind kind, void *owner) {
  pthread_mutex_lock(&mutex);
  if (find(handle) == NULL) {
    if (2 * (count + 1) > capacity)
      grow();
    put((struct slot){handle, owner, kind});
    count++;
  }
  pthread_mutex_unlock(&mutex);
}

void gpusim_handle_remove(const void *handle) {
  pthread_mutex_lock(&mutex);
  struct slot *slot = find(handle);
  if (slot != NULL) {
    /* close the gap, so that searches that passed over it still find what lies behind */
    size_t hole = (size_t)(slot - slots);
    for (size_t i = (hole + 1) & (capacity - 1); slots[i].handle != NULL;
         i = (i + 1) & (capacity - 1)) {
      size_t wanted = home(slots[i].handle);
      if (((i - wanted) & (capacity - 1)) >= ((i - hole) & (capacity - 1))) {
        slots[hole] = slots[i];
        hole = i;
      }
    }
    slots[hole].handle = NULL;
    count--;
  }
  pthread_mutex_unlock(&mutex);
}

bool gpusim_handle_is(const void *handle, enum gpusim_handle_kind kind) {
  pthread_mutex_lock(&mutex);
  struct slot *slot = find(handle);
  bool is = slot != NULL && slot->kind == kind;
  pthread_mutex_unlock(&mutex);
  return is;
}

void *gpusim_handle_owner(const void *handle, enum gpusim_handle_kind kind) {
  pthread_mutex_lock(&mutex);
  struct slot *slot = find(handle);
  void *owner = slot != NULL && slot->kind == kind ? slot->owner : NULL;
  pthread_mutex_unlock(&mutex);
  return owner;
}
