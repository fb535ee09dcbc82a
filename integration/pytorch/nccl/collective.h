/* The operations of a communicator, as host functions perform them. */
#ifndef OFFLOAD_NCCL_COLLECTIVE_H
#define OFFLOAD_NCCL_COLLECTIVE_H
#include "integration/pytorch/nccl/transfer.h"

enum collective_kind {
#define KIND(name, words, kernel) COLLECTIVE_##name,
#include "integration/pytorch/nccl/kinds.def"
#undef KIND
  COLLECTIVE_KINDS
};

/* One call of the program. Addresses are the device's; NULL where the rank has no such buffer. */
struct collective {
  enum collective_kind kind;
  const void *send;
  void *receive;
  uint64_t elements; /* NCCL's count */
  ncclDataType_t type;
  int op;                    /* of reduce.h; 0 for those that don't reduce */
  int peer;                  /* root, or the other side */
  uint64_t scalar;           /* REDUCE_SCALED_SUM: at the low end of the word, */
  const void *device_scalar; /* or read from here when it is performed */
};

/* Bytes that the operation reads at `send` and writes at `receive` on rank `self`. */
size_t collective_send_bytes(const struct collective *c, int ranks, int self);
size_t collective_receive_bytes(const struct collective *c, int ranks, int self);
const char *collective_kernel(enum collective_kind kind);
const char *collective_words(enum collective_kind kind);
/* In words, for a message about calls that don't match. */
void collective_describe(const struct transfer_message *message, char *into, size_t bytes);

/* Performs the calls of a group: exchanges of pairs together, then the others in their order. view: from
   a device address to one that the CPU may use. ncclInProgress: aborted. */
ncclResult_t collective_perform(const struct segment *segment, const _Atomic bool *aborted,
                                void *(*view)(void *), const struct collective *calls,
                                size_t count);
#endif
