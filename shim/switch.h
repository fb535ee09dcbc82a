/* The switch at run time: OFFLOAD_SIGNAL brings all state home and ends offloading, while the program runs on. The signal's handler only
   notes that it came; it is acted upon at the next recognised launch outside captures: pieces of all contexts come home from the host and
   from drives, staging, pinned memory and the budget are given back, nothing moves out again. What the device has no room for stays on the
   host, where the program's kernel steps it in place, and is tried again at each step; when everything is home the hooks end.

   The handler is set at the first recognised launch, and only where the program has none; a program that sets its own later has its own. */
#ifndef OFFLOAD_SWITCH_H
#define OFFLOAD_SWITCH_H
#include <cuda.h>
#include <stdbool.h>

/* At each recognised launch, any thread. The first sets the handler. */
void switch_watch(void);

/* Whether the signal came and is to be acted upon: a load. */
bool switch_asked(void);

/* Whether it was acted upon: nothing moves out any more, allocations stay native. Any thread. */
bool switch_off(void);

/* Acts, for a recognised launch on `stream` that is going to be made in the current context. Under the enqueue lock, while no capture is
   open, before anything of the launch is enqueued. Another answer than CUDA_SUCCESS is the launch's; the hooks may have ended. */
CUresult switch_act(CUstream stream);

/* Tells what was done, once, if there is something new. Not under the enqueue lock: it may write the report. */
void switch_tell(void);
#endif
