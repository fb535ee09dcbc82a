/* A communicator: one rank's end. Made by communicator.c and used by stream.c (work on streams), group.c
   and api.c. */
#ifndef OFFLOAD_NCCL_COMMUNICATOR_H
#define OFFLOAD_NCCL_COMMUNICATOR_H
#include "integration/pytorch/nccl/collective.h"
#include "integration/pytorch/nccl/driver.h"
#include <pthread.h>

struct stream_batch;

enum { COMMUNICATOR_MOST_SCALARS = 1024 };
/* What ncclRedOpCreatePreMulSum made; op ncclNumOps + i is scalars[i]. */
struct communicator_scalar {
  bool used;
  ncclDataType_t type;
  uint64_t value;
  const void *device_value; /* or where it is */
};

struct ncclComm {
  uint64_t magic;
  int ranks, rank, device;
  bool blocking;
  pid_t process; /* a forked child has no use for it */
  struct segment segment;
  _Atomic int state;     /* ncclResult_t: in progress, success, or the first error */
  _Atomic bool aborted;  /* waits end */
  _Atomic bool finished; /* no more calls */

  CUcontext context;
  CUmodule module;
  CUfunction kernels[COLLECTIVE_KINDS];
  CUdeviceptr scratch; /* as NCCL has buffers of its own */

  /* The communicator's operations run one after another, whatever their streams: each waits for
     `last`. */
  pthread_mutex_t submitting; /* protects these, and keeps operations in the order of the calls */
  CUevent last, joined;
  CUstream last_stream;
  bool submitted;
  struct stream_batch *captured; /* graphs may run them again and again */
  pthread_mutex_t performing;    /* one host function at a time; graphs may bring two */

  pthread_mutex_t scalars_mutex; /* protects the scalars */
  struct communicator_scalar scalars[COMMUNICATOR_MOST_SCALARS];
  pthread_mutex_t
      splitting; /* protects these: splits go one after another, in the order of the calls */
  pthread_cond_t split_ended;
  uint32_t splits_begun, splits_ended;
  bool starting; /* `starter` must be joined */
  pthread_t starter;
};

/* What starts a communicator; runs in a thread of its own in groups and without `blocking`. */
struct communicator_start {
  struct ncclComm *communicator;
  ncclUniqueId id;
  struct ncclComm *parent; /* a split of it, else NULL */
  uint32_t split;          /* the number of the split */
  int color, key;
  bool shrinks; /* a split among those not excluded, some of whom may have failed */
  bool excluded[SEGMENT_MOST_RANKS];
  ncclResult_t result;
};

/* Whether it is one, of this process, without error, and started; else with text. */
ncclResult_t communicator_check(const struct ncclComm *communicator);
/* Like it, but whatever its state. */
ncclResult_t communicator_check_handle(const struct ncclComm *communicator);

/* A new communicator on the current device, not started. config may be NULL. */
ncclResult_t communicator_new(struct ncclComm **communicator, int ranks, int rank,
                              const ncclConfig_t *config);
/* Blocks until all ranks are there; sets the state and start->result. Any thread. */
void communicator_start(struct communicator_start *start);
/* The same in a thread that communicator_end joins; takes `start` over. */
ncclResult_t communicator_start_aside(struct communicator_start *start);

/* Keeps the first error, and tells the other ranks. Any thread, also a host function's. */
void communicator_fail(struct ncclComm *communicator, ncclResult_t result);
/* Waits for its operations; it takes no more. */
ncclResult_t communicator_finish(struct ncclComm *communicator);
/* Waits for its operations; with `abort` makes them end. Frees it. */
ncclResult_t communicator_end(struct ncclComm *communicator, bool abort);
#endif
