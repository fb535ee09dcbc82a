/* What the wrappers share. Each wrapper asks process_active first, or range_find where it serves
   memory of ours; when it has nothing to do, its cost is a few loads. */
#ifndef OFFLOAD_HOOKS_H
#define OFFLOAD_HOOKS_H
#include "ahead.h"
#include "driver.h"
#include "process.h"
#include "range.h"

/* Calls the real function and looks at what it said. Of what may enqueue something ahead.h is told: of all that
   doesn't say that it is known. */
#define hook_pass_known(symbol, arguments) process_note(driver_call(symbol, arguments), #symbol)
#define hook_pass(symbol, arguments) ahead_seen(hook_pass_known(symbol, arguments), #symbol)

/* The stream that a call means: 0 is the thread's own for entries with the per-thread suffix. */
static inline CUstream hook_stream(CUstream stream, bool per_thread) {
  return !stream && per_thread ? CU_STREAM_PER_THREAD : stream;
}

/* The range of ours that holds this address, if any; also after the hooks have stopped. */
static inline struct range *hook_range(CUdeviceptr address) {
  return process_started_here() ? range_find((uintptr_t)address) : NULL;
}

/* From now on allocations stay native, with the reason. */
void hook_stay_native(const char *reason);
#endif
