/* The enqueue lock of lock.h. A forked child of a started process is inert and never takes it, so
   nothing needs to be done about it at fork. */
#include "lock.h"
#include "cancel.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

static pthread_mutex_t enqueue = PTHREAD_MUTEX_INITIALIZER;
static int cancel_before;        /* of the thread that holds the lock */
static _Atomic uintptr_t holder; /* that thread; 0: none, or not yet */

static void held(int before) {
  atomic_store_explicit(&holder, (uintptr_t)pthread_self(), memory_order_relaxed);
  cancel_before = before;
}

void enqueue_lock(void) {
  const int before = cancel_hold();
  pthread_mutex_lock(&enqueue);
  held(before);
}

bool enqueue_lock_within(int seconds) {
  const int before = cancel_hold();
  struct timespec deadline;
  if (atomic_load_explicit(&holder, memory_order_relaxed) == (uintptr_t)pthread_self()) {
    cancel_allow(before);
    return false; /* below a signal's handler, for good */
  }
  clock_gettime(CLOCK_REALTIME, &deadline);
  deadline.tv_sec += seconds;
  if (pthread_mutex_timedlock(&enqueue, &deadline)) {
    cancel_allow(before);
    return false;
  }
  held(before);
  return true;
}

void enqueue_unlock(void) {
  const int before = cancel_before;
  atomic_store_explicit(&holder, 0, memory_order_relaxed);
  pthread_mutex_unlock(&enqueue);
  cancel_allow(before);
}
