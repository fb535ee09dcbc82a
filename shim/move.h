/* Moving pieces between the device and the host at the same address. Callers: state.c (under the
   enqueue lock, while no capture is open). Invariants: a piece is unmapped only after everything
   queued on it is done; its old handle is released last, so that it can be put back; the host waits
   for events of single streams, never for a device. */
#ifndef OFFLOAD_MOVE_H
#define OFFLOAD_MOVE_H
#include "range.h"

struct move_item {
  struct range *range;
  uint32_t piece;
};
static inline struct piece *move_item_piece(const struct move_item *item) {
  return &item->range->pieces[item->piece];
}

/* Moves pieces of ranges of the current context to `tier`, in batches, after the work that `stream`
   (and whatever other stream touched them) has queued. `stream` may be NULL with `wait` false.
   CUDA_SUCCESS although fewer than `count` moved
   (*moved tells; a reason was reported); an error only when a piece could be put neither here nor
   there: hooks have then stopped. */
CUresult move_pieces(const struct move_item *items, size_t count, enum piece_tier tier,
                     CUstream stream, bool wait, size_t *moved);

/* The move stream of the range's context, which is current, and an event for it; made at the first move. A later
   record of the event is as good to whoever waits for an earlier one. False: it could not be made. Under the enqueue lock. */
bool move_copier(const struct range *, CUstream *stream, CUevent *event);

/* A piece's memory of a tier is given back to where it came from. */
void move_drop_handle(CUdevice device, enum piece_tier tier, CUmemGenericAllocationHandle handle,
                      size_t bytes);

/* Counts a move that was given up because streams did not finish in time, and says so. */
void move_say_late(void);

/* Forgets the move stream and event of a context, which went with it, and gives its scratch
   addresses back. Under the enqueue lock. */
void move_forget_context(CUcontext context);

/* How often a move was given up because streams did not finish in time. Under the enqueue lock. */
uint64_t move_late_count(void);

/* How long the host waits for streams before it puts a move off: a rank that waits for a peer which
 * waits for us. */
extern uint64_t move_wait_ns;
#endif
