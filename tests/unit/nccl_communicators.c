/* Communicators' lives: made by processes, by threads and for all devices of one thread, non-blocking, split,
   shrunk, finalized; what wrong calls are answered. */
#include "tests/unit/nccl_ranks.h"
#include <pthread.h>

enum { DEVICES = 3, BYTES = 4096 };

/* The sum of `value` over a communicator. */
static int sum_over(ncclComm_t comm, CUstream stream, int value) {
  CUdeviceptr at = device_buffer(BYTES);
  *ints(at) = value;
  MUST_NCCL(ncclAllReduce((void *)at, (void *)at, 1, ncclInt32, ncclSum, comm, stream));
  MUST(cuStreamSynchronize(stream));
  int sum = *ints(at);
  MUST(cuMemFree(at));
  return sum;
}

static size_t free_bytes(void) {
  size_t available, all;
  MUST(cuMemGetInfo(&available, &all));
  return available;
}

/* ---- one process, several devices ---- */

static void context_of(int device) {
  CUcontext context;
  MUST(cuDevicePrimaryCtxRetain(&context, device));
  MUST(cuCtxSetCurrent(context));
}

/* One thread for all devices: without a group the first call would wait for the others for ever. */
static void test_init_all(struct rank *r) {
  ncclComm_t comms[DEVICES];
  CUdeviceptr at[DEVICES];
  CUstream streams[DEVICES];
  bool named = true, right = true;
  MUST_NCCL(ncclCommInitAll(comms, DEVICES, NULL));
  for (int i = 0; i < DEVICES; i++) {
    int count = 0, device = -1, rank = -1;
    MUST_NCCL(ncclCommCount(comms[i], &count));
    MUST_NCCL(ncclCommCuDevice(comms[i], &device));
    MUST_NCCL(ncclCommUserRank(comms[i], &rank));
    named = named && count == DEVICES && device == i && rank == i;
    context_of(i);
    MUST(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    at[i] = device_buffer(BYTES);
    *ints(at[i]) = i + 1;
  }
  MUST_NCCL(ncclGroupStart());
  for (int i = 0; i < DEVICES; i++)
    MUST_NCCL(
        ncclAllReduce((void *)at[i], (void *)at[i], 1, ncclInt32, ncclSum, comms[i], streams[i]));
  MUST_NCCL(ncclGroupEnd());
  for (int i = 0; i < DEVICES; i++) {
    MUST(cuStreamSynchronize(streams[i]));
    right = right && *ints(at[i]) == 6;
  }
  check(r, named, "ncclCommInitAll makes a communicator for each device of one thread");
  check(r, right, "and a group of their calls runs on all of them");
  for (int i = 0; i < DEVICES; i++)
    MUST_NCCL(ncclCommDestroy(comms[i]));
  int twice[] = {0, 0};
  comms[0] = comms[1] = (ncclComm_t)1;
  check(r,
        ncclCommInitAll(comms, 2, twice) == ncclInvalidUsage && mentions("both use device 0") &&
            comms[0] == NULL && comms[1] == NULL,
        "two ranks on one device of a process are refused");
}

struct thread_rank {
  int rank, sum;
  ncclUniqueId id;
};

static void *rank_in_thread(void *argument) {
  struct thread_rank *t = argument;
  ncclComm_t comm;
  CUstream stream;
  context_of(t->rank);
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST_NCCL(ncclCommInitRank(&comm, DEVICES, t->id, t->rank));
  for (int i = 0; i < 20; i++)
    t->sum = sum_over(comm, stream, t->rank + i);
  MUST_NCCL(ncclCommDestroy(comm));
  return NULL;
}

static void test_threads(struct rank *r) {
  pthread_t threads[DEVICES];
  struct thread_rank ranks[DEVICES];
  ncclUniqueId id;
  bool right = true;
  MUST_NCCL(ncclGetUniqueId(&id));
  for (int i = 0; i < DEVICES; i++) {
    ranks[i] = (struct thread_rank){.rank = i, .id = id};
    if (pthread_create(&threads[i], NULL, rank_in_thread, &ranks[i]) != 0)
      _exit(5);
  }
  for (int i = 0; i < DEVICES; i++) {
    pthread_join(threads[i], NULL);
    right = right && ranks[i].sum == 3 + 3 * 19;
  }
  check(r, right, "ranks may be threads with a device each");
}

static void test_alone(struct rank *r) {
  ncclComm_t comm;
  ncclUniqueId id;
  context_of(0);
  MUST_NCCL(ncclGetUniqueId(&id));
  MUST_NCCL(ncclCommInitRank(&comm, 1, id, 0));
  check(r, sum_over(comm, NULL, 5) == 5, "a communicator may have one rank");
  MUST_NCCL(ncclCommDestroy(comm));
}

static void one_process(struct rank *r) {
  test_init_all(r);
  test_threads(r);
  test_alone(r);
}

/* ---- several processes ---- */

static void test_memory(struct rank *r) {
  size_t before = free_bytes();
  void *own = NULL;
  join(r);
  size_t with = free_bytes();
  MUST_NCCL(ncclMemAlloc(&own, 3 * PIECE - 5));
  size_t allocated = with - free_bytes();
  *ints((CUdeviceptr)own) = r->rank;
  MUST_NCCL(ncclAllReduce(own, own, 1, ncclInt32, ncclMax, r->comm, r->stream));
  synchronise(r);
  bool usable = *ints((CUdeviceptr)own) == r->ranks - 1;
  MUST_NCCL(ncclMemFree(own));
  check(r, allocated == 3 * PIECE && usable && free_bytes() == with,
        "ncclMemAlloc gives memory for collectives, and ncclMemFree takes it back");
  MUST_NCCL(ncclCommDestroy(r->comm));
  check(r, with < before && free_bytes() == before,
        "a communicator has device memory of its own and gives it back");
}

/* The id has been used by then, so rank 0 makes another and the first communicator carries it. */
static ncclUniqueId another_id(struct rank *r) {
  ncclUniqueId id;
  CUdeviceptr at = device_buffer(BYTES);
  if (r->rank == 0) {
    MUST_NCCL(ncclGetUniqueId(&id));
    memcpy(view(at), &id, sizeof id);
  }
  MUST_NCCL(ncclBcast((void *)at, sizeof id, ncclInt8, 0, r->comm, r->stream));
  synchronise(r);
  memcpy(&id, view(at), sizeof id);
  MUST(cuMemFree(at));
  return id;
}

static void test_non_blocking(struct rank *r) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id = another_id(r);
  ncclComm_t comm = NULL;
  int count = 0;
  bool early = true;
  config.blocking = 0;
  if (r->rank == 0) { /* the others wait for the word, so that this one is surely not ready */
    early = ncclCommInitRankConfig(&comm, r->ranks, id, r->rank, &config) == ncclInProgress &&
            comm != NULL && ncclCommCount(comm, &count) == ncclInvalidArgument &&
            mentions("not been started");
    ncclResult_t state = ncclSuccess;
    MUST_NCCL(ncclCommGetAsyncError(comm, &state));
    early = early && state == ncclInProgress;
    atomic_store(&r->shared->word[0], 1);
  } else {
    await(&r->shared->word[0], 1);
    ncclCommInitRankConfig(&comm, r->ranks, id, r->rank, &config);
  }
  ncclResult_t state = ncclInProgress;
  for (int ms = 0; ms < 10000 && state == ncclInProgress; ms++) {
    MUST_NCCL(ncclCommGetAsyncError(comm, &state));
    pause_ms(1);
  }
  check(r, early, "a non-blocking communicator is in progress until the other ranks come");
  check(r, state == ncclSuccess && sum_over(comm, r->stream, 1) == r->ranks,
        "and works when its state is success");
  MUST_NCCL(ncclCommDestroy(comm));
}

static void test_split(struct rank *r) {
  ncclComm_t half = NULL, reversed = NULL, none = (ncclComm_t)1;
  int rank = -1, count = 0, place = -1;
  MUST_NCCL(ncclCommSplit(r->comm, r->rank % 2, 0, &half, NULL));
  MUST_NCCL(ncclCommUserRank(half, &rank));
  MUST_NCCL(ncclCommCount(half, &count));
  int expected = 0, members = 0;
  for (int other = r->rank % 2; other < r->ranks; other += 2) {
    expected += other;
    members++;
  }
  check(r,
        rank == r->rank / 2 && count == members && sum_over(half, r->stream, r->rank) == expected,
        "a split by color makes a communicator of each color");
  MUST_NCCL(ncclCommSplit(r->comm, 0, -r->rank, &reversed, NULL));
  MUST_NCCL(ncclCommUserRank(reversed, &place));
  check(r, place == r->ranks - 1 - r->rank && sum_over(reversed, r->stream, 1) == r->ranks,
        "keys order the ranks of a split");
  MUST_NCCL(ncclCommSplit(r->comm, r->rank == 0 ? NCCL_SPLIT_NOCOLOR : 7, 0, &none, NULL));
  check(r, r->rank == 0 ? none == NULL : sum_over(none, r->stream, 1) == r->ranks - 1,
        "a rank without color gets no communicator");
  ncclComm_t again = NULL, first = NULL, second = NULL;
  MUST_NCCL(ncclCommSplit(half, 0, 0, &again, NULL));
  check(r, sum_over(again, r->stream, 1) == count, "what was split can be split again");
  MUST_NCCL(ncclGroupStart());
  MUST_NCCL(ncclCommSplit(r->comm, 1, 0, &first, NULL));
  MUST_NCCL(ncclCommSplit(r->comm, 2 + r->rank, 0, &second, NULL));
  MUST_NCCL(ncclGroupEnd());
  check(r, sum_over(first, r->stream, 1) == r->ranks && sum_over(second, r->stream, 1) == 1,
        "a group may hold several splits");
  ncclComm_t made[] = {half, reversed, none, again, first, second};
  for (size_t i = 0; i < sizeof made / sizeof made[0]; i++)
    MUST_NCCL(ncclCommDestroy(made[i]));
}

/* Two communicators used in turn and at once. */
static void test_side_by_side(struct rank *r) {
  ncclComm_t other = NULL;
  CUstream stream;
  CUdeviceptr at = device_buffer(BYTES);
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST_NCCL(ncclCommSplit(r->comm, 0, 0, &other, NULL));
  ints(at)[0] = ints(at)[100] = r->rank + 1;
  for (int i = 0; i < 10; i++) {
    MUST_NCCL(ncclAllReduce((void *)at, (void *)at, 1, ncclInt32, ncclMax, r->comm, r->stream));
    MUST_NCCL(ncclAllReduce((void *)(at + 400), (void *)(at + 400), 1, ncclInt32, ncclMin, other,
                            stream));
  }
  MUST(cuStreamSynchronize(stream));
  synchronise(r);
  check(r, ints(at)[0] == r->ranks && ints(at)[100] == 1,
        "two communicators on two streams don't disturb each other");
  MUST_NCCL(ncclCommDestroy(other));
  MUST(cuMemFree(at));
}

static void test_shrink(struct rank *r) {
  ncclComm_t smaller = NULL;
  int last = r->ranks - 1;
  bool good = true;
  if (r->rank != last) {
    MUST_NCCL(ncclCommShrink(r->comm, &last, 1, &smaller, NULL, NCCL_SHRINK_DEFAULT));
    good = sum_over(smaller, r->stream, 1) == r->ranks - 1;
    MUST_NCCL(ncclCommDestroy(smaller));
  }
  check(r, good, "a communicator shrinks without the help of those excluded");
}

/* ---- wrong calls ---- */

static void test_arguments(struct rank *r) {
  CUdeviceptr at = device_buffer(BYTES);
  void *b = (void *)at, *handle = NULL;
  static int host[4];
  float half = 0.5f;
  ncclRedOp_t op;
  ncclComm_t c = r->comm;
  CUstream s = r->stream;
  check(r,
        ncclAllReduce(b, b, 1, ncclInt32, ncclSum, NULL, s) == ncclInvalidArgument &&
            ncclAllReduce(b, b, 1, (ncclDataType_t)99, ncclSum, c, s) == ncclInvalidArgument &&
            ncclAllReduce(b, b, 1, ncclInt32, (ncclRedOp_t)77, c, s) == ncclInvalidArgument &&
            ncclBroadcast(b, b, 1, ncclInt32, r->ranks, c, s) == ncclInvalidArgument &&
            ncclSend(b, 1, ncclInt32, -1, c, s) == ncclInvalidArgument &&
            ncclAllReduce(b, b, SIZE_MAX / 2, ncclInt32, ncclSum, c, s) == ncclInvalidArgument,
        "wrong communicators, types, operations, ranks and counts are invalid arguments");
  check(r,
        ncclAllReduce(host, b, 4, ncclInt32, ncclSum, c, s) == ncclInvalidArgument &&
            mentions("not CUDA memory") &&
            ncclAllReduce(b, b, (size_t)1 << 40, ncclInt32, ncclSum, c, s) == ncclInvalidArgument,
        "buffers that the device doesn't have, or not all of, are invalid arguments");
  check(r, ncclAllReduce(NULL, NULL, 0, ncclInt32, ncclSum, c, s) == ncclSuccess,
        "nothing is done for no elements");
  MUST_NCCL(ncclRedOpCreatePreMulSum(&op, &half, ncclFloat32, ncclScalarHostImmediate, c));
  bool other_type = ncclAllReduce(b, b, 1, ncclFloat64, op, c, s) == ncclInvalidArgument;
  MUST_NCCL(ncclRedOpDestroy(op, c));
  check(r,
        other_type && ncclAllReduce(b, b, 1, ncclFloat32, op, c, s) == ncclInvalidArgument &&
            ncclRedOpDestroy(op, c) == ncclInvalidArgument &&
            ncclRedOpDestroy(ncclSum, c) == ncclInvalidArgument,
        "a scaled sum holds for its type and until it is destroyed");
  *ints(at) = 41;
  MUST_NCCL(ncclGroupStart());
  ncclAllReduce(b, b, 1, ncclInt32, ncclSum, c, s);
  ncclAllReduce(b, b, 1, ncclInt32, (ncclRedOp_t)77, c, s);
  bool dropped = ncclGroupEnd() == ncclInvalidArgument;
  synchronise(r);
  check(r, dropped && *ints(at) == 41 && ncclGroupEnd() == ncclInvalidUsage,
        "a group with a wrong call fails as a whole and does nothing");
  check(r,
        ncclCommRegister(c, b, BYTES, &handle) == ncclSuccess && handle != NULL &&
            ncclCommDeregister(c, handle) == ncclSuccess &&
            ncclCommRegister(c, host, sizeof host, &handle) == ncclUnhandledCudaError,
        "buffers can be registered, others can't");
  MUST(cuMemFree(at));
}

static void test_starts(struct rank *r) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t comm = NULL;
  ncclUniqueId id;
  int version = 0;
  MUST_NCCL(ncclGetUniqueId(&id));
  config.magic = 1;
  bool magic = ncclCommInitRankConfig(&comm, 1, id, 0, &config) == ncclInvalidArgument;
  config = (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
  config.blocking = 2;
  check(r, magic && ncclCommInitRankConfig(&comm, 1, id, 0, &config) == ncclInvalidArgument,
        "a configuration that is none is an invalid argument");
  check(r,
        ncclCommInitRank(&comm, 2, id, 2) == ncclInvalidArgument &&
            ncclCommInitRank(&comm, 0, id, 0) == ncclInvalidArgument && comm == NULL,
        "so is a rank that isn't among the ranks");
  MUST_NCCL(ncclCommInitRank(&comm, 1, id, 0));
  MUST_NCCL(ncclCommDestroy(comm));
  ncclResult_t again = ncclCommInitRank(&comm, 1, id, 0);
  memset(&id, 7, sizeof id);
  check(r, again != ncclSuccess && ncclCommInitRank(&comm, 1, id, 0) == ncclInvalidArgument,
        "and a unique id that was used up or made up");
  MUST_NCCL(ncclGetVersion(&version));
  check(r, version >= 22800 && version < 30000, "the version is one of NCCL 2 (%d)", version);
}

static void test_fork(struct rank *r) {
  int status = 0;
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    int count;
    _exit(ncclCommCount(r->comm, &count) == ncclInvalidUsage ? 0 : 1);
  }
  waitpid(child, &status, 0);
  check(r, WIFEXITED(status) && WEXITSTATUS(status) == 0 && sum_over(r->comm, r->stream, 1) > 0,
        "a forked child is told that it can't use the communicator, and its parent can");
}

static void test_finalize(struct rank *r) {
  int count;
  MUST_NCCL(ncclCommFinalize(r->comm));
  check(r, ncclCommCount(r->comm, &count) == ncclInvalidUsage && mentions("finalized"),
        "a finalized communicator takes no more calls");
  MUST_NCCL(ncclCommDestroy(r->comm));
  check(r, ncclCommDestroy(NULL) == ncclSuccess, "destroying none is nothing");
}

static void several_processes(struct rank *r) {
  join(r);
  test_non_blocking(r);
  test_split(r);
  test_side_by_side(r);
  test_shrink(r);
  test_arguments(r);
  test_starts(r);
  test_fork(r);
  test_finalize(r);
}

int main(void) {
  setenv("GPUSIM_DEVICES", "3", 1);
  with_ranks(1, one_process, -1);
  setenv("GPUSIM_DEVICES", "1", 1);
  with_ranks(2, test_memory, -1);
  with_ranks(2, several_processes, -1);
  with_ranks(4, several_processes, -1);
  return tap_done();
}
