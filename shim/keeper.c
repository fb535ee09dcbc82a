/* The keeper's thread: see keeper.h. A watch passes two gates, each in the order in which tickets were watched: its ticket is ready, which
   the GPU is told; the GPU is done, and the ticket is let go of. The second of one may wait for the first of a later one, so the two are
   looked at independently. The mutex guards the list alone, and is not held across a call into frames. */
#define _GNU_SOURCE
#include "keeper.h"
#include "worker.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct list {
  struct watch *first, **end;
};

struct keeper {
  pthread_t thread;
  pthread_mutex_t lock; /* protects `made` and `stopping` */
  pthread_cond_t changed;
  struct list made; /* watched since the thread last looked */
  bool stopping;
  _Atomic bool failing;
  struct list waiting, shown; /* the thread's own: not ready yet; in the GPU's hands */
};

static void append(struct list *list, struct watch *watch) {
  watch->next = NULL;
  *list->end = watch;
  list->end = &watch->next;
}

static struct watch *take(struct list *list) {
  struct watch *watch = list->first;
  list->first = watch->next;
  if (!list->first)
    list->end = &list->first;
  return watch;
}

static void let_go(struct watch *watch, bool wrote) {
  ticket_release(watch->ticket, wrote);
}

/* True when the first that waits no longer does. */
static bool show(struct keeper *keeper) {
  struct watch *watch = keeper->waiting.first;
  if (!watch)
    return false;
  enum ticket_state state = ticket_state(watch->ticket);
  if (state == TICKET_WAITING && !atomic_load_explicit(&keeper->failing, memory_order_relaxed))
    return false;
  const bool ready = state == TICKET_READY;
  take(&keeper->waiting);
  if (state == TICKET_FAILED && *frames_lost())
    frames_say_lost(); /* before the gate's trap, which doesn't say why */
  atomic_store_explicit(&watch->words->status,
                        slot_status(watch->generation, ready ? SLOT_APPLY : SLOT_FAILED),
                        memory_order_relaxed);
  /* release: the pieces and the status are there when the device sees the word. */
  atomic_store_explicit(&watch->words->ready, watch->generation, memory_order_release);
  if (ready)
    append(&keeper->shown, watch);
  else
    let_go(watch, false);
  return true;
}

static bool collect(struct keeper *keeper) {
  struct watch *watch = keeper->shown.first;
  if (!watch)
    return false;
  /* acquire: what the device wrote to the frames before the word is visible now. */
  const uint32_t down = atomic_load_explicit(&watch->words->down, memory_order_acquire);
  const bool done = (int32_t)(down - watch->generation) >= 0;
  if (!done && !atomic_load_explicit(&keeper->failing, memory_order_relaxed))
    return false;
  let_go(take(&keeper->shown), done);
  return true;
}

/* Takes over what was watched; sleeps while there is nothing. False at the end. */
static bool refill(struct keeper *keeper) {
  pthread_mutex_lock(&keeper->lock);
  const bool idle = !keeper->waiting.first && !keeper->shown.first;
  while (idle && !keeper->made.first && !keeper->stopping)
    pthread_cond_wait(&keeper->changed, &keeper->lock);
  while (keeper->made.first)
    append(&keeper->waiting, take(&keeper->made));
  pthread_mutex_unlock(&keeper->lock);
  return keeper->waiting.first || keeper->shown.first;
}

static void *work(void *argument) {
  struct keeper *keeper = argument;
  pthread_setname_np(pthread_self(), "offload-keeper");
  enum { SPINS = 4000, SHORT = 4200 };
  for (unsigned idle = 0; refill(keeper);) {
    const bool shown = show(keeper), collected = collect(keeper);
    if (shown || collected) {
      idle = 0;
    } else if (idle < SPINS) {
      idle++;
#if defined __x86_64__
      __builtin_ia32_pause();
#elif defined __aarch64__
      __asm__ volatile("yield");
#endif
    } else {
      const struct timespec nap = {.tv_nsec = idle < SHORT ? 10000 : 100000};
      idle += idle < SHORT;
      nanosleep(&nap, NULL);
    }
  }
  return NULL;
}

struct keeper *keeper_start(char *why, size_t why_bytes) {
  struct keeper *keeper = calloc(1, sizeof *keeper);
  if (!keeper) {
    snprintf(why, why_bytes, "there is no memory for the thread that watches drives for the GPU");
    return NULL;
  }
  pthread_mutex_init(&keeper->lock, NULL);
  pthread_cond_init(&keeper->changed, NULL);
  keeper->made.end = &keeper->made.first;
  keeper->waiting.end = &keeper->waiting.first;
  keeper->shown.end = &keeper->shown.first;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all,
                  &before); /* the thread inherits it: signals are the program's */
  const int error = pthread_create(&keeper->thread, NULL, work, keeper);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (!error)
    return keeper;
  snprintf(why, why_bytes, "the thread that watches drives for the GPU can't be made: %s",
           strerror(error));
  free(keeper);
  return NULL;
}

void keeper_watch(struct keeper *keeper, struct watch *watch) {
  pthread_mutex_lock(&keeper->lock);
  append(&keeper->made, watch);
  pthread_cond_signal(&keeper->changed);
  pthread_mutex_unlock(&keeper->lock);
}

void keeper_fail(struct keeper *keeper) {
  atomic_store_explicit(&keeper->failing, true, memory_order_relaxed);
}

void keeper_stop(struct keeper *keeper) {
  keeper_fail(keeper);
  pthread_mutex_lock(&keeper->lock);
  keeper->stopping = true;
  pthread_cond_signal(&keeper->changed);
  pthread_mutex_unlock(&keeper->lock);
  pthread_join(keeper->thread, NULL);
  free(keeper);
}
