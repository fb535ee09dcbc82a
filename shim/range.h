/* Memory ranges: a device allocation as one reservation of addresses, backed piece by piece.

     base            base+bytes      base+mapped_bytes
      | piece 0 | piece 1 | piece 2 |        each piece: one handle, mapped whole,
      `---------- reservation ------'        on the device or on the host

   A handle is the unit of moving, since the driver unmaps only whole mappings (cuda.h, cuMemUnmap).
   A tensor keeps its address wherever its pieces are. Piece state changes only under the enqueue
   lock; the table is read under its own read-write lock, never held across a driver call. */
#ifndef OFFLOAD_RANGE_H
#define OFFLOAD_RANGE_H
#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Frameworks round blocks to 512 bytes: coverage is kept at that grain, and padding counts as its
 * tensor's. */
enum { COVERAGE_GRAIN = 512 };

/* Streams remembered per range for what moving must wait for; with more, the range's pieces stay
 * where they are. */
enum { RANGE_STREAMS = 32 };

/* Steps that a range rests from drives at most, once it is brought in; forgotten after so many times the last rest. */
enum { DRIVE_REST_MOST = 1 << 20, DRIVE_REST_FORGOTTEN = 8 };

/* On a drive a piece is mapped nowhere (drive.h). */
enum piece_tier { PIECE_DEVICE, PIECE_HOST, PIECE_DRIVE };
enum piece_plan { PLAN_STAY, PLAN_TO_HOST, PLAN_TO_DRIVE, PLAN_HOME };

struct piece {
  CUmemGenericAllocationHandle handle;
  uint32_t unit;                /* of the store; on a drive, where there is no handle */
  _Atomic enum piece_tier tier; /* changes under the enqueue lock; a hint without */
  enum piece_plan plan;         /* of the step boundary at hand (state.c) */
  /* Something not ours used it since the last step, reads included; and whether nothing had in the step before that (under the enqueue
     lock): only that goes to drives. */
  _Atomic bool foreign_used;
  bool unused;
  unsigned char
      wanted;       /* by the fault-in at hand: in which of its rounds it was listed (drive.c) */
  bool provisional; /* began on the host because the device was full; confirmed or sent home by the
                       next step */
  _Atomic bool foreign_touched; /* something not ours used it since the last step; set without the
                                   enqueue lock */
  unsigned
      streak; /* steps in a row that covered it whole and in which nothing foreign touched it */
  unsigned streak_needed;             /* 1 to begin with, 2 once it was sent home */
  size_t covered_bytes;               /* of state, padding included, by the last step */
  size_t named_bytes, followed_bytes; /* of state, padding excluded; of these, with a partner that
                                         is or goes to the host */
};

/* Known state inside a range, [start, end), for the scan of parameters. */
struct extent {
  uintptr_t start, end;
};

/* A stream that touched the range, and whether it did so since a move last waited for it. 0: slot
   free; the context is valid once the stream is there, and 0 where it is the range's own. */
enum { RANGE_STREAM_CLAIMED = 3 }; /* no stream's handle: somebody is filling the slot */
struct range_stream {
  _Atomic uintptr_t stream, context;
  _Atomic bool since_wait;
};

struct range {
  uintptr_t base;
  size_t bytes, mapped_bytes, piece_bytes;
  uint32_t piece_count;
  struct piece *pieces;
  CUcontext context;
  CUdevice device;
  uint64_t id;                  /* answers CU_POINTER_ATTRIBUTE_BUFFER_ID */
  _Atomic bool immovable;       /* exported, retained or registered */
  _Atomic uint32_t graph_holds; /* graphs and captures that name it (graphs.h): stays meanwhile */
  _Atomic uint32_t host_pieces, drive_pieces;

  _Atomic bool has_state; /* a recognised launch named something in it */
  struct extent *known;   /* sorted; changed under the table's write lock */
  size_t known_count;
  struct range_stream streams[RANGE_STREAMS];
  _Atomic bool streams_lost; /* more streams than slots */
  /* Foreign ones so far: a move gives up a piece when it changes meanwhile. */
  _Atomic uint64_t touches;
  _Atomic uint64_t writes; /* of these, that may have written anywhere in it; moves count as well */

  uint64_t touches_noted; /* when pieces were last chosen (state.c, under the enqueue lock) */

  /* Brought in since the last settle; how many steps it then stays off drives, twice as many each time that comes soon after, and until which. Under the
     enqueue lock. */
  bool drive_fetched;
  bool rests;
  uint64_t drive_rest, drive_rest_until;
  CUstream step_stream; /* that stepped it last */

  /* Whether it was written to between the last two steps (early.c; under the enqueue lock). */
  uint64_t quiet_step, writes_then;
  bool quiet;
};

/* The range that contains an address, or NULL. Lock-free for addresses outside every range (two
   comparisons). The pointer stays valid while the program doesn't free that allocation. */
struct range *range_find(uintptr_t address);

/* True when every byte of [address, address+bytes) lies on host pieces of one range. Under the
 * enqueue lock. */
bool range_on_host(uintptr_t address, size_t bytes);

/* The same where some of them may be on drives: *drive tells whether any is. */
bool range_off_device(uintptr_t address, size_t bytes, bool *drive);

/* Whether any range has pieces on the host or on drives: the cheap question before a parameter scan. */
bool range_any_host(void);
/* On drives. */
bool range_any_drive(void);

/* Size of a piece on this device: the larger of the driver's granularities for device and host
 * handles, or OFFLOAD_PIECE. */
size_t range_piece_bytes(CUdevice device);

/* Whether its pieces may move: nobody else has a hold on the memory, and all streams are known. */
static inline bool range_movable(const struct range *range) {
  return !atomic_load(&range->immovable) && !atomic_load(&range->graph_holds) &&
         !atomic_load(&range->streams_lost);
}

/* Makes a range of `bytes` on the current device, every piece on `tier`. CUDA_SUCCESS,
   CUDA_ERROR_OUT_OF_MEMORY, or CUDA_ERROR_NOT_SUPPORTED when a native allocation should be made
   instead (also for requests of half a piece or less). Not under the enqueue lock. */
CUresult range_create(CUdeviceptr *pointer, size_t bytes, enum piece_tier tier);

/* Frees a range after everything queued on it is done (as cuMemFree does). Takes the enqueue lock
   itself; forgets the state in it. While a capture is open the memory is given back later. */
CUresult range_destroy(struct range *);

/* All ranges of a context that is gone, and what moving and touching kept there: virtual memory
   outlives its context. Under the enqueue lock. */
void range_forget_context(CUcontext context);

/* For the memory rooms. The table's read lock: ranges can't go away under it; never across a driver
   call. `range_held` is range_find under it, `range_nth` the i-th range by address. */
void range_table_hold(void);
void range_table_release(void);
struct range *range_held(uintptr_t address);
struct range *range_nth(size_t i); /* NULL past the last */

/* A piece has this handle on this tier from now on: counters, report and the watch follow. Under
 * the enqueue lock. */
void range_piece_set(struct range *, uint32_t piece, CUmemGenericAllocationHandle handle,
                     enum piece_tier tier);

/* Forked children must not inherit pinned pages that the CPU can see: they would be copied at fork.
 */
void range_dont_fork(uintptr_t address, size_t bytes);

/* A piece of the range came to or left the host, or the drives: the counters, and the report's. */
void range_count_host(struct range *, bool more);
void range_count_drive(struct range *, bool more);

/* A piece left its mapping for this unit of the store, or left it again: range_piece_set. */
void range_piece_to_drive(struct range *, uint32_t piece, uint32_t unit);

/* Adds a range (false without memory), takes one out (false when it isn't there). `wait`: it is
   freed while a capture is open, and range_table_waiting will hand it out, those of one context or
   (NULL) any. */
bool range_table_insert(struct range *);
bool range_table_remove(struct range *, bool wait);
struct range *range_table_waiting(CUcontext context);

/* All ranges, as an array the caller frees; they stay valid under the enqueue lock. NULL when none
 * or without memory. */
struct range **range_list(size_t *count);

/* Replaces a range's known state (takes over `known`), and says that what is watched may have
 * changed. */
void range_set_known(struct range *, struct extent *known, size_t count);

/* The addresses between which all ranges lie. Empty: low > high. */
void range_bounds(uintptr_t *low, uintptr_t *high);

/* The addresses between which watched ranges lie: those with state or with host pieces. Empty: low
 * > high. */
void range_watched(uintptr_t *low, uintptr_t *high);
void range_watch_changed(void);

/* Whether a live range has exactly this size. */
bool range_size_live(size_t bytes);
#endif
