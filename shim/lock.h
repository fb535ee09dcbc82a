/* The one lock that may be held across driver calls: it makes "assign and enqueue" of a step one
   thing, and keeps moves, frees and steps apart. The worker thread never takes it. Lock order:
   enqueue, then the range table's (range.c), which is never held across a driver call. */
#ifndef OFFLOAD_LOCK_H
#define OFFLOAD_LOCK_H
void enqueue_lock(void);
void enqueue_unlock(void);
#endif
