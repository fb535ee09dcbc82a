/* The one lock that may be held across driver calls: it makes "assign and enqueue" of a step one
   thing, and keeps moves, frees, steps and ends of contexts apart. The worker thread never takes it.
   Lock order: enqueue, then the range table's (range.c), which is never held across a driver call.
   While it is held the thread can't be cancelled. */
#ifndef OFFLOAD_LOCK_H
#define OFFLOAD_LOCK_H
#include <stdbool.h>

void enqueue_lock(void);
void enqueue_unlock(void);

/* For the process's exit, which must not wait for ever: a signal's handler may have called exit on
   top of a thread that holds the lock. False when it was not to be had within so many seconds, and at once when this thread holds it. */
bool enqueue_lock_within(int seconds);
#endif
