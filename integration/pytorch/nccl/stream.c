/* From calls to work on streams. A group of calls of one communicator becomes, on the stream of the first,

     kernel(addresses) | host function | kernel(addresses) | event

   The kernels do nothing: their parameters carry the calls' buffers by value, as NCCL's do, so that whoever
   watches launches sees them before and after the exchange, and the simulator sees memory that is taken
   away in between. The host function does the exchange through the simulator's view of device memory.

   Rule for host functions: one waits for nothing but the other ranks' host functions of the same calls.
   It never calls CUDA and takes no lock that is held across a CUDA call. So it ends as soon as every
   other rank's stream gets to its call, and that depends on this process only if the program's own order
   of calls does. What is left is what NCCL asks of programs: all ranks make the calls of a communicator, and
   with one hardware queue those of all communicators, in the same order; and a process that waits for a
   device (a free, a full queue) while the call of its other device is not enqueued waits for itself. */
#include "integration/pytorch/nccl/stream.h"
#include "integration/pytorch/nccl/error.h"
#include <stdio.h>
#include <stdlib.h>

struct stream_batch {
  struct ncclComm *communicator;
  struct stream_batch *next; /* among captured ones */
  bool captured;             /* may be performed again */
  size_t count;
  struct collective calls[];
};

/* ---- the kernels ---- */

/* By value in the kernels' parameters; 4 KiB, the most that every driver takes. */
struct work_item {
  uint64_t send, receive, send_bytes, receive_bytes;
};
enum { WORK_ITEMS = 127 };
struct work {
  uint64_t scratch;
  uint32_t items, rank;
  struct work_item item[WORK_ITEMS];
  uint64_t padding[2];
};
_Static_assert(sizeof(struct work) == 4096, "the parameter in the PTX");

/* Sends and receives share a kernel. */
static ncclResult_t load_kernels(struct ncclComm *c) {
  char text[COLLECTIVE_KINDS * 160];
  int at = snprintf(text, sizeof text, ".version 6.5\n.target sm_70\n.address_size 64\n");
  for (int kind = 0; kind < COLLECTIVE_KINDS; kind++)
    if (kind != COLLECTIVE_RECEIVE)
      at += snprintf(text + at, sizeof text - (size_t)at,
                     ".visible .entry %s(.param .align 16 .b8 work[4096])\n{\n ret;\n}\n",
                     collective_kernel((enum collective_kind)kind));
  ncclResult_t result = CHECK_CUDA(cuModuleLoadData(&c->module, text));
  for (int kind = 0; kind < COLLECTIVE_KINDS && result == ncclSuccess; kind++)
    result = CHECK_CUDA(cuModuleGetFunction(&c->kernels[kind], c->module,
                                            collective_kernel((enum collective_kind)kind)));
  return result;
}

ncclResult_t stream_load(struct ncclComm *c) {
  ncclResult_t result = load_kernels(c);
  if (result == ncclSuccess)
    result = CHECK_CUDA(cuEventCreate(&c->last, CU_EVENT_DISABLE_TIMING));
  if (result == ncclSuccess)
    result = CHECK_CUDA(cuEventCreate(&c->joined, CU_EVENT_DISABLE_TIMING));
  return result;
}

/* Errors don't matter: the context may be gone. */
void stream_unload(struct ncclComm *c) {
  while (c->captured != NULL) {
    struct stream_batch *batch = c->captured;
    c->captured = batch->next;
    free(batch);
  }
  if (c->last != NULL)
    driver.cuEventDestroy(c->last);
  if (c->joined != NULL)
    driver.cuEventDestroy(c->joined);
  if (c->module != NULL)
    driver.cuModuleUnload(c->module);
}

static ncclResult_t show_addresses(const struct ncclComm *c, const struct stream_call *calls,
                                   size_t count) {
  ncclResult_t result = ncclSuccess;
  for (size_t at = 0; at < count && result == ncclSuccess; at += WORK_ITEMS) {
    struct work work = {.scratch = c->scratch, .rank = (uint32_t)c->rank};
    void *parameters[] = {&work};
    for (size_t i = at; i < count && i < at + WORK_ITEMS; i++) {
      const struct collective *call = &calls[i].call;
      work.item[work.items++] =
          (struct work_item){(uintptr_t)call->send, (uintptr_t)call->receive,
                             collective_send_bytes(call, c->ranks, c->rank),
                             collective_receive_bytes(call, c->ranks, c->rank)};
    }
    result = CHECK_CUDA(cuLaunchKernel(c->kernels[calls[at].call.kind], 1, 1, 1, 1, 1, 1, 0,
                                       calls[0].stream, parameters, NULL));
  }
  return result;
}

/* ---- the exchange ---- */

static void perform(void *argument) {
  struct stream_batch *batch = argument;
  struct ncclComm *c = batch->communicator;
  pthread_mutex_lock(&c->performing);
  if (atomic_load_explicit(&c->state, memory_order_acquire) == ncclSuccess) {
    ncclResult_t result =
        collective_perform(&c->segment, &c->aborted, driver.host_view, batch->calls, batch->count);
    if (result != ncclSuccess)
      communicator_fail(c, result == ncclInProgress ? ncclInternalError : result);
  }
  pthread_mutex_unlock(&c->performing);
  if (!batch->captured)
    free(batch);
}

/* ---- enqueueing ---- */

/* A wrong address would end the process in the host function. */
static ncclResult_t check_buffer(const void *buffer, size_t bytes, const char *what) {
  unsigned type;
  if (bytes == 0)
    return ncclSuccess;
  for (int end = 0; end < 2; end++)
    if (driver.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                     (CUdeviceptr)buffer + (end == 0 ? 0 : bytes - 1)) !=
        CUDA_SUCCESS)
      return nccl_fail(ncclInvalidArgument, "%zu bytes at %p to %s are not CUDA memory", bytes,
                       buffer, what);
  return ncclSuccess;
}

static ncclResult_t check_buffers(const struct ncclComm *c, const struct stream_call *calls,
                                  size_t count) {
  ncclResult_t result = ncclSuccess;
  for (size_t i = 0; i < count && result == ncclSuccess; i++) {
    const struct collective *call = &calls[i].call;
    result = check_buffer(call->send, collective_send_bytes(call, c->ranks, c->rank), "read");
    if (result == ncclSuccess)
      result =
          check_buffer(call->receive, collective_receive_bytes(call, c->ranks, c->rank), "write");
  }
  return result;
}

static ncclResult_t is_capturing(CUstream stream, bool *capturing) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  ncclResult_t result = CHECK_CUDA(cuStreamIsCapturing(stream, &status));
  *capturing = status != CU_STREAM_CAPTURE_STATUS_NONE;
  return result;
}

/* The first stream waits for the communicator's last operation and for the other streams of the
   group. A capture has its own order: what is outside can't be waited for. */
static ncclResult_t join_streams(struct ncclComm *c, const struct stream_call *calls, size_t count,
                                 bool capturing) {
  CUstream stream = calls[0].stream;
  ncclResult_t result = ncclSuccess;
  if (!capturing && c->submitted && c->last_stream != stream)
    result = CHECK_CUDA(cuStreamWaitEvent(stream, c->last, 0));
  for (size_t i = 1; i < count && result == ncclSuccess; i++)
    if (calls[i].stream != stream && calls[i].stream != calls[i - 1].stream) {
      result = CHECK_CUDA(cuEventRecord(c->joined, calls[i].stream));
      if (result == ncclSuccess)
        result = CHECK_CUDA(cuStreamWaitEvent(stream, c->joined, 0));
    }
  return result;
}

/* And they for it. */
static ncclResult_t part_streams(struct ncclComm *c, const struct stream_call *calls, size_t count,
                                 bool capturing) {
  CUstream stream = calls[0].stream;
  CUevent event = capturing ? c->joined : c->last;
  ncclResult_t result = CHECK_CUDA(cuEventRecord(event, stream));
  if (!capturing) {
    c->last_stream = stream;
    c->submitted = true;
  }
  for (size_t i = 1; i < count && result == ncclSuccess; i++)
    if (calls[i].stream != stream && calls[i].stream != calls[i - 1].stream)
      result = CHECK_CUDA(cuStreamWaitEvent(calls[i].stream, event, 0));
  return result;
}

static ncclResult_t enqueue(struct ncclComm *c, struct stream_batch *batch,
                            const struct stream_call *calls) {
  CUstream stream = calls[0].stream;
  size_t count = batch->count; /* the host function may have freed the batch before the end */
  bool capturing = false;
  ncclResult_t result = check_buffers(c, calls, count);
  if (result == ncclSuccess)
    result = is_capturing(stream, &capturing);
  batch->captured = capturing;
  if (result == ncclSuccess)
    result = join_streams(c, calls, count, capturing);
  if (result == ncclSuccess)
    result = show_addresses(c, calls, count);
  if (result == ncclSuccess)
    result = CHECK_CUDA(cuLaunchHostFunc(stream, perform, batch));
  if (result != ncclSuccess) {
    free(batch);
    return result;
  }
  if (capturing) {
    batch->next = c->captured;
    c->captured = batch;
  }
  ncclResult_t shown = show_addresses(c, calls, count);
  result = part_streams(c, calls, count, capturing);
  return shown != ncclSuccess ? shown : result;
}

ncclResult_t stream_submit(struct ncclComm *c, const struct stream_call *calls, size_t count) {
  struct stream_batch *batch = malloc(sizeof *batch + count * sizeof batch->calls[0]);
  if (batch == NULL)
    return nccl_fail(ncclSystemError, "out of memory");
  batch->communicator = c;
  batch->next = NULL;
  batch->count = count;
  for (size_t i = 0; i < count; i++)
    batch->calls[i] = calls[i].call;
  ncclResult_t result = CHECK_CUDA(cuCtxPushCurrent(c->context));
  if (result != ncclSuccess) {
    free(batch);
    return result;
  }
  pthread_mutex_lock(&c->submitting);
  result = enqueue(c, batch, calls);
  pthread_mutex_unlock(&c->submitting);
  driver.cuCtxPopCurrent(NULL);
  return result;
}
