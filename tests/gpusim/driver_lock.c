/* The driver's lock, as programs meet it: some calls keep every other thread's calls out until they
   return, however long they wait for the device. Those are frees, unloading, the end of a context,
   and submits to a full queue; with GPUSIM_DRIVER_LOCK=2 also allocations, stream creation and
   module loads, which then wait for the context's work. Synchronising lets go while it waits.

   So a thread that has to call CUDA before it can release a value wait may never get there: the
   wait's own limit ends the process then, and says who holds the lock. State is under gpusim_mutex;
   `holder` is read without it by calls that find nobody there. */
#include "tests/gpusim/driver.h"
#include <stdatomic.h>
#include <stdio.h>

static _Atomic uint64_t holder; /* thread id; 0: free */
static const char *holder_call;
static int depth, waiting;
static pthread_cond_t let_go = PTHREAD_COND_INITIALIZER;

static bool mine_or_free(uint64_t thread) {
  uint64_t now = atomic_load_explicit(&holder, memory_order_acquire);
  return now == 0 || now == thread;
}

static void wait_until_free(uint64_t thread) {
  waiting++;
  while (!mine_or_free(thread))
    pthread_cond_wait(&let_go, &gpusim_mutex);
  waiting--;
}

void gpusim_driver_hold(const char *call) {
  uint64_t thread = gpusim_this_thread()->id;
  if (gpusim_settings.driver_lock == 0)
    return;
  wait_until_free(thread);
  if (depth++ == 0) {
    holder_call = call;
    atomic_store_explicit(&holder, thread, memory_order_release);
  }
}

void gpusim_driver_let_go(void) {
  if (gpusim_settings.driver_lock == 0 || --depth > 0)
    return;
  atomic_store_explicit(&holder, 0, memory_order_release);
  pthread_cond_broadcast(&let_go);
}

void gpusim_driver_pass(void) {
  uint64_t thread = gpusim_this_thread()->id;
  if (mine_or_free(thread))
    return;
  gpusim_count(GPUSIM_COUNT_lock_waits, 1);
  gpusim_lock();
  wait_until_free(thread);
  gpusim_unlock();
}

void gpusim_driver_settle(CUcontext context, const char *call) {
  if (gpusim_settings.driver_lock < 2)
    return;
  gpusim_lock();
  gpusim_driver_hold(call);
  gpusim_drain_context(context);
  gpusim_driver_let_go();
  gpusim_unlock();
}

void gpusim_driver_describe(void) {
  uint64_t thread = atomic_load_explicit(&holder, memory_order_acquire);
  if (thread != 0)
    fprintf(stderr,
            "gpusim: thread %llu holds the driver's lock in %s, and %d wait for it; whatever "
            "releases a value wait must not call CUDA\n",
            (unsigned long long)thread, holder_call, waiting);
}
