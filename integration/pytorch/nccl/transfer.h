/* Moving bytes between ranks through their rings. */
#ifndef OFFLOAD_NCCL_TRANSFER_H
#define OFFLOAD_NCCL_TRANSFER_H
#include "integration/pytorch/nccl/segment.h"

/* Goes ahead of every transfer: both sides must mean the same. */
struct transfer_message {
  int kind, type, op, root; /* of the operation; type, op and root are -1 where sides may differ */
  uint64_t elements;        /* of the operation */
  uint64_t bytes;           /* of the transfer */
  uint64_t scalar;          /* of the sender */
};

struct transfer {
  bool sends;
  int peer;
  uint8_t *memory;
  struct transfer_message message; /* to a receiver: what it expects, then what came */
  size_t done_bytes;               /* of the message, then of the memory */
};

/* Makes all transfers, side by side; those with one peer in one direction in their order. Transfers
   that lack their counterpart wait for it. ncclInProgress: aborted. */
ncclResult_t transfer_all(const struct segment *segment, const _Atomic bool *aborted,
                          struct transfer *transfers, size_t count);
#endif
