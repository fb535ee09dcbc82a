/* Which ranks of a job keep the same state, each a copy of its own (DDP), where shards of one state (FSDP, tensor parallelism) may have
   the same sizes. The one place that decides it: for the report's and the advice's words (node.c) and for `offload top`. */
#ifndef OFFLOAD_REPLICAS_H
#define OFFLOAD_REPLICAS_H
#include "registry.h"

/* Prints are taken at a rank's steps 2^k to 2^k + REGISTRY_PRINTS - 1, k >= 1, and stay until the next such steps: ranks that step
   together show the same ones for long enough to be compared. Whether one is taken at this step (from 1), and as which. */
bool replicas_print_at(uint64_t step, unsigned *index);

/* Of one job, tensors of the same sizes, and: the same values at one of the steps at which both were looked at; or, where one of them
   has no state on the host to look at, collectives of both that hand gradients to all and put nothing together. Values that were
   being written, and those of a small part of the state alone, are like no others', so that what is called the same is so. */
bool replicas_same(const struct registry_entry *, const struct registry_entry *);
#endif
