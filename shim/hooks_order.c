/* Wrappers of what starts, orders or writes in a way that no other room looks at: host functions, events,
   words, memory in stream order, what other interfaces share. Nothing is done but that hook_pass tells
   ahead.h that something came between two launches. */
#include "hooks.h"

#define HOOK(symbol, base, version, per_thread, parameters, arguments)
#define SEEN(symbol, base, version, per_thread, parameters, arguments)                             \
  CUresult hook_##symbol parameters {                                                              \
    return hook_pass(symbol, arguments);                                                           \
  }
#define USE(symbol, base, version)
#include "hooks.def"
