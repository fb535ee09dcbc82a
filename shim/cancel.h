/* The program may cancel its threads (pthread_cancel). The calls it makes are no places where that
   happens just because we do more in them: a thread that ended inside of a wait or a write of ours
   would leave a lock taken, or half a step enqueued. */
#ifndef OFFLOAD_CANCEL_H
#define OFFLOAD_CANCEL_H
#include <pthread.h>

/* No cancellation of this thread from here to cancel_allow, which takes what this returned. */
static inline int cancel_hold(void) {
  int before = PTHREAD_CANCEL_ENABLE;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
  return before;
}
static inline void cancel_allow(int before) {
  (void)pthread_setcancelstate(before, NULL);
}
#endif
