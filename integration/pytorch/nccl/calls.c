/* The exported calls that work on streams, reductions made by the program, and groups. */
#include "integration/pytorch/nccl/error.h"
#include "integration/pytorch/nccl/group.h"
#include "integration/pytorch/nccl/reduce.h"
#include <string.h>

/* ---- operations made by the program ---- */

static ncclResult_t make_scalar(struct ncclComm *c, const struct communicator_scalar *scalar,
                                ncclRedOp_t *op) {
  int i = 0;
  pthread_mutex_lock(&c->scalars_mutex);
  while (i < COMMUNICATOR_MOST_SCALARS && c->scalars[i].used)
    i++;
  if (i < COMMUNICATOR_MOST_SCALARS)
    c->scalars[i] = *scalar;
  pthread_mutex_unlock(&c->scalars_mutex);
  if (i == COMMUNICATOR_MOST_SCALARS)
    return nccl_fail(ncclInvalidUsage, "%d operations of a communicator at once; destroy some", i);
  *op = (ncclRedOp_t)(ncclNumOps + i);
  return ncclSuccess;
}

NCCL_EXPORT ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar,
                                                  ncclDataType_t datatype,
                                                  ncclScalarResidence_t residence,
                                                  ncclComm_t comm) {
  struct communicator_scalar made = {.used = true, .type = datatype};
  ncclResult_t result = communicator_check(comm);
  if (result != ncclSuccess)
    return group_note(result);
  if (op == NULL || scalar == NULL || (unsigned)datatype >= ncclNumTypes ||
      (residence != ncclScalarDevice && residence != ncclScalarHostImmediate))
    return group_note(nccl_fail(ncclInvalidArgument, "type %d, residence %d, scalar at %p",
                                (int)datatype, (int)residence, scalar));
  if (residence == ncclScalarDevice)
    made.device_value = scalar;
  else
    memcpy(&made.value, scalar, reduce_element_bytes(datatype));
  return group_note(make_scalar(comm, &made, op));
}

NCCL_EXPORT ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  ncclResult_t result = communicator_check_handle(comm);
  int i = (int)op - ncclNumOps;
  if (result != ncclSuccess)
    return group_note(result);
  if (i < 0 || i >= COMMUNICATOR_MOST_SCALARS)
    return group_note(nccl_fail(ncclInvalidArgument, "operation %d can't be destroyed", (int)op));
  pthread_mutex_lock(&comm->scalars_mutex);
  bool used = comm->scalars[i].used;
  comm->scalars[i].used = false;
  pthread_mutex_unlock(&comm->scalars_mutex);
  return group_note(used ? ncclSuccess
                         : nccl_fail(ncclInvalidArgument, "no operation %d", (int)op));
}

/* ---- calls on streams ---- */

static struct collective call_of(enum collective_kind kind, const void *send, void *receive,
                                 size_t elements, ncclDataType_t type, int peer) {
  return (struct collective){.kind = kind,
                             .send = send,
                             .receive = receive,
                             .elements = elements,
                             .type = type,
                             .peer = peer};
}

static ncclResult_t set_operation(struct ncclComm *c, struct collective *call, int op) {
  if (op >= 0 && op < ncclNumOps) {
    call->op = op;
    return ncclSuccess;
  }
  struct communicator_scalar scalar = {.used = false};
  int i = op - ncclNumOps;
  if (i >= 0 && i < COMMUNICATOR_MOST_SCALARS) {
    pthread_mutex_lock(&c->scalars_mutex);
    scalar = c->scalars[i];
    pthread_mutex_unlock(&c->scalars_mutex);
  }
  if (!scalar.used)
    return nccl_fail(ncclInvalidArgument, "no reduction %d", op);
  if (scalar.type != call->type)
    return nccl_fail(ncclInvalidArgument, "operation %d was made for %s, not for %s", op,
                     reduce_type_name(scalar.type), reduce_type_name(call->type));
  call->op = REDUCE_SCALED_SUM;
  call->scalar = scalar.value;
  call->device_scalar = scalar.device_value;
  return ncclSuccess;
}

static ncclResult_t check_call(const struct ncclComm *c, const struct collective *call) {
  ncclResult_t result = communicator_check(c);
  if (result != ncclSuccess)
    return result;
  const char *words = collective_words(call->kind);
  if ((unsigned)call->type >= ncclNumTypes)
    return nccl_fail(ncclInvalidArgument, "%s: type %d", words, (int)call->type);
  if (call->peer < 0 || call->peer >= c->ranks)
    return nccl_fail(ncclInvalidArgument, "%s: rank %d of %d", words, call->peer, c->ranks);
  if (call->elements > SIZE_MAX / sizeof(double) / SEGMENT_MOST_RANKS)
    return nccl_fail(ncclInvalidArgument, "%s: %llu elements", words,
                     (unsigned long long)call->elements);
  return ncclSuccess;
}

static ncclResult_t submit(struct ncclComm *c, struct collective call, int op,
                           cudaStream_t stream) {
  ncclResult_t result = check_call(c, &call);
  if (result == ncclSuccess && call.kind >= COLLECTIVE_REDUCE)
    result = set_operation(c, &call, op);
  if (result == ncclSuccess && call.elements > 0)
    result = group_call(c, &call, stream);
  return group_note(result);
}

NCCL_EXPORT ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count,
                                       ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                       cudaStream_t stream) {
  return submit(comm, call_of(COLLECTIVE_ALL_REDUCE, sendbuff, recvbuff, count, datatype, 0),
                (int)op, stream);
}

NCCL_EXPORT ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count,
                                    ncclDataType_t datatype, ncclRedOp_t op, int root,
                                    ncclComm_t comm, cudaStream_t stream) {
  return submit(comm, call_of(COLLECTIVE_REDUCE, sendbuff, recvbuff, count, datatype, root),
                (int)op, stream);
}

NCCL_EXPORT ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                           cudaStream_t stream) {
  return submit(comm,
                call_of(COLLECTIVE_REDUCE_SCATTER, sendbuff, recvbuff, recvcount, datatype, 0),
                (int)op, stream);
}

NCCL_EXPORT ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
                                       ncclDataType_t datatype, ncclComm_t comm,
                                       cudaStream_t stream) {
  return submit(comm, call_of(COLLECTIVE_ALL_GATHER, sendbuff, recvbuff, sendcount, datatype, 0), 0,
                stream);
}

NCCL_EXPORT ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count,
                                       ncclDataType_t datatype, int root, ncclComm_t comm,
                                       cudaStream_t stream) {
  return submit(comm, call_of(COLLECTIVE_BROADCAST, sendbuff, recvbuff, count, datatype, root), 0,
                stream);
}

NCCL_EXPORT ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root,
                                   ncclComm_t comm, cudaStream_t stream) {
  return ncclBroadcast(buff, buff, count, datatype, root, comm, stream);
}

NCCL_EXPORT ncclResult_t ncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count,
                                      ncclDataType_t datatype, ncclComm_t comm,
                                      cudaStream_t stream) {
  return submit(comm, call_of(COLLECTIVE_ALL_TO_ALL, sendbuff, recvbuff, count, datatype, 0), 0,
                stream);
}

NCCL_EXPORT ncclResult_t ncclGather(const void *sendbuff, void *recvbuff, size_t count,
                                    ncclDataType_t datatype, int root, ncclComm_t comm,
                                    cudaStream_t stream) {
  return submit(comm, call_of(COLLECTIVE_GATHER, sendbuff, recvbuff, count, datatype, root), 0,
                stream);
}

NCCL_EXPORT ncclResult_t ncclScatter(const void *sendbuff, void *recvbuff, size_t count,
                                     ncclDataType_t datatype, int root, ncclComm_t comm,
                                     cudaStream_t stream) {
  return submit(comm, call_of(COLLECTIVE_SCATTER, sendbuff, recvbuff, count, datatype, root), 0,
                stream);
}

NCCL_EXPORT ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype,
                                  int peer, ncclComm_t comm, cudaStream_t stream) {
  return submit(comm, call_of(COLLECTIVE_SEND, sendbuff, NULL, count, datatype, peer), 0, stream);
}

NCCL_EXPORT ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer,
                                  ncclComm_t comm, cudaStream_t stream) {
  return submit(comm, call_of(COLLECTIVE_RECEIVE, NULL, recvbuff, count, datatype, peer), 0,
                stream);
}

/* ---- groups ---- */

NCCL_EXPORT ncclResult_t ncclGroupStart(void) {
  group_start();
  return ncclSuccess;
}

NCCL_EXPORT ncclResult_t ncclGroupEnd(void) {
  return group_end();
}

NCCL_EXPORT ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *simInfo) {
  (void)simInfo;
  group_drop();
  return nccl_fail(ncclInvalidUsage,
                   "ncclGroupSimulateEnd is not in this stand-in; the group was dropped");
}
