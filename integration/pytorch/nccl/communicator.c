/* Communicators' lives. */
#define _GNU_SOURCE
#include "integration/pytorch/nccl/communicator.h"
#include "integration/pytorch/nccl/error.h"
#include "integration/pytorch/nccl/memory.h"
#include "integration/pytorch/nccl/stream.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const uint64_t alive = 0x6e63636c636f6d6d;
enum { ABORT_PATIENCE_MS = 10000, OFFER_FAILED = 1u << 30 };

ncclResult_t communicator_check_handle(const struct ncclComm *c) {
  if (c == NULL || c->magic != alive)
    return nccl_fail(ncclInvalidArgument, "that is no communicator: %p", (const void *)c);
  if (c->process != getpid())
    return nccl_fail(ncclInvalidUsage, "a communicator can't be used in a forked child");
  return ncclSuccess;
}

ncclResult_t communicator_check(const struct ncclComm *c) {
  ncclResult_t result = communicator_check_handle(c);
  if (result != ncclSuccess)
    return result;
  int state = atomic_load_explicit(&c->state, memory_order_acquire);
  if (state == ncclInProgress)
    return nccl_fail(ncclInvalidArgument, "the communicator has not been started yet; ask "
                                          "ncclCommGetAsyncError until it says ncclSuccess");
  if (atomic_load_explicit(&c->finished, memory_order_acquire))
    return nccl_fail(ncclInvalidUsage, "the communicator has been finalized");
  return (ncclResult_t)state; /* its text is kept already */
}

/* ---- making one ---- */

static ncclResult_t read_config(struct ncclComm *c, const ncclConfig_t *config) {
  c->blocking = true;
  if (config == NULL)
    return ncclSuccess;
  if (config->magic != NCCL_CONFIG_MAGIC ||
      config->size < offsetof(ncclConfig_t, blocking) + sizeof config->blocking)
    return nccl_fail(ncclInvalidArgument,
                     "the configuration was not initialised by NCCL_CONFIG_INITIALIZER");
  if (config->blocking != 0 && config->blocking != 1 && config->blocking != NCCL_CONFIG_UNDEF_INT)
    return nccl_fail(ncclInvalidArgument, "blocking=%d in the configuration; it is 0 or 1",
                     config->blocking);
  c->blocking = config->blocking != 0;
  return ncclSuccess;
}

/* Like the runtime: the first device where nobody has chosen one. */
static ncclResult_t current_context(struct ncclComm *c) {
  ncclResult_t result = CHECK_CUDA(cuCtxGetCurrent(&c->context));
  if (result != ncclSuccess)
    return result;
  if (c->context == NULL)
    return CHECK_CUDA(cuDevicePrimaryCtxRetain(&c->context, 0));
  return CHECK_CUDA(cuCtxGetDevice(&c->device));
}

ncclResult_t communicator_new(struct ncclComm **made, int ranks, int rank,
                              const ncclConfig_t *config) {
  struct ncclComm *c = calloc(1, sizeof *c);
  if (c == NULL)
    return nccl_fail(ncclSystemError, "out of memory");
  c->magic = alive;
  c->ranks = ranks;
  c->rank = rank;
  c->process = getpid();
  atomic_init(&c->state, ncclInProgress);
  pthread_mutex_init(&c->submitting, NULL);
  pthread_mutex_init(&c->performing, NULL);
  pthread_mutex_init(&c->scalars_mutex, NULL);
  pthread_mutex_init(&c->splitting, NULL);
  pthread_cond_init(&c->split_ended, NULL);
  ncclResult_t result = driver_open();
  if (result == ncclSuccess)
    result = read_config(c, config);
  if (result == ncclSuccess)
    result = current_context(c);
  if (result != ncclSuccess)
    free(c);
  else
    *made = c;
  return result;
}

/* ---- splits: the ranks tell each other color and key, the first of a color makes the id ---- */

static struct segment_notice *notice_of(const struct ncclComm *parent, int rank, uint32_t split) {
  return &parent->segment.of_rank[rank].notices[split % 2];
}

/* Waits until a word of another rank's notice holds the split's number. */
static ncclResult_t wait_for_notice(const struct communicator_start *start, int rank,
                                    const _Atomic uint32_t *word) {
  const struct ncclComm *parent = start->parent;
  const struct segment *segment = &parent->segment;
  const _Atomic bool *aborted =
      start->communicator != NULL ? &start->communicator->aborted : &parent->aborted;
  struct segment_wait wait = segment_wait_begin(segment, aborted);
  ncclResult_t result = ncclSuccess;
  while (result == ncclSuccess) {
    uint32_t seen = segment_bell(segment);
    bool gone = segment_wait_looks(&wait) &&
                (start->shrinks ? segment_dead(segment, rank) : segment_gone(segment, rank));
    uint32_t now = atomic_load_explicit(word, memory_order_acquire);
    if (now == start->split)
      return ncclSuccess;
    if (now == (start->split | OFFER_FAILED))
      return nccl_fail(ncclRemoteError, "rank %d could not start the split", rank);
    result = gone ? segment_fail_gone(segment, rank) : segment_wait_step(&wait, seen);
  }
  return result;
}

static void publish(const struct ncclComm *parent, _Atomic uint32_t *word, uint32_t value) {
  atomic_store_explicit(word, value, memory_order_release); /* after what it stands for */
  segment_ring_bells(&parent->segment);
}

/* Rank, number of ranks and first rank of the own color, from the notices. */
static int find_place(const struct communicator_start *start) {
  const struct ncclComm *parent = start->parent;
  struct ncclComm *c = start->communicator;
  int first = -1, first_key = 0;
  c->ranks = c->rank = 0;
  for (int rank = 0; rank < parent->ranks; rank++) {
    const struct segment_notice *notice = notice_of(parent, rank, start->split);
    if (start->excluded[rank] || notice->color != start->color)
      continue;
    c->ranks++;
    if (notice->key < start->key || (notice->key == start->key && rank < parent->rank))
      c->rank++;
    if (first < 0 || notice->key < first_key) {
      first = rank;
      first_key = notice->key;
    }
  }
  return first;
}

static ncclResult_t tell_each_other(struct communicator_start *start) {
  struct ncclComm *parent = start->parent;
  struct segment_notice *own = notice_of(parent, parent->rank, start->split);
  ncclResult_t result = ncclSuccess;
  own->color = start->color;
  own->key = start->key;
  publish(parent, &own->posted, start->split);
  for (int rank = 0; rank < parent->ranks && result == ncclSuccess; rank++)
    if (!start->excluded[rank])
      result = wait_for_notice(start, rank, &notice_of(parent, rank, start->split)->posted);
  if (result != ncclSuccess || start->communicator == NULL)
    return result;
  int first = find_place(start);
  struct segment_notice *offer = notice_of(parent, first, start->split);
  if (first == parent->rank) {
    result = segment_unique_id(&offer->id);
    publish(parent, &offer->offered,
            result == ncclSuccess ? start->split : start->split | OFFER_FAILED);
  } else {
    result = wait_for_notice(start, first, &offer->offered);
  }
  start->id = offer->id;
  return result;
}

static ncclResult_t split(struct communicator_start *start) {
  struct ncclComm *parent = start->parent;
  pthread_mutex_lock(&parent->splitting);
  while (parent->splits_ended + 1 != start->split)
    pthread_cond_wait(&parent->split_ended, &parent->splitting);
  pthread_mutex_unlock(&parent->splitting);
  ncclResult_t result = tell_each_other(start);
  pthread_mutex_lock(&parent->splitting);
  parent->splits_ended = start->split;
  pthread_cond_broadcast(&parent->split_ended);
  pthread_mutex_unlock(&parent->splitting);
  return result;
}

/* ---- starting ---- */

static ncclResult_t start_on_device(struct ncclComm *c) {
  ncclResult_t result = stream_load(c);
  if (result == ncclSuccess)
    result = memory_allocate(&c->scratch, 1, c->device);
  return result;
}

static ncclResult_t start_communicator(struct communicator_start *start) {
  struct ncclComm *c = start->communicator;
  ncclResult_t result = start->parent != NULL ? split(start) : ncclSuccess;
  if (result != ncclSuccess || c == NULL)
    return result;
  result = CHECK_CUDA(cuCtxPushCurrent(c->context));
  if (result != ncclSuccess)
    return result;
  /* What can fail alone comes first: then the others don't wait for this rank in vain. */
  result = start_on_device(c);
  if (result == ncclSuccess)
    result = segment_join(&c->segment, &start->id, c->ranks, c->rank, c->device, &c->aborted);
  driver.cuCtxPopCurrent(NULL);
  return result;
}

void communicator_start(struct communicator_start *start) {
  start->result = start_communicator(start);
  if (start->communicator == NULL)
    return;
  if (start->result == ncclSuccess)
    atomic_store_explicit(&start->communicator->state, ncclSuccess, memory_order_release);
  else
    communicator_fail(start->communicator, start->result);
}

static void *start_thread(void *argument) {
  communicator_start(argument);
  free(argument);
  return NULL;
}

ncclResult_t communicator_start_aside(struct communicator_start *start) {
  struct ncclComm *c = start->communicator;
  if (c == NULL) {
    communicator_start(start);
    ncclResult_t result = start->result;
    free(start);
    return result;
  }
  if (pthread_create(&c->starter, NULL, start_thread, start) != 0) {
    free(start);
    return nccl_fail(ncclSystemError, "no thread to start a communicator");
  }
  c->starting = true;
  return ncclInProgress;
}

/* ---- the end ---- */

void communicator_fail(struct ncclComm *c, ncclResult_t result) {
  int before = ncclSuccess, in_progress = ncclInProgress;
  if (!atomic_compare_exchange_strong_explicit(&c->state, &before, result, memory_order_acq_rel,
                                               memory_order_acquire))
    atomic_compare_exchange_strong_explicit(&c->state, &in_progress, result, memory_order_acq_rel,
                                            memory_order_acquire);
  segment_leave(&c->segment, SEGMENT_FAILED);
}

/* Waits until the last operation is through; a bound only for aborts, where work before it may never end. */
static bool drained(struct ncclComm *c, bool abort) {
  const struct timespec pause = {0, 1000000};
  uint64_t most_ms = c->segment.timeout_ns / 1000000;
  bool done = !c->submitted;
  if (most_ms > ABORT_PATIENCE_MS)
    most_ms = ABORT_PATIENCE_MS;
  for (uint64_t ms = 0; !done && (!abort || ms < most_ms); ms++) {
    done = driver.cuEventQuery(c->last) != CUDA_ERROR_NOT_READY;
    if (!done)
      nanosleep(&pause, NULL);
  }
  return done;
}

ncclResult_t communicator_finish(struct ncclComm *c) {
  ncclResult_t result = CHECK_CUDA(cuCtxPushCurrent(c->context));
  if (result != ncclSuccess)
    return result;
  drained(c, false);
  driver.cuCtxPopCurrent(NULL);
  atomic_store_explicit(&c->finished, true, memory_order_release);
  return (ncclResult_t)atomic_load_explicit(&c->state, memory_order_acquire);
}

ncclResult_t communicator_end(struct ncclComm *c, bool abort) {
  if (abort) {
    atomic_store_explicit(&c->aborted, true, memory_order_release);
    if (!c->starting)
      segment_leave(&c->segment, SEGMENT_FAILED);
  }
  if (c->starting)
    pthread_join(c->starter, NULL);
  c->starting = false;
  bool current = driver.cuCtxPushCurrent(c->context) == CUDA_SUCCESS;
  if (!drained(c, abort)) {
    /* A host function may still come: it needs all this. */
    if (current)
      driver.cuCtxPopCurrent(NULL);
    return nccl_fail(ncclInternalError,
                     "work ahead of an aborted operation did not end; its memory is kept");
  }
  if (!abort)
    segment_leave(&c->segment, SEGMENT_LEFT);
  stream_unload(c);
  if (current) {
    memory_free(c->scratch);
    driver.cuCtxPopCurrent(NULL);
  }
  segment_close(&c->segment);
  pthread_mutex_destroy(&c->submitting);
  pthread_mutex_destroy(&c->performing);
  pthread_mutex_destroy(&c->scalars_mutex);
  pthread_mutex_destroy(&c->splitting);
  pthread_cond_destroy(&c->split_ended);
  c->magic = 0;
  free(c);
  return ncclSuccess;
}
