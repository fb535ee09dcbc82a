/* What this process shows of itself to whoever looks at the node's registry (`offload top`). Called by shim/record.c once a step, under the
   enqueue lock. */
#ifndef OFFLOAD_SHOW_H
#define OFFLOAD_SHOW_H
#include "config.h"

/* As things stand after a step; nothing where there is no registry. */
void show_step(const struct config *);
#endif
