/* What the wrappers share. Each wrapper asks process_active first, or range_find where it serves
   memory of ours; when it has nothing to do, its cost is a few loads. */
#ifndef OFFLOAD_HOOKS_H
#define OFFLOAD_HOOKS_H
#include "driver.h"
#include "process.h"
#include "range.h"

/* Calls the real function and looks at what it said. */
#define hook_pass(symbol, arguments) process_note(driver_call(symbol, arguments), #symbol)

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
