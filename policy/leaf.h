/* Mutexes that are held for a copy at a time, as the process ends. A signal's handler may call exit on top of the very thread that holds
   one, which then is never let go: from leaf_ending on nobody waits for one for long. Whoever may run at exit takes leaf locks by
   leaf_lock; others may lock the same mutex plainly. */
#ifndef OFFLOAD_LEAF_H
#define OFFLOAD_LEAF_H
#include <pthread.h>
#include <stdbool.h>

/* True: it is held, and pthread_mutex_unlock lets it go. False only as the process ends: what the lock guards may be half written, and is
   left alone. */
bool leaf_lock(pthread_mutex_t *);

/* The process ends. */
void leaf_ending(void);
#endif
