/* The memory that the ranks of a communicator share.

     header | a record for each rank | a ring for each (sender, receiver)

   It is an anonymous file (memfd), so nothing is left when all processes are gone, however they
   went. The unique id names the process that made it and the descriptor there; the others open it
   through /proc/PID/fd. The ring of sender s and receiver r is at s * ranks + r; s alone advances
   `written`, r alone `read`. Whoever changes what a rank may be waiting for rings that rank's bell
   (a futex). Every wait is bounded and looks whether the rank waited for still lives. */
#ifndef OFFLOAD_NCCL_SEGMENT_H
#define OFFLOAD_NCCL_SEGMENT_H
#include "integration/pytorch/nccl/nccl.h"
#include "integration/pytorch/nccl/process.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { SEGMENT_MOST_RANKS = 256 };
enum segment_state {
  SEGMENT_ABSENT,
  SEGMENT_JOINING,
  SEGMENT_PRESENT,
  SEGMENT_LEFT,
  SEGMENT_FAILED
};

/* What a rank says to the others at a split. Two of them, used in turn: nobody is two splits ahead
   of another. */
struct segment_notice {
  _Atomic uint32_t posted; /* number of the split for which color and key hold */
  int color, key;
  _Atomic uint32_t offered; /* number of the split for which id holds, or with OFFER_FAILED */
  ncclUniqueId id;
};

struct segment_rank {
  _Alignas(64) _Atomic uint32_t state; /* enum segment_state */
  _Atomic uint32_t bell;
  int device;
  struct process_identity process;
  struct segment_notice notices[2];
};

struct segment_ring {
  _Alignas(64) _Atomic uint64_t written;
  _Alignas(64) _Atomic uint64_t read;
  _Alignas(64) uint8_t bytes[];
};

struct segment {
  struct segment_header *header;
  struct segment_rank *of_rank;
  uint8_t *rings;
  size_t ring_bytes; /* that a ring holds */
  size_t mapped_bytes;
  uint64_t timeout_ns; /* of a wait in which nothing moves */
  int ranks, self;
  bool entered; /* the own record is ours */
};

/* A wait: bounded by NCCL_STANDIN_TIMEOUT_MS (default half an hour) and by `aborted`. */
struct segment_wait {
  const struct segment *segment;
  const _Atomic bool *aborted;
  uint64_t deadline_ns, next_look_ns;
};

ncclResult_t segment_unique_id(ncclUniqueId *id);
/* Blocks until all `ranks` ranks have joined. */
ncclResult_t segment_join(struct segment *segment, const ncclUniqueId *id, int ranks, int self,
                          int device, const _Atomic bool *aborted);
/* Tells the others in which way this rank has gone, and wakes them. Any thread. */
void segment_leave(const struct segment *segment, enum segment_state how);
void segment_close(struct segment *segment);

struct segment_ring *segment_ring(const struct segment *segment, int sender, int receiver);
void segment_ring_bell(const struct segment *segment, int rank);
void segment_ring_bells(const struct segment *segment);
/* To be read before looking for what one waits for. */
uint32_t segment_bell(const struct segment *segment);

struct segment_wait segment_wait_begin(const struct segment *segment, const _Atomic bool *aborted);
/* Something moved: the time runs anew. */
void segment_wait_renew(struct segment_wait *wait);
/* Sleeps until the own bell isn't `seen` any more, 10 ms at most. ncclInProgress: aborted. */
ncclResult_t segment_wait_step(struct segment_wait *wait, uint32_t seen);
/* Whether it is time to look after the living (segment_gone opens files). */
bool segment_wait_looks(struct segment_wait *wait);
/* Whether nothing more will come from a rank. Look once more for what it may have left before. */
bool segment_gone(const struct segment *segment, int rank);
/* Whether the rank's process is dead, whatever it has said about the communicator. */
bool segment_dead(const struct segment *segment, int rank);
/* ncclRemoteError, with text. */
ncclResult_t segment_fail_gone(const struct segment *segment, int rank);
#endif
