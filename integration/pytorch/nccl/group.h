/* Groups: what a thread calls between ncclGroupStart and ncclGroupEnd is begun at the end, together. */
#ifndef OFFLOAD_NCCL_GROUP_H
#define OFFLOAD_NCCL_GROUP_H
#include "integration/pytorch/nccl/stream.h"

void group_start(void);
ncclResult_t group_end(void);
/* Ends a group without doing anything that it holds. */
void group_drop(void);
/* Remembers the first failure of a call inside a group, for its end; returns the result. */
ncclResult_t group_note(ncclResult_t result);

/* A call on a stream: enqueued at once outside groups. */
ncclResult_t group_call(struct ncclComm *communicator, const struct collective *call,
                        CUstream stream);
/* A communicator to be started. Takes `start` over. Outside groups a blocking one has started, or failed and
   is no more, when this returns; `handle` is where the program has it. */
ncclResult_t group_begin(struct communicator_start *start, struct ncclComm **handle);
#endif
