/* A driver program whose threads launch kernels whose names say nothing (unknown.cu), each over tensors of its own, from its first launch on,
   while memory comes and goes at the same addresses.

   threads KERNELS.ptx [name=value ...]
     threads=4
     steps=200        of each thread
     spread=0         1: backward works on another address each time, so many that they aren't all remembered
     frees=0          1: each thread frees its gradient behind each step and allocates it anew
     forks=0          children that are forked meanwhile, free what isn't theirs any more and end at once */
#include "tests/e2e/adam_program.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

/* p g m v */
enum { ARRAYS = 4, ELEMENTS = 32768, THREADS_MOST = 16, SPREAD_BYTES = 256, CHILD_SECONDS = 10 };
static CUcontext context;
static CUfunction slope, relax;
static size_t steps;
static bool frees, spread;
static _Atomic size_t ended;
static _Atomic CUdeviceptr shown; /* one thread's state, for the children */

static void launch(CUfunction function, CUstream stream, void **parameters) {
  CU(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
}

static void *work(void *unused) {
  int n = 32;
  CUdeviceptr a[ARRAYS], other;
  CUstream stream;
  (void)unused;
  CU(cuCtxSetCurrent(context));
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < ARRAYS; i++) {
    CU(cuMemAlloc(&a[i], ELEMENTS * sizeof(float)));
    CU(cuMemsetD8(a[i], 0, ELEMENTS * sizeof(float)));
  }
  CU(cuMemAlloc(&other, (steps + 1) * SPREAD_BYTES));
  atomic_store(&shown, a[ARRAYS - 1]);
  for (size_t step = 0; step < steps; step++) {
    void *backward[] = {&a[0], &a[1], &n}, *forward[] = {&a[0], &a[1], &a[2], &a[3], &n};
    CUdeviceptr each = other + (steps - step) * SPREAD_BYTES;
    void *elsewhere[] = {&each, &each, &n};
    launch(slope, stream, backward);
    if (spread)
      launch(slope, stream, elsewhere);
    launch(relax, stream, forward);
    if (!frees)
      continue;
    CU(cuStreamSynchronize(stream));
    CU(cuMemFree(a[1]));
    CU(cuMemAlloc(&a[1], ELEMENTS * sizeof(float)));
  }
  CU(cuStreamSynchronize(stream));
  atomic_fetch_add(&ended, 1);
  return unused;
}

/* A child can't use CUDA: its free has to be refused, not to wait for a thread that it doesn't have. */
static void fork_child(void) {
  int status = 0;
  const CUdeviceptr address = atomic_load(&shown);
  const pid_t child = fork();
  if (child == 0) {
    alarm(CHILD_SECONDS);
    _exit(cuMemFree(address) == CUDA_SUCCESS);
  }
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) ||
      WEXITSTATUS(status) != 0) {
    fprintf(stderr, "a child ended with %#x\n", (unsigned)status);
    _exit(1);
  }
}

int main(int count, char **list) {
  CUmodule module;
  pthread_t threads[THREADS_MOST];
  program_start(count, list, 1, "threads KERNELS.ptx [name=value ...]");
  const size_t started = number("threads", 4), forks = number("forks", 0);
  if (started < 1 || started > THREADS_MOST) {
    fprintf(stderr, "threads=%zu is not 1 to %d\n", started, THREADS_MOST);
    return 2;
  }
  steps = number("steps", 200);
  spread = option("spread", 0) != 0;
  frees = option("frees", 0) != 0;
  char *ptx = adam_read_file(list[1]);
  CU(cuModuleLoadData(&module, ptx));
  CU(cuModuleGetFunction(&slope, module, "lattice_slope"));
  CU(cuModuleGetFunction(&relax, module, "lattice_relax"));
  CU(cuCtxGetCurrent(&context));
  for (size_t i = 0; i < started; i++)
    if (pthread_create(&threads[i], NULL, work, NULL))
      return 2;
  size_t forked = 0;
  for (; forked < forks && atomic_load(&ended) < started; forked++)
    fork_child();
  for (size_t i = 0; i < started; i++)
    pthread_join(threads[i], NULL);
  CU(cuCtxSynchronize());
  free(ptx);
  printf("forked %zu\n", forked);
  return 0;
}
