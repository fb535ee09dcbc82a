/* The enqueue lock of lock.h. A forked child of a started process is inert and never takes it, so
   nothing needs to be done about it at fork. */
#include "lock.h"
#include "cancel.h"
#include <pthread.h>
#include <time.h>

static pthread_mutex_t enqueue = PTHREAD_MUTEX_INITIALIZER;
static int cancel_before; /* of the thread that holds the lock */

void enqueue_lock(void) {
  const int before = cancel_hold();
  pthread_mutex_lock(&enqueue);
  cancel_before = before;
}

bool enqueue_lock_within(int seconds) {
  const int before = cancel_hold();
  struct timespec deadline;
  clock_gettime(CLOCK_REALTIME, &deadline);
  deadline.tv_sec += seconds;
  if (pthread_mutex_timedlock(&enqueue, &deadline)) {
    cancel_allow(before);
    return false;
  }
  cancel_before = before;
  return true;
}

void enqueue_unlock(void) {
  const int before = cancel_before;
  pthread_mutex_unlock(&enqueue);
  cancel_allow(before);
}
