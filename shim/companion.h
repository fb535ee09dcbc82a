/* The companion liboffload-adam.so: found beside this library, loaded when the first CPU step may
   be taken over. Without it the other ways to step remain. */
#ifndef OFFLOAD_COMPANION_H
#define OFFLOAD_COMPANION_H
#include "../adam/adam.h"

/* Loads it at the first call; later calls answer at once. NULL when it can't be used; *why then
   says so. Any thread, but not under the enqueue lock: loading takes the loader's own lock, and a
   thread that holds that may be waiting for ours. */
const struct adam_api *companion_load(const char **why);

/* What companion_load found, without loading. NULL before. */
const struct adam_api *companion_loaded(const char **why);
#endif
