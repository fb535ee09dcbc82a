/* The exported calls about the library, memory and communicators: checks of arguments, then on to the rooms.
   Every call that returns a result notes a failure in the thread's open group. calls.c has the others. */
#include "integration/pytorch/nccl/error.h"
#include "integration/pytorch/nccl/group.h"
#include "integration/pytorch/nccl/memory.h"
#include <stdlib.h>

static ncclResult_t check_pointer(const void *pointer, const char *name) {
  return pointer != NULL ? ncclSuccess : nccl_fail(ncclInvalidArgument, "%s is NULL", name);
}

/* ---- the library ---- */

NCCL_EXPORT ncclResult_t ncclGetVersion(int *version) {
  ncclResult_t result = check_pointer(version, "version");
  if (result == ncclSuccess)
    *version = NCCL_VERSION_CODE;
  return result;
}

NCCL_EXPORT const char *ncclGetErrorString(ncclResult_t result) {
  switch (result) {
  case ncclSuccess:
    return "no error";
  case ncclUnhandledCudaError:
    return "a CUDA call failed";
  case ncclSystemError:
    return "a call to the system failed";
  case ncclInternalError:
    return "internal error";
  case ncclInvalidArgument:
    return "invalid argument";
  case ncclInvalidUsage:
    return "invalid usage";
  case ncclRemoteError:
    return "another rank failed or is gone";
  case ncclInProgress:
    return "in progress";
  default:
    return "unknown result";
  }
}

NCCL_EXPORT const char *ncclGetLastError(ncclComm_t comm) {
  (void)comm;
  return nccl_last_error();
}

#define UNSUPPORTED(name)                                                                          \
  NCCL_EXPORT ncclResult_t name(void);                                                             \
  NCCL_EXPORT ncclResult_t name(void) {                                                            \
    return group_note(                                                                             \
        nccl_fail(ncclInvalidUsage, #name " is not in this stand-in for simulated GPUs"));         \
  }
#include "integration/pytorch/nccl/unsupported.def"
#undef UNSUPPORTED

/* ---- memory ---- */

static ncclResult_t allocate(void **pointer, size_t bytes) {
  CUdeviceptr address = 0;
  CUdevice device = 0;
  ncclResult_t result = check_pointer(pointer, "ptr");
  if (result == ncclSuccess)
    result = driver_open();
  if (result == ncclSuccess)
    result = CHECK_CUDA(cuCtxGetDevice(&device));
  if (result == ncclSuccess)
    result = memory_allocate(&address, bytes, device);
  if (result == ncclSuccess)
    *pointer = (void *)address;
  return result;
}

NCCL_EXPORT ncclResult_t ncclMemAlloc(void **ptr, size_t size) {
  return group_note(allocate(ptr, size));
}

NCCL_EXPORT ncclResult_t ncclMemFree(void *ptr) {
  ncclResult_t result = driver_open();
  return group_note(result == ncclSuccess ? memory_free((CUdeviceptr)ptr) : result);
}

/* What the real library asks about a buffer before it registers it. */
static ncclResult_t look_at_buffer(const void *buffer) {
  CUdeviceptr base;
  size_t bytes;
  int capable;
  ncclResult_t result = CHECK_CUDA(cuMemGetAddressRange(&base, &bytes, (CUdeviceptr)buffer));
  if (result == ncclSuccess)
    result = CHECK_CUDA(cuPointerGetAttribute(
        &capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, (CUdeviceptr)buffer));
  return result;
}

NCCL_EXPORT ncclResult_t ncclCommRegister(ncclComm_t comm, void *buff, size_t size, void **handle) {
  ncclResult_t result = communicator_check(comm);
  if (result == ncclSuccess)
    result = check_pointer(handle, "handle");
  if (result == ncclSuccess && size == 0)
    result = nccl_fail(ncclInvalidArgument, "a buffer of 0 bytes can't be registered");
  if (result == ncclSuccess)
    result = look_at_buffer(buff);
  if (result == ncclSuccess)
    *handle = buff;
  return group_note(result);
}

NCCL_EXPORT ncclResult_t ncclCommDeregister(ncclComm_t comm, void *handle) {
  (void)handle;
  return group_note(communicator_check_handle(comm));
}

/* ---- communicators ---- */

NCCL_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId) {
  ncclResult_t result = check_pointer(uniqueId, "uniqueId");
  return group_note(result == ncclSuccess ? segment_unique_id(uniqueId) : result);
}

static ncclResult_t initialise(struct ncclComm **comm, int ranks, const ncclUniqueId *id, int rank,
                               const ncclConfig_t *config) {
  ncclResult_t result = check_pointer(comm, "comm");
  if (result != ncclSuccess)
    return result;
  *comm = NULL;
  if (ranks < 1 || ranks > SEGMENT_MOST_RANKS || rank < 0 || rank >= ranks)
    return nccl_fail(ncclInvalidArgument, "rank %d of %d; there may be 1 to %d ranks", rank, ranks,
                     SEGMENT_MOST_RANKS);
  struct communicator_start *start = calloc(1, sizeof *start);
  if (start == NULL)
    return nccl_fail(ncclSystemError, "out of memory");
  start->id = *id;
  result = communicator_new(&start->communicator, ranks, rank, config);
  if (result != ncclSuccess) {
    free(start);
    return result;
  }
  *comm = start->communicator;
  return group_begin(start, comm);
}

NCCL_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId,
                                                int rank, ncclConfig_t *config) {
  return group_note(initialise(comm, nranks, &commId, rank, config));
}

NCCL_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId,
                                          int rank) {
  return group_note(initialise(comm, nranks, &commId, rank, NULL));
}

NCCL_EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank,
                                                  int nId, ncclUniqueId *commIds,
                                                  ncclConfig_t *config) {
  if (nId < 1 || commIds == NULL)
    return group_note(nccl_fail(ncclInvalidArgument, "%d unique ids", nId));
  return group_note(initialise(newcomm, nranks, &commIds[0], myrank, config));
}

/* Every device's communicator is made on that device's primary context. */
static ncclResult_t initialise_all(struct ncclComm **comms, int devices, const int *list) {
  ncclUniqueId id;
  ncclResult_t result = driver_open();
  if (result == ncclSuccess)
    result = segment_unique_id(&id);
  for (int i = 0; i < devices && result == ncclSuccess; i++) {
    CUcontext context;
    result = CHECK_CUDA(cuDevicePrimaryCtxRetain(&context, list != NULL ? list[i] : i));
    if (result == ncclSuccess)
      result = CHECK_CUDA(cuCtxPushCurrent(context));
    if (result != ncclSuccess)
      break;
    result = initialise(&comms[i], devices, &id, i, NULL);
    driver.cuCtxPopCurrent(NULL);
  }
  return result;
}

NCCL_EXPORT ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist) {
  if (comm == NULL || ndev < 1)
    return group_note(nccl_fail(ncclInvalidArgument, "%d devices at %p", ndev, (void *)comm));
  group_start();
  ncclResult_t result = group_note(initialise_all(comm, ndev, devlist));
  ncclResult_t end = group_end();
  return group_note(result != ncclSuccess ? result : end);
}

/* start: color, key and whom it excludes are set. Takes it over. */
static ncclResult_t divide(struct communicator_start *start, struct ncclComm **newcomm,
                           const ncclConfig_t *config) {
  struct ncclComm *parent = start->parent;
  ncclResult_t result = ncclSuccess;
  *newcomm = NULL;
  if (start->color != NCCL_SPLIT_NOCOLOR) {
    result = CHECK_CUDA(cuCtxPushCurrent(parent->context));
    if (result == ncclSuccess) {
      result = communicator_new(&start->communicator, 0, 0, config);
      driver.cuCtxPopCurrent(NULL);
    }
  }
  if (result != ncclSuccess) {
    free(start);
    return result;
  }
  if (start->communicator != NULL && (config == NULL || config->blocking == NCCL_CONFIG_UNDEF_INT))
    start->communicator->blocking = parent->blocking;
  pthread_mutex_lock(&parent->splitting);
  start->split = ++parent->splits_begun;
  pthread_mutex_unlock(&parent->splitting);
  *newcomm = start->communicator;
  return group_begin(start, newcomm);
}

static ncclResult_t new_split(struct communicator_start **start, struct ncclComm *parent,
                              struct ncclComm **newcomm) {
  ncclResult_t result = check_pointer(newcomm, "newcomm");
  if (result != ncclSuccess)
    return result;
  *start = calloc(1, sizeof **start);
  if (*start == NULL)
    return nccl_fail(ncclSystemError, "out of memory");
  (*start)->parent = parent;
  return ncclSuccess;
}

NCCL_EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm,
                                       ncclConfig_t *config) {
  struct communicator_start *start = NULL;
  ncclResult_t result = communicator_check(comm);
  if (result == ncclSuccess && color < 0 && color != NCCL_SPLIT_NOCOLOR)
    result =
        nccl_fail(ncclInvalidArgument, "color %d; it is 0 or more, or NCCL_SPLIT_NOCOLOR", color);
  if (result == ncclSuccess)
    result = new_split(&start, comm, newcomm);
  if (result != ncclSuccess)
    return group_note(result);
  start->color = color;
  start->key = key;
  return group_note(divide(start, newcomm, config));
}

static ncclResult_t exclude(struct communicator_start *start, const int *list, int count) {
  const struct ncclComm *parent = start->parent;
  for (int i = 0; i < count; i++) {
    if (list[i] < 0 || list[i] >= parent->ranks || list[i] == parent->rank)
      return nccl_fail(ncclInvalidArgument, "rank %d can't be excluded by rank %d of %d", list[i],
                       parent->rank, parent->ranks);
    start->excluded[list[i]] = true;
  }
  return ncclSuccess;
}

NCCL_EXPORT ncclResult_t ncclCommShrink(ncclComm_t comm, int *excludeRanksList,
                                        int excludeRanksCount, ncclComm_t *newcomm,
                                        ncclConfig_t *config, int shrinkFlags) {
  struct communicator_start *start = NULL;
  bool aborts = shrinkFlags == NCCL_SHRINK_ABORT;
  ncclResult_t result = aborts ? communicator_check_handle(comm) : communicator_check(comm);
  if (result == ncclSuccess && (excludeRanksList == NULL || excludeRanksCount < 1))
    result = nccl_fail(ncclInvalidArgument, "no ranks to exclude");
  if (result == ncclSuccess)
    result = new_split(&start, comm, newcomm);
  if (result == ncclSuccess) {
    result = exclude(start, excludeRanksList, excludeRanksCount);
    if (result != ncclSuccess)
      free(start);
  }
  if (result != ncclSuccess)
    return group_note(result);
  if (aborts)
    atomic_store_explicit(&comm->aborted, true, memory_order_release);
  start->key = comm->rank;
  start->shrinks = true;
  return group_note(divide(start, newcomm, config));
}

NCCL_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  ncclResult_t result = communicator_check(comm);
  if (result == ncclSuccess)
    result = communicator_finish(comm);
  return group_note(result);
}

NCCL_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == NULL)
    return ncclSuccess;
  ncclResult_t result = communicator_check_handle(comm);
  return group_note(result == ncclSuccess ? communicator_end(comm, false) : result);
}

NCCL_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == NULL)
    return ncclSuccess;
  ncclResult_t result = communicator_check_handle(comm);
  return group_note(result == ncclSuccess ? communicator_end(comm, true) : result);
}

NCCL_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError) {
  ncclResult_t result = communicator_check_handle(comm);
  if (result == ncclSuccess)
    result = check_pointer(asyncError, "asyncError");
  if (result == ncclSuccess)
    *asyncError = (ncclResult_t)atomic_load_explicit(&comm->state, memory_order_acquire);
  return result;
}

static ncclResult_t tell(const struct ncclComm *comm, const int *from, int *into) {
  ncclResult_t result = communicator_check(comm);
  if (result == ncclSuccess)
    result = check_pointer(into, "the result");
  if (result == ncclSuccess)
    *into = *from;
  return result;
}

NCCL_EXPORT ncclResult_t ncclCommCount(ncclComm_t comm, int *count) {
  return tell(comm, &comm->ranks, count);
}

NCCL_EXPORT ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *device) {
  return tell(comm, &comm->device, device);
}

NCCL_EXPORT ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank) {
  return tell(comm, &comm->rank, rank);
}
