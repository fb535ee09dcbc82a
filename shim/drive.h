/* The drive tier: which pieces live on drives, and how they come back when something other than the step wants them.

   A piece of this tier (PIECE_DRIVE) is mapped nowhere: its bytes are in the store's unit piece->unit, or in a frame (frames.h). Its
   addresses stay reserved. Only the step knows how to work on it; for anything else it must be brought in first, so that only
   pieces go to drives that nothing but the step touched, reads included, during the whole last step, in a process in which no kernel
   whose parameters can't be read ran during that time, whose partners are all on the host or on drives too, and that no graph holds.

   Two kinds of touches are no reason to stay: copies to the host that are complete when they return, which are made from wherever a
   piece is (drive_serve), and a graph's launch, since what its nodes name the graph holds.

   The race with a launch that is under way in another thread (a hook looks at the tier, then the driver enqueues): the hook marks
   (touch_mark), then counts the touch (range->touches or touch_unseen_count, seq_cst), then reads the tier; whoever unmaps notes both
   counts before it reads the marks, stores PIECE_DRIVE (seq_cst), then reads the counts again and puts the piece back if one changed.
   One of the two sees the other. */
#ifndef OFFLOAD_DRIVE_H
#define OFFLOAD_DRIVE_H
#include "frames.h"
#include "move.h"
#include "range.h"

/* Whether pieces of this context may go to drives now: OFFLOAD_NVME names directories, steps are not `direct`, the store is there (it
   is opened here, at the first question), the wear limit is not reached, no write has failed. Says once why not. Under the enqueue lock. */
bool drive_possible(CUcontext context, size_t piece_bytes);
/* Pieces that may still go. Under the enqueue lock. */
size_t drive_room(CUcontext context);

/* Moves pieces to drives, in batches, as move_pieces does; `touches_noted` of their ranges and touch_unseen_count (`unseen`) were
   noted before the plan that chose them. CUDA_SUCCESS although fewer moved. Under the enqueue lock, while no capture is open. */
CUresult drive_send(const struct move_item *items, size_t count, uint64_t unseen, CUstream stream,
                    bool wait, size_t *moved);
/* Waits for a ticket without limit, and says now and then that `what` is waited for: without the bytes the program can't go on. But
   when the GPU of the move stream has failed, the steps in front are never done: then it stays TICKET_WAITING, and hooks have stopped.
   So they have, with a sentence, when the read failed. */
enum ticket_state drive_await(struct ticket *, CUstream stream, const char *what);
/* Brings listed pieces in, those that aren't on drives excepted. Under the enqueue lock. */
CUresult drive_bring(const struct move_item *items, size_t count);
/* A piece on a drive whose range goes. Under the enqueue lock, or for a range that nobody knows any more. */
void drive_forget_piece(struct range *, uint32_t piece);
/* A context is going, or is `gone`: lets go of what late moves left in frames, if their copies are over. Before
   frames_forget_context, under the enqueue lock. */
void drive_forget_context(CUcontext context, bool gone);

/* A context's step begins: bytes of the last one, endurance, the wear limit, pieces kept because a drive failed. */
void drive_step(CUcontext context);

/* Brings pieces [first, last] of a range in, if they are on drives, with the pieces that hold the partners of their tensors, and as far
   as there is room those that would be parted from their partners by that: to the device if it has room, else to the host within the budget, else to the host beyond it (said once); each is counted and timed. Waits for steps
   in flight on them. Not under the enqueue lock (takes it), any thread, also while a capture is open. CUDA_ERROR_OUT_OF_MEMORY when there is
   room nowhere, CUDA_ERROR_UNKNOWN after a failed read (hooks have then stopped): the call must not be made, and gets that answer. */
CUresult drive_fault(struct range *, uint32_t first, uint32_t last);
/* The same for bytes, and of all ranges of a context (NULL: every one). */
CUresult drive_fault_bytes(uintptr_t address, size_t bytes);
CUresult drive_fault_all(CUcontext context);
/* Under the enqueue lock: for a launch that is going to be carried out by the program's kernel. */
CUresult drive_fault_locked(struct range *, uint32_t first, uint32_t last);

/* Copies [address, address+bytes), any part of which may be on drives, to the host without bringing it in: for a synchronous copy; the
   caller has waited for what the copy must wait for. Not under the enqueue lock, which is taken for a piece at a time. */
CUresult drive_serve(void *destination, uintptr_t address, size_t bytes);
#endif
