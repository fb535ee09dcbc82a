/* See leaf.h. A lock that was once waited for in vain is not waited for again: the thread that was interrupted never goes on. */
#include "leaf.h"
#include <stdatomic.h>
#include <time.h>

enum { GIVEN_UP_MOST = 32, WAIT_NS = 300000000 };

static _Atomic bool ending;
static pthread_mutex_t *_Atomic given_up[GIVEN_UP_MOST];

void leaf_ending(void) {
  atomic_store_explicit(&ending, true, memory_order_relaxed);
}

static bool is_given_up(pthread_mutex_t *lock) {
  for (unsigned i = 0; i < GIVEN_UP_MOST; i++)
    if (atomic_load_explicit(&given_up[i], memory_order_relaxed) == lock)
      return true;
  return false;
}

static void give_up(pthread_mutex_t *lock) {
  for (unsigned i = 0; i < GIVEN_UP_MOST; i++) {
    pthread_mutex_t *none = NULL;
    if (atomic_compare_exchange_strong_explicit(&given_up[i], &none, lock, memory_order_relaxed,
                                                memory_order_relaxed) ||
        none == lock)
      return;
  }
}

bool leaf_lock(pthread_mutex_t *lock) {
  enum { SECOND_NS = 1000000000 };
  struct timespec until;
  if (!atomic_load_explicit(&ending, memory_order_relaxed))
    return pthread_mutex_lock(lock) == 0;
  if (is_given_up(lock))
    return false;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += WAIT_NS;
  until.tv_sec += until.tv_nsec / SECOND_NS;
  until.tv_nsec %= SECOND_NS;
  if (pthread_mutex_timedlock(lock, &until) == 0)
    return true;
  give_up(lock);
  return false;
}
