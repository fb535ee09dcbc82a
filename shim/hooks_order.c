/* Wrappers of what starts, orders or writes in a way that no other room looks at: host functions, events,
   words, memory in stream order, what other interfaces share. Nothing is done but that hook_pass tells
   ahead.h that something came between two launches. */
#include "hooks.h"
#include "touch.h"

/* Those that may write to state in a way that isn't looked at. */
#define BEGINS(symbol, prefix) (__builtin_strncmp(symbol, prefix, sizeof prefix - 1) == 0)
#define MAY_WRITE(symbol)                                                                          \
  ((BEGINS(symbol, "cuLaunch") && !BEGINS(symbol, "cuLaunchHostFunc")) ||                          \
   BEGINS(symbol, "cuStreamBatchMemOp") || BEGINS(symbol, "cuMemBatchDecompress") ||               \
   BEGINS(symbol, "cuMemDiscard"))

#define HOOK(symbol, base, version, per_thread, parameters, arguments)
#define SEEN(symbol, base, version, per_thread, parameters, arguments)                             \
  CUresult hook_##symbol parameters {                                                              \
    if (MAY_WRITE(#symbol) && process_active()) {                                                  \
      static const struct touch_wants everything = {.all = true};                                  \
      touch_unseen();                                                                              \
      DRIVER_TRY(touch_bring(&everything));                                                        \
    }                                                                                              \
    return hook_pass(symbol, arguments);                                                           \
  }
#define USE(symbol, base, version)
#include "hooks.def"
