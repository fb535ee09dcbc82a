/* What the tests of the NCCL stand-in share: ranks as processes, each with a simulated GPU of its own. A
   check is made by every rank and holds when it holds in all of them. */
#ifndef NCCL_RANKS_H
#define NCCL_RANKS_H
#include "integration/pytorch/nccl/nccl.h"
#include "tests/unit/gpusim_driver.h"
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { MOST_RANKS = 4, MOST_CHECKS = 96, SENTENCE_BYTES = 160 };

struct rank_check {
  bool good;
  char sentence[SENTENCE_BYTES];
};

struct ranks_shared {
  _Atomic int id_ready;
  ncclUniqueId id;
  _Atomic int word[8]; /* for whatever a test wants to say across processes */
  _Atomic int checks[MOST_RANKS];
  struct rank_check check[MOST_RANKS][MOST_CHECKS];
};

struct rank {
  int rank, ranks;
  struct ranks_shared *shared;
  CUstream stream;
  ncclComm_t comm;
};

UNUSED_OK static void must_nccl(ncclResult_t result, const char *call, int line) {
  if (result == ncclSuccess)
    return;
  printf("# line %d: %s: %s: %s\n", line, call, ncclGetErrorString(result), ncclGetLastError(NULL));
  fflush(stdout);
  _exit(1);
}
#define MUST_NCCL(call) must_nccl((call), #call, __LINE__)

__attribute__((format(printf, 3, 4), unused)) static bool check(struct rank *r, bool good,
                                                                const char *sentence, ...) {
  int number = atomic_load(&r->shared->checks[r->rank]);
  va_list arguments;
  if (number == MOST_CHECKS)
    _exit(2);
  struct rank_check *c = &r->shared->check[r->rank][number];
  va_start(arguments, sentence);
  vsnprintf(c->sentence, sizeof c->sentence, sentence, arguments);
  va_end(arguments);
  c->good = good;
  atomic_store(&r->shared->checks[r->rank], number + 1);
  return good;
}

/* A device, a stream that doesn't wait for the legacy stream, and a communicator of all ranks. */
UNUSED_OK static void join(struct rank *r) {
  MUST(cuStreamCreate(&r->stream, CU_STREAM_NON_BLOCKING));
  MUST_NCCL(ncclCommInitRank(&r->comm, r->ranks, r->shared->id, r->rank));
}

UNUSED_OK static void synchronise(struct rank *r) {
  MUST(cuStreamSynchronize(r->stream));
}

/* Until a word is at least `value`; false after ten seconds. */
UNUSED_OK static bool await(_Atomic int *word, int value) {
  for (int ms = 0; ms < 10000; ms++) {
    if (atomic_load(word) >= value)
      return true;
    pause_ms(1);
  }
  return false;
}

/* The error that a communicator has after at most `ms`, or ncclSuccess. */
UNUSED_OK static ncclResult_t async_error(ncclComm_t comm, int ms) {
  ncclResult_t error = ncclSuccess;
  for (int i = 0; i < ms && error == ncclSuccess; i++) {
    MUST_NCCL(ncclCommGetAsyncError(comm, &error));
    if (error == ncclSuccess)
      pause_ms(1);
  }
  return error;
}

UNUSED_OK static void *view(CUdeviceptr address) {
  return gpusim_host_view((void *)address);
}

UNUSED_OK static CUdeviceptr device_buffer(size_t bytes) {
  CUdeviceptr address;
  MUST(cuMemAlloc(&address, bytes));
  return address;
}

UNUSED_OK static int *ints(CUdeviceptr at) {
  return view(at);
}

/* Whether the last error's text has these words. */
UNUSED_OK static bool mentions(const char *words) {
  bool found = strstr(ncclGetLastError(NULL), words) != NULL;
  if (!found)
    printf("# the error is: %s\n", ncclGetLastError(NULL));
  return found;
}

UNUSED_OK static struct ranks_shared *new_shared(void) {
  struct ranks_shared *shared =
      mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED)
    _exit(4);
  return shared;
}

/* A process that is one of `ranks`; it lives for `seconds` at most. */
UNUSED_OK static pid_t fork_rank(struct ranks_shared *shared, int rank, int ranks,
                                 void (*body)(struct rank *), unsigned seconds) {
  pid_t child = fork();
  if (child != 0)
    return child;
  struct rank r = {.rank = rank, .ranks = ranks, .shared = shared};
  alarm(seconds);
  if (rank == 0) {
    MUST_NCCL(ncclGetUniqueId(&shared->id));
    atomic_store(&shared->id_ready, 1);
  } else if (!await(&shared->id_ready, 1)) {
    _exit(3);
  }
  start();
  body(&r);
  fflush(stdout); /* what it says about failures */
  _exit(0);
}

/* One process for each rank. killed: a rank that is expected to die, or -1. */
UNUSED_OK static void with_ranks(int ranks, void (*body)(struct rank *), int killed) {
  struct ranks_shared *shared = new_shared();
  pid_t children[MOST_RANKS];
  fflush(stdout);
  for (int rank = 0; rank < ranks; rank++)
    children[rank] = fork_rank(shared, rank, ranks, body, 120);
  for (int rank = 0; rank < ranks; rank++) {
    int status = 0;
    waitpid(children[rank], &status, 0);
    if (rank == killed)
      tap_ok(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "rank %d was killed", rank);
    else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
      tap_ok(false, "rank %d of %d comes to its end (status %#x)", rank, ranks, (unsigned)status);
  }
  int most = 0;
  for (int rank = 0; rank < ranks; rank++)
    if (atomic_load(&shared->checks[rank]) > most)
      most = atomic_load(&shared->checks[rank]);
  for (int i = 0; i < most; i++) {
    bool good = true;
    const char *sentence = "";
    for (int rank = 0; rank < ranks; rank++) {
      if (rank == killed)
        continue;
      bool there = i < atomic_load(&shared->checks[rank]);
      if (there)
        sentence = shared->check[rank][i].sentence;
      if (!there || !shared->check[rank][i].good)
        printf("# rank %d %s\n", rank, there ? "fails" : "did not get there");
      good = good && there && shared->check[rank][i].good;
    }
    tap_ok(good, "%s", sentence);
  }
  munmap(shared, sizeof *shared);
}
#endif
