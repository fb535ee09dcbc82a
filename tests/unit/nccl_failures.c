/* What goes wrong between ranks: killed, late, different or aborted ones. Every wait ends, with an error that
   says why, and nothing is left behind. */
#include "tests/unit/nccl_ranks.h"
#include <dirent.h>
#include <sched.h>

enum { BYTES = 4 << 20, PROMPT_MS = 5000 };

static uint64_t now_ms(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

static ncclResult_t sum(struct rank *r, CUdeviceptr at, size_t elements) {
  return ncclAllReduce((void *)at, (void *)at, elements, ncclInt32, ncclSum, r->comm, r->stream);
}

/* ---- a rank is killed ---- */

/* Rank 1 dies in the middle of a send that is larger than all buffers: it waits for a receiver. */
static void die(struct rank *r, CUdeviceptr at) {
  MUST_NCCL(ncclSend((void *)at, BYTES, ncclInt8, 0, r->comm, r->stream));
  atomic_store(&r->shared->word[0], 1);
  pause_ms(30);
  raise(SIGKILL);
}

static void killed_while_sending(struct rank *r) {
  CUdeviceptr at = device_buffer(BYTES);
  join(r);
  if (r->rank == 1)
    die(r, at);
  await(&r->shared->word[0], 1);
  pause_ms(60);
  uint64_t since = now_ms();
  if (r->rank == 0)
    MUST_NCCL(ncclRecv((void *)at, BYTES, ncclInt8, 1, r->comm, r->stream));
  else
    MUST_NCCL(sum(r, at, 100));
  ncclResult_t error = async_error(r->comm, PROMPT_MS);
  check(r, error == ncclRemoteError && mentions("waited for it") && now_ms() - since < PROMPT_MS,
        "a killed rank is an error of the others, soon");
  MUST(cuStreamSynchronize(r->stream));
  check(r, sum(r, at, 100) == ncclRemoteError, "streams go on, and later calls fail at once");
  int dead = 1;
  ncclComm_t survivors = NULL;
  MUST_NCCL(ncclCommShrink(r->comm, &dead, 1, &survivors, NULL, NCCL_SHRINK_ABORT));
  MUST_NCCL(ncclCommAbort(r->comm));
  r->comm = survivors;
  *(int *)view(at) = 1;
  MUST_NCCL(sum(r, at, 1));
  synchronise(r);
  check(r, *(int *)view(at) == r->ranks - 1, "the survivors can make a communicator of their own");
  MUST_NCCL(ncclCommDestroy(r->comm));
}

static void killed_in_collective(struct rank *r) {
  CUdeviceptr at = device_buffer(BYTES);
  join(r);
  MUST_NCCL(sum(r, at, 1000));
  synchronise(r);
  if (r->rank == 0)
    raise(SIGKILL);
  MUST_NCCL(sum(r, at, 1000));
  check(r, async_error(r->comm, PROMPT_MS) == ncclRemoteError,
        "also when it is the rank that made the unique id");
  uint64_t since = now_ms();
  MUST_NCCL(ncclCommAbort(r->comm));
  check(r, now_ms() - since < PROMPT_MS, "and aborting is quick then");
}

static unsigned dies_after_us;

/* Its descriptors go, and then it is dead: the other must understand every moment between. */
static void killed_before_joining(struct rank *r) {
  ncclComm_t comm = (ncclComm_t)1;
  if (r->rank == 0) {
    while (atomic_load(&r->shared->word[0]) == 0)
      sched_yield();
    usleep(dies_after_us);
    raise(SIGKILL);
  }
  atomic_store(&r->shared->word[0], 1);
  check(r,
        ncclCommInitRank(&comm, r->ranks, r->shared->id, r->rank) == ncclRemoteError &&
            comm == NULL && mentions("made the unique id"),
        "a unique id whose maker dies %u us after one starts to join leads nowhere, soon",
        dies_after_us);
}

/* What a rank wrote before it went still arrives. */
static void last_words(struct rank *r) {
  CUdeviceptr at = device_buffer(BYTES);
  join(r);
  if (r->rank == 0) {
    *(int *)view(at) = 4711;
    MUST_NCCL(ncclSend((void *)at, 1000, ncclInt8, 1, r->comm, r->stream));
    synchronise(r);
    raise(SIGKILL);
  }
  pause_ms(200);
  MUST_NCCL(ncclRecv((void *)at, 1000, ncclInt8, 0, r->comm, r->stream));
  synchronise(r);
  check(r, *(int *)view(at) == 4711 && async_error(r->comm, 50) == ncclSuccess,
        "what a rank sent before it died arrives");
  MUST_NCCL(ncclCommDestroy(r->comm));
}

/* ---- a rank doesn't come ---- */

static void aborted(struct rank *r) {
  CUdeviceptr at = device_buffer(BYTES);
  join(r);
  if (r->rank == 0) {
    MUST_NCCL(sum(r, at, 1000));
    pause_ms(50);
    uint64_t since = now_ms();
    MUST_NCCL(ncclCommAbort(r->comm));
    check(r, now_ms() - since < PROMPT_MS && cuStreamSynchronize(r->stream) == CUDA_SUCCESS,
          "aborting ends a call that waits for other ranks");
    atomic_store(&r->shared->word[0], 1);
    check(r, true, "and is an error of theirs");
    return;
  }
  await(&r->shared->word[0], 1);
  check(r, true, "aborting ends a call that waits for other ranks");
  MUST_NCCL(sum(r, at, 1000));
  check(r, async_error(r->comm, PROMPT_MS) == ncclRemoteError && mentions("aborted"),
        "and is an error of theirs");
  MUST_NCCL(ncclCommAbort(r->comm));
}

/* The stream hasn't come to the call yet: the abort doesn't wait for what is ahead of it for ever, and the host
   function finds its communicator when it comes at last. */
static void aborted_before_its_turn(struct rank *r) {
  CUdeviceptr at = device_buffer(BYTES);
  join(r);
  struct gate gate = new_gate();
  hold(gate, r->stream);
  MUST_NCCL(sum(r, at, 1000));
  ncclResult_t result = ncclCommAbort(r->comm);
  bool bounded = result == ncclInternalError && mentions("did not end");
  open_gate(gate);
  synchronise(r);
  check(r, bounded, "aborting is bounded when work ahead of a call doesn't end");
}

static void late(struct rank *r) {
  CUdeviceptr at = device_buffer(BYTES);
  join(r);
  if (r->rank == 0) {
    MUST_NCCL(sum(r, at, 1000));
    check(r,
          async_error(r->comm, PROMPT_MS) == ncclRemoteError && mentions("NCCL_STANDIN_TIMEOUT_MS"),
          "a rank that doesn't come in time is an error");
    atomic_store(&r->shared->word[0], 1);
  } else {
    await(&r->shared->word[0], 1);
    check(r, true, "a rank that doesn't come in time is an error");
  }
  MUST_NCCL(ncclCommAbort(r->comm));
}

static void never_joins(struct rank *r) {
  ncclComm_t comm = NULL;
  if (r->rank == 0)
    check(r,
          ncclCommInitRank(&comm, r->ranks, r->shared->id, 0) == ncclRemoteError &&
              mentions("NCCL_STANDIN_TIMEOUT_MS"),
          "so is one that never joins");
  else
    check(r, true, "so is one that never joins");
}

/* ---- ranks that differ ---- */

static void different_calls(struct rank *r) {
  CUdeviceptr at = device_buffer(BYTES);
  join(r);
  MUST_NCCL(sum(r, at, r->rank == 0 ? 1000 : 1001));
  ncclResult_t error = async_error(r->comm, PROMPT_MS);
  check(r, error == ncclInvalidUsage || error == ncclRemoteError,
        "calls that differ between ranks are an error of all");
  check(r, error == ncclRemoteError || mentions("all-reduce of 100"),
        "which says what each was about to do");
  MUST_NCCL(ncclCommAbort(r->comm));
}

static void different_ranks(struct rank *r) {
  ncclComm_t comm = NULL;
  int ranks = r->rank == 0 ? 2 : 3;
  ncclResult_t result = ncclCommInitRank(&comm, ranks, r->shared->id, r->rank);
  check(r, result == ncclInvalidArgument || result == ncclRemoteError,
        "ranks that disagree about their number don't start");
}

static void same_rank(struct rank *r) {
  ncclComm_t comm = NULL;
  ncclResult_t result = ncclCommInitRank(&comm, 2, r->shared->id, 0);
  check(r, result == ncclInvalidArgument || result == ncclRemoteError,
        "nor two processes with the same rank");
}

static void bad_timeout(struct rank *r) {
  ncclComm_t comm = NULL;
  setenv("NCCL_STANDIN_TIMEOUT_MS", "soon", 1);
  check(r,
        ncclCommInitRank(&comm, 1, r->shared->id, 0) == ncclInvalidUsage &&
            mentions("NCCL_STANDIN_TIMEOUT_MS=soon"),
        "a bad time-out is named with its value");
}

/* ---- nothing is left ---- */

static int entries_of(const char *folder) {
  int entries = 0;
  DIR *open = opendir(folder);
  if (open == NULL)
    return -1;
  while (readdir(open) != NULL)
    entries++;
  closedir(open);
  return entries;
}

static void all_die(struct rank *r) {
  CUdeviceptr at = device_buffer(BYTES);
  join(r);
  MUST_NCCL(sum(r, at, BYTES / sizeof(int)));
  synchronise(r);
  atomic_fetch_add(&r->shared->word[0], 1);
  await(&r->shared->word[0], r->ranks);
  raise(SIGKILL);
}

/* Whether all died and the folders have as many entries as before. */
static bool leaves_nothing(void) {
  struct ranks_shared *shared = new_shared();
  int files = entries_of("/dev/shm"), temporary = entries_of("/tmp"), killed = 0;
  pid_t children[2];
  fflush(stdout);
  for (int rank = 0; rank < 2; rank++)
    children[rank] = fork_rank(shared, rank, 2, all_die, 60);
  await(&shared->word[0], 2);
  for (int rank = 0; rank < 2; rank++) {
    int status = 0;
    waitpid(children[rank], &status, 0);
    killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }
  munmap(shared, sizeof *shared);
  return killed == 2 && entries_of("/dev/shm") == files && entries_of("/tmp") == temporary;
}

/* Other programs use these folders too: what is ours would be left every time. */
static void test_leaves_nothing(void) {
  bool nothing = false;
  for (int i = 0; i < 50 && !nothing; i++)
    nothing = leaves_nothing();
  tap_ok(nothing, "nothing is in /dev/shm and /tmp after all ranks were killed");
}

int main(void) {
  with_ranks(3, killed_while_sending, 1);
  with_ranks(3, killed_in_collective, 0);
  for (dies_after_us = 0; dies_after_us < 400; dies_after_us += 40)
    with_ranks(2, killed_before_joining, 0);
  with_ranks(2, last_words, 0);
  with_ranks(2, aborted, -1);
  with_ranks(2, different_calls, -1);
  with_ranks(1, bad_timeout, -1);
  setenv("NCCL_STANDIN_TIMEOUT_MS", "300", 1);
  with_ranks(1, aborted_before_its_turn, -1);
  with_ranks(2, late, -1);
  with_ranks(2, never_joins, -1);
  with_ranks(2, different_ranks, -1);
  with_ranks(2, same_rank, -1);
  test_leaves_nothing();
  return tap_done();
}
