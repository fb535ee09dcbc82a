/* Progress of transfers. Called by host functions alone: nothing here may call CUDA. */
#include "integration/pytorch/nccl/transfer.h"
#include "integration/pytorch/nccl/collective.h"
#include "integration/pytorch/nccl/error.h"
#include <stdlib.h>
#include <string.h>

static size_t least(size_t a, size_t b) {
  return a < b ? a : b;
}

static size_t write_ring(struct segment_ring *ring, size_t capacity, const uint8_t *from,
                         size_t bytes) {
  uint64_t written = atomic_load_explicit(&ring->written, memory_order_relaxed); /* ours */
  uint64_t read = atomic_load_explicit(&ring->read, memory_order_acquire); /* room is free to use */
  size_t count = least(bytes, capacity - (size_t)(written - read));
  size_t at = (size_t)(written % capacity), first = least(count, capacity - at);
  memcpy(ring->bytes + at, from, first);
  memcpy(ring->bytes, from + first, count - first);
  atomic_store_explicit(&ring->written, written + count,
                        memory_order_release); /* bytes before it */
  return count;
}

static size_t read_ring(struct segment_ring *ring, size_t capacity, uint8_t *to, size_t bytes) {
  uint64_t read = atomic_load_explicit(&ring->read, memory_order_relaxed); /* ours */
  uint64_t written =
      atomic_load_explicit(&ring->written, memory_order_acquire); /* bytes are there */
  size_t count = least(bytes, (size_t)(written - read));
  size_t at = (size_t)(read % capacity), first = least(count, capacity - at);
  memcpy(to, ring->bytes + at, first);
  memcpy(to + first, ring->bytes, count - first);
  atomic_store_explicit(&ring->read, read + count, memory_order_release); /* after the bytes */
  return count;
}

static bool complete(const struct transfer *transfer) {
  return transfer->done_bytes == sizeof transfer->message + transfer->message.bytes;
}

static bool same_call(const struct transfer_message *a, const struct transfer_message *b) {
  return a->kind == b->kind && a->type == b->type && a->op == b->op && a->root == b->root &&
         a->elements == b->elements && a->bytes == b->bytes;
}

static ncclResult_t fail_unlike(const struct segment *segment, int peer,
                                const struct transfer_message *own,
                                const struct transfer_message *theirs) {
  char own_words[128], their_words[128];
  collective_describe(own, own_words, sizeof own_words);
  collective_describe(theirs, their_words, sizeof their_words);
  return nccl_fail(ncclInvalidUsage,
                   "ranks don't make the same calls: rank %d is in %s, rank %d in %s",
                   segment->self, own_words, peer, their_words);
}

/* Reads the sender's message once all of it is there, and checks it. */
static ncclResult_t receive_message(const struct segment *segment, struct segment_ring *ring,
                                    struct transfer *t, size_t *moved) {
  struct transfer_message came;
  uint64_t read = atomic_load_explicit(&ring->read, memory_order_relaxed);
  uint64_t written = atomic_load_explicit(&ring->written, memory_order_acquire);
  *moved = 0;
  if (written - read < sizeof came)
    return ncclSuccess;
  *moved = read_ring(ring, segment->ring_bytes, (uint8_t *)&came, sizeof came);
  if (!same_call(&t->message, &came))
    return fail_unlike(segment, t->peer, &t->message, &came);
  t->message = came;
  return ncclSuccess;
}

static ncclResult_t progress_one(const struct segment *segment, struct transfer *t, bool *moved) {
  struct segment_ring *ring = t->sends ? segment_ring(segment, segment->self, t->peer)
                                       : segment_ring(segment, t->peer, segment->self);
  size_t before = t->done_bytes, count = 0;
  if (before < sizeof t->message) {
    if (t->sends) {
      count = write_ring(ring, segment->ring_bytes, (const uint8_t *)&t->message + before,
                         sizeof t->message - before);
    } else {
      ncclResult_t result = receive_message(segment, ring, t, &count);
      if (result != ncclSuccess)
        return result;
    }
    t->done_bytes += count;
  }
  if (t->done_bytes >= sizeof t->message && !complete(t)) {
    size_t at = t->done_bytes - sizeof t->message, rest = t->message.bytes - at;
    t->done_bytes += t->sends ? write_ring(ring, segment->ring_bytes, t->memory + at, rest)
                              : read_ring(ring, segment->ring_bytes, t->memory + at, rest);
  }
  if (t->done_bytes != before) {
    *moved = true;
    segment_ring_bell(segment, t->peer);
  }
  return ncclSuccess;
}

/* busy: a mark for each peer and direction that an earlier transfer occupies. */
static ncclResult_t progress(const struct segment *segment, struct transfer *transfers,
                             size_t count, bool *busy, bool *moved, bool *done) {
  ncclResult_t result = ncclSuccess;
  memset(busy, 0, 2 * (size_t)segment->ranks * sizeof *busy);
  *moved = false;
  *done = true;
  for (size_t i = 0; i < count && result == ncclSuccess; i++) {
    struct transfer *t = &transfers[i];
    bool *taken = &busy[2 * t->peer + (t->sends ? 1 : 0)];
    if (complete(t))
      continue;
    if (!*taken)
      result = progress_one(segment, t, moved);
    if (!complete(t)) {
      *taken = true;
      *done = false;
    }
  }
  return result;
}

static int first_gone(const struct segment *segment, const struct transfer *transfers,
                      size_t count) {
  for (size_t i = 0; i < count; i++)
    if (!complete(&transfers[i]) && segment_gone(segment, transfers[i].peer))
      return transfers[i].peer;
  return -1;
}

ncclResult_t transfer_all(const struct segment *segment, const _Atomic bool *aborted,
                          struct transfer *transfers, size_t count) {
  struct segment_wait wait = segment_wait_begin(segment, aborted);
  bool *busy = calloc(2 * (size_t)segment->ranks, sizeof *busy), moved = false, done = false;
  if (busy == NULL)
    return nccl_fail(ncclSystemError, "out of memory");
  ncclResult_t result = ncclSuccess;
  while (result == ncclSuccess) {
    uint32_t seen = segment_bell(segment);
    result = progress(segment, transfers, count, busy, &moved, &done);
    if (result != ncclSuccess || done)
      break;
    if (moved) {
      segment_wait_renew(&wait);
      continue;
    }
    if (segment_wait_looks(&wait)) {
      int gone = first_gone(segment, transfers, count);
      /* It may have filled or emptied its ring before it went. */
      if (gone >= 0) {
        result = progress(segment, transfers, count, busy, &moved, &done);
        if (result == ncclSuccess && !moved)
          result = segment_fail_gone(segment, gone);
        continue;
      }
    }
    result = segment_wait_step(&wait, seen);
  }
  free(busy);
  return result;
}
