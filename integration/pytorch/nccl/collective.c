/* Every operation as transfers and folds. Reductions go directly: each rank folds its slice of what all ranks
   sent it, in the order of the ranks, and hands the result on. No transfer of a phase begins before the phase
   before it is over, which makes in-place operations safe.

   Called by host functions alone: nothing here may call CUDA. */
#include "integration/pytorch/nccl/collective.h"
#include "integration/pytorch/nccl/error.h"
#include "integration/pytorch/nccl/reduce.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of a slice: what a rank folds at a time. */
enum { SLICE_BYTES = 128 << 10 };

static const struct {
  const char *words, *kernel;
} kinds[COLLECTIVE_KINDS] = {
#define KIND(name, words, kernel) {words, kernel},
#include "integration/pytorch/nccl/kinds.def"
#undef KIND
};

const char *collective_kernel(enum collective_kind kind) {
  return kinds[kind].kernel;
}

const char *collective_words(enum collective_kind kind) {
  return kinds[kind].words;
}

static bool in_pairs(enum collective_kind kind) {
  return kind <= COLLECTIVE_SCATTER;
}

void collective_describe(const struct transfer_message *message, char *into, size_t bytes) {
  if (message->kind < 0 || message->kind >= COLLECTIVE_KINDS)
    snprintf(into, bytes, "an unknown operation");
  else if (message->type < 0 || message->type >= ncclNumTypes)
    snprintf(into, bytes, "%s of %llu bytes",
             message->kind == COLLECTIVE_SEND ? "send/receive" : kinds[message->kind].words,
             (unsigned long long)message->bytes);
  else
    snprintf(into, bytes, "%s of %llu %s (operation %d, root %d)", kinds[message->kind].words,
             (unsigned long long)message->elements, reduce_type_name((ncclDataType_t)message->type),
             message->op, message->root);
}

size_t collective_send_bytes(const struct collective *c, int ranks, int self) {
  size_t bytes = c->elements * reduce_element_bytes(c->type);
  switch (c->kind) {
  case COLLECTIVE_RECEIVE:
    return 0;
  case COLLECTIVE_BROADCAST:
    return self == c->peer ? bytes : 0;
  case COLLECTIVE_SCATTER:
    return self == c->peer ? bytes * (size_t)ranks : 0;
  case COLLECTIVE_ALL_TO_ALL:
  case COLLECTIVE_REDUCE_SCATTER:
    return bytes * (size_t)ranks;
  default:
    return bytes;
  }
}

size_t collective_receive_bytes(const struct collective *c, int ranks, int self) {
  size_t bytes = c->elements * reduce_element_bytes(c->type);
  switch (c->kind) {
  case COLLECTIVE_SEND:
    return 0;
  case COLLECTIVE_REDUCE:
    return self == c->peer ? bytes : 0;
  case COLLECTIVE_GATHER:
    return self == c->peer ? bytes * (size_t)ranks : 0;
  case COLLECTIVE_ALL_TO_ALL:
  case COLLECTIVE_ALL_GATHER:
    return bytes * (size_t)ranks;
  default:
    return bytes;
  }
}

/* ---- a list of transfers that grows ---- */

struct phase {
  const struct segment *segment;
  const _Atomic bool *aborted;
  struct transfer *transfers;
  size_t count, capacity;
  bool out_of_memory;
};

static void add(struct phase *phase, bool sends, int peer, const void *memory, size_t bytes,
                const struct transfer_message *message) {
  if (phase->count == phase->capacity) {
    size_t capacity = phase->capacity > 0 ? 2 * phase->capacity : 16;
    struct transfer *larger = realloc(phase->transfers, capacity * sizeof *larger);
    if (larger == NULL) {
      phase->out_of_memory = true;
      return;
    }
    phase->transfers = larger;
    phase->capacity = capacity;
  }
  struct transfer *t = &phase->transfers[phase->count++];
  *t = (struct transfer){.sends = sends, .peer = peer, .memory = (uint8_t *)memory};
  t->message = *message;
  t->message.bytes = bytes;
}

/* Makes the transfers of the list and empties it; they stay readable until the next is added. */
static ncclResult_t finish(struct phase *phase) {
  ncclResult_t result = phase->out_of_memory ? nccl_fail(ncclSystemError, "out of memory")
                                             : transfer_all(phase->segment, phase->aborted,
                                                            phase->transfers, phase->count);
  phase->count = 0;
  return result;
}

/* ---- exchanges of pairs and plain copies ---- */

static struct transfer_message message_of(const struct collective *c) {
  struct transfer_message message = {.kind = (int)c->kind,
                                     .type = (int)c->type,
                                     .op = c->op,
                                     .root = c->peer,
                                     .elements = c->elements,
                                     .scalar = c->scalar};
  if (c->kind == COLLECTIVE_SEND || c->kind == COLLECTIVE_RECEIVE)
    message = (struct transfer_message){.kind = COLLECTIVE_SEND, .type = -1, .op = -1, .root = -1};
  return message;
}

static void add_copies(struct phase *phase, const struct collective *c, const uint8_t *send,
                       uint8_t *receive) {
  const struct segment *segment = phase->segment;
  const struct transfer_message message = message_of(c);
  size_t bytes = c->elements * reduce_element_bytes(c->type);
  int self = segment->self;
  if (c->kind == COLLECTIVE_SEND || c->kind == COLLECTIVE_RECEIVE) {
    bool sends = c->kind == COLLECTIVE_SEND;
    add(phase, sends, c->peer, sends ? send : receive, bytes, &message);
    return;
  }
  for (int rank = 0; rank < segment->ranks; rank++) {
    size_t slot = (size_t)rank * bytes;
    bool from_self = c->kind == COLLECTIVE_ALL_TO_ALL || c->kind == COLLECTIVE_ALL_GATHER ||
                     (c->kind == COLLECTIVE_GATHER ? rank == c->peer : self == c->peer);
    bool to_self = c->kind == COLLECTIVE_ALL_TO_ALL || c->kind == COLLECTIVE_ALL_GATHER ||
                   (c->kind == COLLECTIVE_GATHER ? self == c->peer : rank == c->peer);
    bool many_sent = c->kind == COLLECTIVE_ALL_TO_ALL || c->kind == COLLECTIVE_SCATTER;
    bool many_received = c->kind == COLLECTIVE_ALL_TO_ALL || c->kind == COLLECTIVE_ALL_GATHER ||
                         c->kind == COLLECTIVE_GATHER;
    /* A buffer that the rank doesn't need may be missing. */
    const uint8_t *source = from_self && many_sent ? send + slot : send;
    uint8_t *target = to_self && many_received ? receive + slot : receive;
    if (rank == self && from_self && to_self && source == target)
      continue; /* in place */
    if (from_self)
      add(phase, true, rank, source, bytes, &message);
    if (to_self)
      add(phase, false, rank, target, bytes, &message);
  }
}

/* ---- reductions ---- */

struct reduction {
  struct phase *phase;
  const struct collective *call;
  struct transfer_message message;
  size_t element_bytes, slice_elements; /* the most of a slice */
  uint8_t *scratch;                     /* a slice for each rank */
  const void **inputs;
  uint64_t *scalars;
};

static uint8_t *slot_of(const struct reduction *r, int rank) {
  return r->scratch + (size_t)rank * r->slice_elements * r->element_bytes;
}

/* Folds `elements` of what is in all ranks' slots and in `own` into `output`. */
static void fold(struct reduction *r, const uint8_t *own, uint8_t *output, size_t elements) {
  int ranks = r->phase->segment->ranks, self = r->phase->segment->self;
  for (int rank = 0; rank < ranks; rank++)
    r->inputs[rank] = rank == self ? own : slot_of(r, rank);
  r->scalars[self] = r->message.scalar;
  reduce_elements(r->call->type, r->call->op, ranks, r->inputs, r->scalars, output, elements);
}

/* Receives a slice from every other rank into its slot. */
static void add_slots(struct reduction *r, size_t elements) {
  for (int rank = 0; rank < r->phase->segment->ranks; rank++)
    if (rank != r->phase->segment->self)
      add(r->phase, false, rank, slot_of(r, rank), elements * r->element_bytes, &r->message);
}

static ncclResult_t finish_slots(struct reduction *r) {
  size_t count = r->phase->count;
  ncclResult_t result = finish(r->phase);
  for (size_t i = 0; i < count && result == ncclSuccess; i++)
    if (!r->phase->transfers[i].sends)
      r->scalars[r->phase->transfers[i].peer] = r->phase->transfers[i].message.scalar;
  return result;
}

static ncclResult_t perform_reduce(struct reduction *r, const uint8_t *send, uint8_t *receive) {
  const struct collective *c = r->call;
  int self = r->phase->segment->self;
  ncclResult_t result = ncclSuccess;
  for (uint64_t at = 0; at < c->elements && result == ncclSuccess; at += r->slice_elements) {
    size_t elements = c->elements - at < r->slice_elements ? c->elements - at : r->slice_elements;
    size_t offset = at * r->element_bytes;
    if (self != c->peer)
      add(r->phase, true, c->peer, send + offset, elements * r->element_bytes, &r->message);
    else
      add_slots(r, elements);
    result = finish_slots(r);
    if (result == ncclSuccess && self == c->peer)
      fold(r, send + offset, receive + offset, elements);
  }
  return result;
}

static ncclResult_t perform_reduce_scatter(struct reduction *r, const uint8_t *send,
                                           uint8_t *receive) {
  const struct collective *c = r->call;
  const struct segment *segment = r->phase->segment;
  size_t part = c->elements * r->element_bytes;
  ncclResult_t result = ncclSuccess;
  for (uint64_t at = 0; at < c->elements && result == ncclSuccess; at += r->slice_elements) {
    size_t elements = c->elements - at < r->slice_elements ? c->elements - at : r->slice_elements;
    size_t offset = at * r->element_bytes;
    for (int rank = 0; rank < segment->ranks; rank++)
      if (rank != segment->self)
        add(r->phase, true, rank, send + (size_t)rank * part + offset, elements * r->element_bytes,
            &r->message);
    add_slots(r, elements);
    result = finish_slots(r);
    if (result == ncclSuccess)
      fold(r, send + (size_t)segment->self * part + offset, receive + offset, elements);
  }
  return result;
}

/* Elements `first` to `first + elements` belong to `rank`. */
struct slice {
  size_t first, elements;
};

static struct slice slice_of(size_t elements, int ranks, int rank) {
  size_t each = (elements + (size_t)ranks - 1) / (size_t)ranks, first = each * (size_t)rank;
  if (first >= elements)
    return (struct slice){elements, 0};
  return (struct slice){first, elements - first < each ? elements - first : each};
}

static ncclResult_t reduce_all_once(struct reduction *r, const uint8_t *send, uint8_t *receive,
                                    size_t elements) {
  const struct segment *segment = r->phase->segment;
  struct slice own = slice_of(elements, segment->ranks, segment->self);
  for (int rank = 0; rank < segment->ranks; rank++) {
    struct slice slice = slice_of(elements, segment->ranks, rank);
    if (rank != segment->self)
      add(r->phase, true, rank, send + slice.first * r->element_bytes,
          slice.elements * r->element_bytes, &r->message);
  }
  add_slots(r, own.elements);
  ncclResult_t result = finish_slots(r);
  if (result != ncclSuccess)
    return result;
  uint8_t *folded = receive + own.first * r->element_bytes;
  fold(r, send + own.first * r->element_bytes, folded, own.elements);
  for (int rank = 0; rank < segment->ranks; rank++) {
    struct slice slice = slice_of(elements, segment->ranks, rank);
    if (rank == segment->self)
      continue;
    add(r->phase, true, rank, folded, own.elements * r->element_bytes, &r->message);
    add(r->phase, false, rank, receive + slice.first * r->element_bytes,
        slice.elements * r->element_bytes, &r->message);
  }
  return finish(r->phase);
}

static ncclResult_t perform_all_reduce(struct reduction *r, const uint8_t *send, uint8_t *receive) {
  const struct collective *c = r->call;
  size_t most = r->slice_elements * (size_t)r->phase->segment->ranks;
  ncclResult_t result = ncclSuccess;
  for (uint64_t at = 0; at < c->elements && result == ncclSuccess; at += most) {
    size_t elements = c->elements - at < most ? c->elements - at : most;
    result =
        reduce_all_once(r, send + at * r->element_bytes, receive + at * r->element_bytes, elements);
  }
  return result;
}

static ncclResult_t perform_reduction(struct phase *phase, const struct collective *c,
                                      const uint8_t *send, uint8_t *receive,
                                      void *(*view)(void *)) {
  size_t ranks = (size_t)phase->segment->ranks;
  struct reduction r = {.phase = phase, .call = c, .message = message_of(c)};
  r.element_bytes = reduce_element_bytes(c->type);
  r.slice_elements = SLICE_BYTES / r.element_bytes;
  if (c->device_scalar != NULL)
    memcpy(&r.message.scalar, view((void *)c->device_scalar), r.element_bytes);
  r.scratch = malloc(ranks * SLICE_BYTES);
  r.inputs = calloc(ranks, sizeof *r.inputs);
  r.scalars = calloc(ranks, sizeof *r.scalars);
  ncclResult_t result = ncclSystemError;
  if (r.scratch == NULL || r.inputs == NULL || r.scalars == NULL)
    nccl_fail(ncclSystemError, "out of memory");
  else if (c->kind == COLLECTIVE_REDUCE)
    result = perform_reduce(&r, send, receive);
  else if (c->kind == COLLECTIVE_REDUCE_SCATTER)
    result = perform_reduce_scatter(&r, send, receive);
  else
    result = perform_all_reduce(&r, send, receive);
  free(r.scratch);
  free(r.inputs);
  free(r.scalars);
  return result;
}

/* ---- groups ---- */

ncclResult_t collective_perform(const struct segment *segment, const _Atomic bool *aborted,
                                void *(*view)(void *), const struct collective *calls,
                                size_t count) {
  struct phase phase = {.segment = segment, .aborted = aborted};
  for (size_t i = 0; i < count; i++)
    if (in_pairs(calls[i].kind))
      add_copies(&phase, &calls[i], view((void *)calls[i].send), view(calls[i].receive));
  ncclResult_t result = finish(&phase);
  for (size_t i = 0; i < count && result == ncclSuccess; i++) {
    const struct collective *c = &calls[i];
    if (in_pairs(c->kind))
      continue;
    uint8_t *send = view((void *)c->send), *receive = view(c->receive);
    if (c->kind >= COLLECTIVE_REDUCE) {
      result = perform_reduction(&phase, c, send, receive, view);
    } else {
      add_copies(&phase, c, send, receive);
      result = finish(&phase);
    }
  }
  free(phase.transfers);
  return result;
}
