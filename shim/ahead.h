/* Across launches: whether what a launch of ours needs may be fetched before the launches in front of it
   are done.

     program stream  begin 1 | launch 1 ....... | begin 2 | launch 2 ....... | begin 3 | launch 3 ...
     side stream     wait begin 1 | fetch 1 | fetch 2 (waits for nothing more) | fetch 3 | wait begin 2 | fetch 4

   A launch's place is its begin event on the program's stream. The fetch of a later launch may wait for
   an earlier launch's place instead of its own when everything that was enqueued since then is known,
   and none of it writes what is fetched or names what the CPU writes. Known are our own launches, launches of the same kernels that
   went to the driver, and foreach launches that add to their lists (step counters). Anything else that
   a hook sees, on whatever stream, by whatever thread, closes the window: the next launch waits for
   its own place, and a new window begins there.

   The fetch is enqueued by the call of its own launch. So whatever the program waited for on the host
   before that call is done by then, also what no hook sees: memory polled, memory written by the CPU, another
   device or another process. Only work that was still to come in stream order could be missed.

   Lock order: enqueue, then this room's own mutex; no driver call under it. */
#ifndef OFFLOAD_AHEAD_H
#define OFFLOAD_AHEAD_H
#include "driver.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Launches that may be in front of the one whose inputs are fetched, itself included. */
enum { AHEAD_LAUNCHES = 4 };

/* Odd while a window is open. Each launch opens its own with a new number. */
extern _Atomic uint64_t ahead_window;

static inline bool ahead_open(void) {
  return __builtin_expect(atomic_load_explicit(&ahead_window, memory_order_seq_cst) & 1, 0);
}

/* The program was given a driver function that is newer than the header of this build: nobody knows what it
   does, so no window opens any more. Any time, also before the driver's start: nothing is told yet. */
void ahead_forbid(const char *function);

/* Something that is not known came to pass; `what` names the call. */
void ahead_close(const char *what);

/* Behind every driver call of the program's that may enqueue something: afterwards, so that whoever waits
   for the call's return finds the window closed. seq_cst: a call that enqueued behind a launch's
   begin event sees the number that was stored before it. */
static inline CUresult ahead_seen(CUresult result, const char *what) {
  if (ahead_open())
    ahead_close(what);
  return result;
}

struct plan;

/* What a launch may do ahead. `base`: the event that its side stream waits for first; its own begin or that of
   an earlier launch. */
struct ahead {
  CUevent base;
  bool bulk;    /* behind base lie its gradients, parameters and states, as it will find them */
  bool scalars; /* and all that the proof reads */
};

/* A launch is about to be carried out through the ring: decides plan->ahead, with `begin` as its own
   begin event, which is recorded after this. `streamed`: by stream, else by cpu. Under the enqueue lock. */
void ahead_launch(struct plan *, bool streamed, CUevent begin);

/* A recognised launch went to the driver as it came. After that, under the enqueue lock. */
void ahead_direct(const struct plan *);

/* A launch that is not ours went to the driver; after that. It closes the window unless it is a foreach
   launch on the window's stream that only adds to its lists. */
void ahead_foreign(CUfunction, unsigned blocks, CUstream stream, void **kernel_parameters);
#endif
