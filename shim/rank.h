/* This process among the ranks of its node (policy/node.h): what the steps name, so that others see it. Called by step.c under the
   enqueue lock, once for each recognised launch that is carried out. */
#ifndef OFFLOAD_RANK_H
#define OFFLOAD_RANK_H
#include "state.h"

/* A launch that names these tensors; bytes of state and of parameters in its blocks. The first of a step tells of the step before. */
void rank_launch(const struct state_tensor *tensors, size_t count, size_t state_bytes,
                 size_t parameter_bytes);
#endif
