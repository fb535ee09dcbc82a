/* Who touches watched ranges (those with state or host pieces): streams, for what a move must wait for, and foreign use,
   for what goes home. Implements state_foreign_access and state_stream_destroyed of state.h; the scan of launches is in
   scan.c. Called from any thread; takes the range table's lock only. */
#ifndef OFFLOAD_TOUCH_H
#define OFFLOAD_TOUCH_H
#include "graphs.h"
#include "range.h"

/* A stream of the range's context is about to work on it. 0 counts as the legacy stream. */
void touch_stream(struct range *, CUstream stream);

/* Who touches: a stream (normalised for per-thread), its context (NULL: unknown, the call will fail),
   and whether what it does is captured: any answer but "not capturing" counts. Asks the driver: not
   under the range table's lock. */
struct toucher {
  CUstream stream;
  CUcontext context;
  bool captured;
};
struct toucher touch_by(CUstream stream);
CUcontext touch_context(CUstream stream);
bool touch_captured(CUstream stream);

/* A kernel whose parameters nobody tells is about to be launched. What it touches is not known: it may be anything, so moving
   waits for it, and what is on drives is brought in; another answer than CUDA_SUCCESS: the launch must not be made. */
CUresult touch_everything(CUstream stream);

/* A graph, which may use the ranges that it holds (graphs.h). The others are only waited for, unless some graph reaches what it
   doesn't name. */
CUresult touch_graph_launch(CUstream stream);

/* The same of a kernel's node, or one that is captured: its graph holds every range. */
void touch_hold_everything(struct graph_holder);

/* How many of these bytes, from the first on, lie in memory of one kind: on the device or on the host. */
size_t touch_same_memory(uintptr_t address, size_t bytes);

/* For those who hold the range table. Whether a range is watched; a stream that may touch it, noted only
   where it is (what is captured, everywhere), and says so; where the known state that an address lies in ends, or the
   address + 1; the pieces of [from, to) as touched: true when one of them is on the host. */
bool touch_watched(const struct range *);
bool touch_range(struct range *, const struct toucher *);
uintptr_t touch_state_end(const struct range *, uintptr_t address);
bool touch_mark(struct range *, uintptr_t from, uintptr_t to);
/* The pieces of [from, to) as used, if only read: they stay off drives for a step. */
void touch_use(struct range *, uintptr_t from, uintptr_t to);

/* What of that is on drives, and must be brought in before the real call (drive.h). For each: it is marked, the touch is
   counted by touch_again, then touch_want reads where it is, all under the table's lock; touch_bring is called
   without it. More runs than fit, or `all`: everything. What is captured is wanted whole: the graph holds the whole range. */
enum { TOUCH_RUNS = 8 };
struct touch_wants {
  unsigned count;
  bool all;
  struct {
    uintptr_t address;
    size_t bytes;
  } runs[TOUCH_RUNS];
};
void touch_again(struct range *);
bool touch_absent(const struct range *, uintptr_t from, uintptr_t to);
void touch_want(struct touch_wants *, const struct range *, uintptr_t from, uintptr_t to);
/* CUDA_SUCCESS, or the answer of a call that must not be made. */
CUresult touch_bring(const struct touch_wants *);

/* A kernel whose accesses nobody tells is in a graph: from now on graph launches want everything. */
void touch_graphs_reach_all(void);

/* A copy to the host that is complete when it returns, of bytes of a watched range: it is made here, from wherever each piece is
   (drive_serve), after what the copy must wait for, so that no piece moves under it, none is brought in for it, and it is no reason to
   stay off drives. `blocks`: it is complete whatever the destination is; else only where that is pageable. Only where drives are
   named. False: it is to be made as any other. */
bool touch_serve(void *destination, uintptr_t source, size_t bytes, CUstream, bool blocks,
                 CUresult *);

/* Something was, or is about to be, launched that may write to any memory at all: a graph, a kernel
   whose parameters can't be read. How often that was, and how often what it reaches couldn't be told even from a graph's nodes. */
void touch_unseen(void);
uint64_t touch_unseen_count(void);
uint64_t touch_unreadable_count(void);

/* A range may be written to by what was looked at. */
void touch_written(struct range *);

/* Whether no stream but `stream` and `own` may still be at work on the range: those that touched it
   are done. Asks the driver; under the enqueue lock, while no capture is open. */
bool touch_only(const struct range *, CUstream stream, CUstream own);

/* Streams destroyed while work of theirs on watched ranges may be pending: one event each. The
   caller waits for them and gives them back with touch_orphan_done; at most `limit` are handed out.
 */
size_t touch_orphans(CUcontext context, CUevent *events, size_t limit);
void touch_orphan_done(CUevent event);
void touch_forget_context(CUcontext context);
#endif
