/* The NCCL stand-in's work is a stream's work: it comes after what was queued before and before what is
   queued afterwards, nobody waits on the host, and buffers are seen by whoever watches launches. */
#include "tests/unit/nccl_ranks.h"

enum { SEEN, WORKED }; /* words shared by the ranks */

static void sum(struct rank *r, CUdeviceptr at, CUstream stream) {
  MUST_NCCL(ncclAllReduce((void *)at, (void *)at, 1, ncclInt32, ncclSum, r->comm, stream));
}

static int total(const struct rank *r) {
  return r->ranks * (r->ranks + 1) / 2;
}

/* Work before is held back on rank 0: the call returns, and nobody is done before that is let go. */
static void test_asynchronous(struct rank *r, CUfunction store, CUdeviceptr word) {
  struct gate gate = new_gate();
  bool waited = true;
  *ints(word) = -1;
  if (r->rank == 0)
    hold(gate, r->stream);
  MUST(launch_store(store, r->stream, word, (uint32_t)r->rank + 1));
  sum(r, word, r->stream);
  CUdeviceptr copy = word + 64;
  MUST(cuMemcpyDtoDAsync(copy, word, sizeof(int), r->stream));
  MUST(launch_store(store, r->stream, word, 0));
  pause_ms(50);
  waited = cuStreamQuery(r->stream) == CUDA_ERROR_NOT_READY;
  atomic_fetch_add(&r->shared->word[SEEN], 1);
  if (r->rank == 0) {
    await(&r->shared->word[SEEN], r->ranks);
    open_gate(gate);
  }
  synchronise(r);
  check(r, waited, "a call returns before the work ahead of it is done, on all ranks");
  check(r, *ints(copy) == total(r) && *ints(word) == 0,
        "what was queued before is seen, and what was queued afterwards sees the result");
}

/* A rank whose call waits for the others' can go on working on other streams. With one hardware queue what
   follows the call in its stream holds up the others, as on hardware. */
static void test_other_streams(struct rank *r, CUfunction store, CUdeviceptr word) {
  CUstream other;
  bool free_to_work = true;
  MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  *ints(word) = r->rank + 1;
  if (r->rank != 0) {
    sum(r, word, r->stream);
    MUST(launch_store(store, other, word + 64, 5));
    if (!with_one_queue())
      MUST(cuStreamSynchronize(other));
    free_to_work = with_one_queue() ||
                   (*ints(word + 64) == 5 && cuStreamQuery(r->stream) == CUDA_ERROR_NOT_READY);
    atomic_fetch_add(&r->shared->word[WORKED], 1);
  } else {
    await(&r->shared->word[WORKED], r->ranks - 1);
    sum(r, word, r->stream);
  }
  synchronise(r);
  check(r, free_to_work && *ints(word) == total(r),
        "other streams go on while a call waits for a rank that is late");
  MUST(cuStreamDestroy(other));
}

/* Calls on different streams of one communicator run in the order of the calls. */
static void test_order_of_streams(struct rank *r, CUfunction store, CUdeviceptr word) {
  CUstream other;
  struct gate gate = new_gate();
  bool waited = true;
  MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  *ints(word) = 0;
  hold(gate, r->stream);
  MUST(launch_store(store, r->stream, word, (uint32_t)r->rank + 1));
  sum(r, word, r->stream);
  sum(r, word, other);
  pause_ms(20);
  waited = cuStreamQuery(other) == CUDA_ERROR_NOT_READY;
  open_gate(gate);
  MUST(cuStreamSynchronize(other));
  check(r, waited && *ints(word) == total(r) * r->ranks,
        "a call on another stream comes after the one before it");
  MUST(cuStreamDestroy(other));
}

/* A group over two streams comes after the work of both, and both wait for it. */
static void test_group_of_streams(struct rank *r, CUfunction store, CUdeviceptr word) {
  CUstream other;
  struct gate gate = new_gate();
  CUdeviceptr second = word + 64;
  MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  *ints(word) = *ints(second) = 0;
  hold(gate, other);
  MUST(launch_store(store, other, second, (uint32_t)r->rank + 1));
  MUST(launch_store(store, r->stream, word, (uint32_t)r->rank + 1));
  MUST_NCCL(ncclGroupStart());
  sum(r, word, r->stream);
  sum(r, second, other);
  MUST_NCCL(ncclGroupEnd());
  MUST(cuMemcpyDtoDAsync(second + 64, second, sizeof(int), other));
  pause_ms(20);
  bool waited = cuStreamQuery(r->stream) == CUDA_ERROR_NOT_READY;
  open_gate(gate);
  MUST(cuStreamSynchronize(other));
  synchronise(r);
  check(r,
        waited && *ints(word) == total(r) && *ints(second) == total(r) &&
            *ints(second + 64) == total(r),
        "a group over two streams waits for both, and both for it");
  MUST(cuStreamDestroy(other));
}

static void test_default_stream(struct rank *r, CUfunction store, CUdeviceptr word) {
  MUST(launch_store(store, NULL, word, (uint32_t)r->rank + 1));
  sum(r, word, NULL);
  MUST(cuStreamSynchronize(NULL));
  bool legacy = *ints(word) == total(r);
  MUST(launch_store(store, CU_STREAM_PER_THREAD, word, (uint32_t)r->rank + 1));
  sum(r, word, CU_STREAM_PER_THREAD);
  MUST(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  check(r, legacy && *ints(word) == total(r),
        "the legacy and the per-thread default stream work like others");
}

/* A scalar on the device is read when the sum is made. */
static void test_device_scalar(struct rank *r, CUfunction store, CUdeviceptr word) {
  ncclRedOp_t op;
  CUdeviceptr scalar = word + 64;
  *ints(word) = 10;
  *ints(scalar) = 0;
  MUST_NCCL(ncclRedOpCreatePreMulSum(&op, (void *)scalar, ncclInt32, ncclScalarDevice, r->comm));
  MUST(launch_store(store, r->stream, scalar, (uint32_t)r->rank + 2));
  MUST_NCCL(ncclAllReduce((void *)word, (void *)word, 1, ncclInt32, op, r->comm, r->stream));
  MUST_NCCL(ncclRedOpDestroy(op, r->comm));
  synchronise(r);
  check(r, *ints(word) == 10 * (total(r) + r->ranks),
        "every rank's own scalar counts, as it is on the device when the sum is made");
}

/* Captured work is performed by each launch of the graph. */
static void test_graph(struct rank *r, CUfunction store, CUdeviceptr word) {
  CUgraph graph;
  CUgraphExec executable;
  MUST(cuStreamBeginCapture(r->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  sum(r, word, r->stream);
  MUST(cuStreamEndCapture(r->stream, &graph));
  MUST(cuGraphInstantiate(&executable, graph, 0));
  bool good = true;
  for (int run = 0; run < 3; run++) {
    MUST(launch_store(store, r->stream, word, (uint32_t)(r->rank + 1 + run)));
    MUST(cuGraphLaunch(executable, r->stream));
    synchronise(r);
    good = good && *ints(word) == total(r) + run * r->ranks;
  }
  check(r, good, "a captured collective is performed by every launch of its graph");
  MUST(cuGraphExecDestroy(executable));
  MUST(cuGraphDestroy(graph));
}

/* With fewer entries than a step has calls a submit waits for room, never for itself. */
static void test_full_queue(struct rank *r, CUfunction store, CUdeviceptr word) {
  MUST(launch_store(store, r->stream, word, 1));
  for (int i = 0; i < 30; i++)
    MUST_NCCL(ncclAllReduce((void *)word, (void *)word, 1, ncclInt32,
                            i % 2 == 0 ? ncclSum : ncclAvg, r->comm, r->stream));
  synchronise(r);
  int expected = 1;
  for (int i = 0; i < 30; i++)
    expected = i % 2 == 0 ? expected * r->ranks : expected;
  check(r, *ints(word) == expected, "many calls pass through a short hardware queue");
}

/* Memory taken away while a call that names it is queued. The context answers errors afterwards. */
static void test_named_in_launches(struct rank *r) {
  enum { BYTES = PIECE };
  CUmemGenericAllocationHandle handle = create(device_memory());
  CUdeviceptr at;
  MUST(cuMemAddressReserve(&at, BYTES, 0, 0, 0));
  MUST(cuMemMap(at, BYTES, 0, handle, 0));
  MUST(grant(at, BYTES, CU_MEM_LOCATION_TYPE_DEVICE));
  unsigned long long before = gpusim_counter_by_name("violations");
  struct gate gate = new_gate();
  hold(gate, r->stream);
  CUdeviceptr send = at + 512;
  CUdeviceptr other = device_buffer(4096);
  MUST_NCCL(
      ncclAllReduce((void *)send, (void *)other, 100, ncclFloat32, ncclSum, r->comm, r->stream));
  cuMemUnmap(at, BYTES);
  check(r, before == 0 && gpusim_counter_by_name("violations") > before,
        "taking a buffer away under a queued collective is a violation: its launch names it");
  open_gate(gate);
  MUST_NCCL(ncclCommAbort(r->comm));
}

static void body(struct rank *r) {
  CUmodule module;
  CUdeviceptr word = device_buffer(4096);
  CUfunction store = load_kernel(&module, "store");
  join(r);
  test_asynchronous(r, store, word);
  test_other_streams(r, store, word);
  test_order_of_streams(r, store, word);
  test_group_of_streams(r, store, word);
  test_default_stream(r, store, word);
  test_device_scalar(r, store, word);
  test_graph(r, store, word);
  test_full_queue(r, store, word);
  test_named_in_launches(r);
}

int main(void) {
  setenv("GPUSIM_DEPTH", "16", 0);
  setenv("GPUSIM_DELAY_US", "300", 0);
  with_ranks(2, body, -1);
  with_ranks(3, body, -1);
  return tap_done();
}
