/* State that is copied up before its launch: when a launch on staging has been enqueued, the groups that
   are expected next go up into the slots that are free, each behind the last copy down of its slot and of
   its own state. Expected within a step is what the last step did there; behind a step's last launch, what
   the step itself began with: so the coming step finds its first pieces on the device, copied while
   forward and backward run. Callers: step.c and step_stream.c, under the enqueue lock.

   A copy is used only where nothing can have changed what it was made of since the group was last stepped:
   - the group names the same addresses and lengths, in the same order;
   - the allocations are the same; nothing but the step was handed an address in one of them to write to
     (copies, memsets, parameters of kernels, lists); none of their pieces has moved; no launch came by
     that may write anywhere (graphs, collectives, kernels whose parameters can't be read);
   - when it was copied, no other stream that had touched the allocations had work left;
   - no launch that went another way has stepped any of it, and none of ours has written to it as a parameter or
     a gradient that it divides.
   What kernels write through addresses that they find in memory is not seen.

   Behind a step only groups are copied whose allocations nothing wrote to between the last two steps: what
   is touched at every step would be copied for nothing. */
#ifndef OFFLOAD_EARLY_H
#define OFFLOAD_EARLY_H
#include "ring.h"

/* A launch on staging begins, in the context's step `step`. Then its groups are told, in order, before
   anything of it is enqueued. */
void early_launch(struct ring *, uint64_t step);
void early_tell(struct ring *, const struct group *);

/* The early slot that holds this group, laid out, as it is now: early no more; or NULL. Slots that hold
   part of it otherwise are dropped. */
struct staging_slot *early_use(struct ring *, const struct group *);

/* A slot holds this group from now on, not early. */
void early_hold(struct staging_slot *, const struct group *);

/* A launch steps this state without staging, or writes to it as something else. */
void early_stepped(struct ring *, uintptr_t home, size_t bytes);

/* Nothing is expected any more: before the slots go. */
void early_forget(struct ring *);

/* A launch on staging from `stream` was enqueued whole: copies up what comes next. A failure leaves slots
   empty. */
void early_fill(struct ring *, CUstream stream);
#endif
