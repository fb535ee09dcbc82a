/* Frames: our own pinned anonymous memory in which pieces of the drive tier (PIECE_DRIVE, range.h) are while something works on
   them, a piece a frame. One set for each CUDA context. Their store (nvme/store.h) is the process's.

   Whoever wants pieces in frames makes a *ticket*, under the enqueue lock, in the order in which the work is to happen. The frame of
   a piece is chosen at once, so that its address can be enqueued before the bytes are there; a ticket never waits to be made. A frame's
   tenants follow each other: read in, used by the tickets that named it, written behind if one of them wrote, then the next one's read.
   A piece that is still in a frame, with no successor there, is used where it is: no read, and if it hadn't been written yet, one
   write for both. Of frames that nobody is waiting for the one used longest ago is taken.

       ticket_make, ticket_add ..., ticket_go    caller, under the enqueue lock     (never blocks but for memory)
       ticket_wait | ticket_watch                the CPU step's worker, a move | the GPU, by words in pinned memory
       ticket_release                            whoever waited; after a watch, the keeper thread by itself

   No deadlock: what a ticket waits for are tickets made before it, drives, and the frame's last write.
   Locking: one mutex a set, never held across a driver call or a call of the store; the store's completions take it. No function but
   frames_of and frames_forget_context calls CUDA. */
#ifndef OFFLOAD_FRAMES_H
#define OFFLOAD_FRAMES_H
#include "../nvme/store.h"
#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct frames;
struct ticket;

/* At least so many frames, or there is no drive tier. A ticket names at most half of them, of a step's run of several blocks a quarter. */
enum { FRAMES_LEAST = 16 };

/* The context's frames, made when first asked for: OFFLOAD_NVME_STAGING bytes, within what the host can spare (budget.h, not counting
   OFFLOAD_HOST_MEMORY, which is for state), less where they are refused, FRAMES_LEAST pieces at least; then, once a process, the store.
   NULL with a sentence (the same at every later call). Under the enqueue lock. */
struct frames *frames_of(CUcontext context, size_t piece_bytes, char *why, size_t why_bytes);
/* That of a context, or NULL. */
struct frames *frames_find(CUcontext context);
unsigned frames_count(const struct frames *);
size_t frames_piece_bytes(const struct frames *);
/* The process's store, or NULL: there is none yet. */
struct store *frames_store(void);

enum ticket_kind {
  TICKET_STEP, /* shares a piece with the tickets around it: each works on bytes of its own, or is ordered behind the others otherwise */
  TICKET_ALONE /* waits until all tickets made before it let go of its pieces */
};
/* NULL without memory. */
struct ticket *ticket_make(struct frames *, enum ticket_kind);
/* The address of the frame in which the unit is going to be. Naming a unit twice gives the same. `fill`: what the unit held doesn't
   matter, nothing is read (a piece that comes to the drive). NULL: without memory, or the ticket would name too many. */
void *ticket_add(struct ticket *, uint32_t unit, bool fill);
/* All units are named: reads begin as frames become free. */
void ticket_go(struct ticket *);
/* Before ticket_go, or instead of anything: nothing of it happens. Frees it. */
void ticket_drop(struct ticket *);

enum ticket_state { TICKET_WAITING, TICKET_READY, TICKET_FAILED };
/* Without waiting. */
enum ticket_state ticket_state(const struct ticket *);
/* Until it is ready or failed, or `limit_ns` have passed, or *give_up (may be NULL) is true. */
enum ticket_state ticket_wait(struct ticket *, uint64_t limit_ns, const _Atomic bool *give_up);
/* Why it failed: path, offset and error. */
const char *ticket_why(const struct ticket *);
/* Lets go of its pieces. `wrote`: they are written behind. Frees it. Also of one that failed (then `wrote` is nothing). */
void ticket_release(struct ticket *, bool wrote);

/* In pinned memory, for a ticket that the GPU waits for. Numbers of a pair of words rise from use to use. */
struct gate_words {
  _Atomic uint32_t
      ready; /* = generation: the keeper has written `status` and the pieces are there, or it failed */
  _Atomic uint32_t
      status; /* slot_status(generation, SLOT_APPLY or SLOT_FAILED) of worker.h: off_gate traps unless it applies */
  _Atomic uint32_t down; /* = generation: the GPU has written what it changed to the frames */
  uint32_t pad[13];
};
/* Whether ticket_watch can be used: starts the keeper thread. False with a sentence. */
bool frames_stream_ready(struct frames *, char *why, size_t why_bytes);
/* The keeper takes the ticket over: sets ready and status when it is ready or failed, and releases it as written when `down` has come
   (unless it failed). In the order in which tickets are watched. */
void ticket_watch(struct ticket *, struct gate_words *, uint32_t generation);

/* Whether a ticket names the unit that isn't let go of, and will be. */
bool frames_in_use(struct frames *, uint32_t unit);

/* Forgets a unit that no ticket names: no write follows; waits for one that is under way, and (bounded) for tickets that name it after all.
   Then releases it in the store. */
void frames_forget_unit(struct frames *, uint32_t unit);

/* From now on every wait ends as failed; for a context that is lost or a process that ends. */
void frames_fail(struct frames *);
/* Waits at most `limit_ns` until no ticket is open. */
bool frames_idle(struct frames *, uint64_t limit_ns);
/* The context goes, or is `gone`: waits (bounded) for tickets and drives, drops the frames. Units stay its ranges' until these go. Tickets
   that are open even then keep the set's memory for good, and end as failed. Under the enqueue lock. */
void frames_forget_context(CUcontext context, bool gone);
/* No state is on drives, or ever goes there again: where no context has frames any more, the store's files, rings and the memory that it
   registered are given back. Under the enqueue lock. */
void frames_end(void);
/* Around every fork: a child that is made while the store is being opened would keep descriptors that nobody tells it of, and with them
   the space, so that a fork waits for the opening. The third is for the child, and is async-signal-safe. */
void frames_before_fork(void);
void frames_after_fork(void);
void frames_forked(void);

/* After a failed read: the sentence to end with, or "". Set once. The step that meets it ends through plan_broken or the trap of
   the apply kernel, and says so with process_stop: it is in the middle of a step, and the way back is the last checkpoint. */
const char *frames_lost(void);
/* Says so. Any thread. */
void frames_say_lost(void);
#endif
