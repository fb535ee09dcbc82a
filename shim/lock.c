/* The enqueue lock of lock.h. A forked child of a started process is inert and never takes it, so
   nothing needs to be done about it at fork. */
#include "lock.h"
#include <pthread.h>

static pthread_mutex_t enqueue = PTHREAD_MUTEX_INITIALIZER;

void enqueue_lock(void) {
  pthread_mutex_lock(&enqueue);
}
void enqueue_unlock(void) {
  pthread_mutex_unlock(&enqueue);
}
