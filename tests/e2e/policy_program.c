/* A driver program whose optimizer has a few tensors in allocations of their own, and around whose steps things happen that decide where
   state lies: signals, a large block that comes and goes, tensors that join. Prints hashes of p, m and v; the same are expected with and
   without the preload.

   policy_program KERNEL.ptx [name=value ...]
     tensors=4 chunks=1   how many tensors, and 65,536 elements of each so many times
     steps=8
     contexts=1           each with tensors and a stream of its own, on as many devices as there are; a step is one of each, in turn
     alone=0              from this step on only the first context steps
     threads=0            1: a thread for each context, which steps without regard to the others, but for the signal, for which all wait: each
                          has steps to come when it is raised
     signal=0             before this step (from 1) SIGRTMIN+9 is raised, or another number=; 0: not
     busy=0               so many operations more are enqueued then in the last context
     again=0              before this step it is raised again
     handler=0            1: the program has a handler of its own for it; 2: ignores it; 3: sets its own behind the third step
     capture=0            1: a capture is open on another stream while that step is launched
     block=0              bytes of an allocation made before step block_at (2) and freed before block_until (4), as often as block_times (1), again
                          every block_every steps (8). As frameworks do it, a request that finds no memory is made once more
     join=0               before this step another tensor joins
     beside=FILE.ptx      behind every step the file's first kernel, whatever it is, launched beside_times (1) times
     sync=0               1: each step is waited for
     report=PREFIX        offload_report, where there is one, to PREFIX.STEP before each of the steps in at= (like 3,5)
     where=0              1: says on standard error before each step of at= which tensors the CPU can read: state in host memory */
#define _GNU_SOURCE
#include "tests/e2e/adam_program.h"
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <sys/uio.h>
#include <unistd.h>

enum { TENSORS_MOST = 64, CONTEXTS_MOST = 4 };

static struct trainer {
  CUcontext context;
  CUstream stream, other;
  struct adam_kernel kernel;
  struct adam_tensor tensors[TENSORS_MOST];
  size_t count;
  CUdeviceptr step_number;
  CUfunction beside;
} trainers[CONTEXTS_MOST];
static size_t trainer_count;

static CUdeviceptr allocate(size_t bytes) {
  CUdeviceptr pointer;
  if (cuMemAlloc(&pointer, bytes) != CUDA_SUCCESS)
    CU(cuMemAlloc(&pointer, bytes));
  return pointer;
}

static void add_tensor(struct trainer *trainer) {
  const size_t t = trainer->count++;
  struct adam_tensor *tensor = &trainer->tensors[t];
  tensor->elements = number("chunks", 1) * ADAM_CHUNK_ELEMENTS;
  tensor->step = trainer->step_number;
  float *numbers = malloc(tensor->elements * sizeof *numbers);
  uint64_t random = ADAM_RANDOM_STATE + t * 977 + (size_t)(trainer - trainers) * 31;
  for (size_t list = 0; list < trainer->kernel.layout->lists; list++) {
    tensor->lists[list] = allocate(tensor->elements * sizeof *numbers);
    for (size_t i = 0; i < tensor->elements; i++)
      numbers[i] = list < 2 ? (adam_random(&random) * 2 - 1) * (list ? 0.01f : 1) : 0;
    CU(cuMemcpyHtoD(tensor->lists[list], numbers, tensor->elements * sizeof *numbers));
  }
  free(numbers);
  CU(cuCtxSynchronize()); /* numbers are there before a stream uses them */
}

static void load_beside(struct trainer *trainer, const char *path) {
  char *ptx = adam_read_file(path), *name = strstr(ptx, ".entry ");
  CUmodule module;
  CU(cuModuleLoadData(&module, ptx));
  name = strndup(name + strlen(".entry "), strcspn(name + strlen(".entry "), "( \n"));
  CU(cuModuleGetFunction(&trainer->beside, module, name));
  free(name);
  free(ptx);
}

static void make_trainer(struct trainer *trainer, const char *kernel, int nth) {
  CUmodule module;
  CUdevice device;
  int devices;
  CU(cuDeviceGetCount(&devices));
  CU(cuDeviceGet(&device, nth % devices));
  if (nth < devices)
    CU(cuDevicePrimaryCtxRetain(&trainer->context, device));
  else
    CU(cuCtxCreate(&trainer->context, NULL, 0, device));
  CU(cuCtxSetCurrent(trainer->context));
  CU(adam_load(&trainer->kernel, &module, kernel, 0));
  CU(cuStreamCreate(&trainer->stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&trainer->other, CU_STREAM_NON_BLOCKING));
  CU(cuMemAlloc(&trainer->step_number, 64));
  if (setting("beside"))
    load_beside(trainer, setting("beside"));
  for (size_t t = 0; t < number("tensors", 4); t++)
    add_tensor(trainer);
}

static void launch_beside(struct trainer *trainer) {
  static unsigned char first[32768], zeroes[8];
  void *parameters[16] = {first};
  for (size_t i = 1; i < sizeof parameters / sizeof *parameters; i++)
    parameters[i] = zeroes;
  const CUdeviceptr at = trainer->step_number + 16;
  memcpy(first, &at, sizeof at);
  for (size_t i = 0; i < number("beside_times", 1); i++)
    CU(cuLaunchKernel(trainer->beside, 1, 1, 1, 512, 1, 1, 0, trainer->stream, parameters, NULL));
}

static void step(struct trainer *trainer, int n) {
  struct adam_scalars s = {.lr = 1e-2 / n, .beta1 = 0.9, .beta2 = 0.999, .decay = 0.1, .eps = 1e-8};
  CU(adam_set(trainer->step_number, (float)n, 1, trainer->stream));
  CU(adam_step(&trainer->kernel, trainer->tensors, trainer->count, &s, trainer->stream));
  for (size_t t = 0; t < trainer->count; t++) /* other gradients, from the parameters */
    CU(cuMemcpyDtoDAsync(trainer->tensors[t].lists[1],
                         trainer->tensors[(t + 1) % trainer->count].lists[0],
                         trainer->tensors[t].elements * sizeof(float) / 2, trainer->stream));
  if (trainer->beside)
    launch_beside(trainer);
  if (option("sync", 0) != 0)
    CU(cuStreamSynchronize(trainer->stream));
}

/* ---- what happens around steps ---- */

static volatile sig_atomic_t handled;
static void handle(int signal) {
  (void)signal;
  handled = handled + 1;
}

static int the_signal(void) {
  return (int)option("number", SIGRTMIN + 9);
}

static bool listed(int n) {
  const char *at = setting("at");
  for (char *end; at && *at; at = *end ? end + 1 : end)
    if (strtol(at, &end, 10) == n)
      return true;
  return false;
}

static bool cpu_reads(CUdeviceptr address) {
  char byte;
  const struct iovec here = {&byte, 1}, there = {(void *)(uintptr_t)address, 1};
  return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1;
}

static void tell_where(int n) {
  fprintf(stderr, "step %d:", n);
  for (size_t i = 0; i < trainer_count; i++)
    for (size_t t = 0; t < trainers[i].count; t++) {
      const bool m = cpu_reads(trainers[i].tensors[t].lists[2]),
                 v = cpu_reads(trainers[i].tensors[t].lists[3]);
      fprintf(stderr, " %s", m && v ? "host" : m || v ? "parted" : "device");
    }
  fprintf(stderr, "\n");
}

static void ask_report(int n) {
  char path[4096];
  int (*write)(const char *) =
      (int (*)(const char *))(uintptr_t)dlsym(RTLD_DEFAULT, "offload_report");
  snprintf(path, sizeof path, "%s.%d", setting("report"), n);
  const int error = write ? write(path) : 0;
  if (error)
    fprintf(stderr, "offload_report: %s\n", strerror(error));
}

static CUdeviceptr block;

static void come_and_go(int n) {
  const int at = (int)option("block_at", 2), every = (int)option("block_every", 8);
  const int lasts = (int)option("block_until", 4) - at, times = (int)option("block_times", 1);
  const int nth = n < at ? -1 : (n - at) / every;
  if (!number("block", 0) || nth < 0 || nth >= times)
    return;
  if ((n - at) % every == 0)
    block = allocate(number("block", 0));
  else if ((n - at) % every == lasts) {
    CU(cuMemFree(block));
    block = 0;
  }
}

static void before(int n) {
  if (n == (int)option("signal", 0) || n == (int)option("again", 0))
    raise(the_signal());
  if (n == 4 && option("handler", 0) == 3)
    signal(the_signal(), handle);
  if (n == (int)option("join", 0))
    add_tensor(&trainers[0]);
  come_and_go(n);
  if (!listed(n))
    return;
  for (size_t i = 0; i < trainer_count; i++) {
    CU(cuCtxSetCurrent(trainers[i].context));
    CU(cuStreamSynchronize(trainers[i].stream));
  }
  CU(cuCtxSetCurrent(trainers[0].context));
  if (setting("report"))
    ask_report(n);
  if (option("where", 0) != 0)
    tell_where(n);
}

static void keep_busy(struct trainer *trainer) {
  CU(cuCtxSetCurrent(trainer->context));
  for (size_t i = 0; i < number("busy", 0); i++)
    CU(cuMemsetD32Async(trainer->step_number + 32, 7, 1, trainer->stream));
  CU(cuCtxSetCurrent(trainers[0].context));
}

static void step_captured(struct trainer *trainer, int n) {
  CUgraph graph;
  CU(cuStreamBeginCapture(trainer->other, CU_STREAM_CAPTURE_MODE_RELAXED));
  CU(cuMemsetD32Async(trainer->step_number + 32, 7, 1, trainer->other));
  step(trainer, n);
  CU(cuStreamEndCapture(trainer->other, &graph));
  CU(cuGraphDestroy(graph));
}

static void steps_in_turn(int steps) {
  for (int n = 1; n <= steps; n++) {
    before(n);
    if (n == (int)option("signal", 0))
      keep_busy(&trainers[trainer_count - 1]);
    const bool alone = option("alone", 0) != 0 && n >= (int)option("alone", 0);
    for (size_t i = 0; i < (alone ? 1 : trainer_count); i++) {
      CU(cuCtxSetCurrent(trainers[i].context));
      if (option("capture", 0) != 0 && n == (int)option("signal", (double)steps))
        step_captured(&trainers[i], n);
      else
        step(&trainers[i], n);
    }
    CU(cuCtxSetCurrent(trainers[0].context));
  }
}

static pthread_barrier_t raised;

static void *steps_alone(void *argument) {
  struct trainer *trainer = argument;
  const int steps = (int)option("steps", 8);
  CU(cuCtxSetCurrent(trainer->context));
  for (int n = 1; n <= steps; n++) {
    if (n == (int)option("signal", 0)) {
      if (trainer == trainers)
        raise(the_signal());
      pthread_barrier_wait(&raised);
    }
    step(trainer, n);
  }
  CU(cuStreamSynchronize(trainer->stream));
  return NULL;
}

static void print_hashes(const struct trainer *trainer) {
  CU(cuCtxSetCurrent(trainer->context));
  CU(cuCtxSynchronize());
  for (size_t t = 0; t < trainer->count; t++) {
    const size_t bytes = trainer->tensors[t].elements * sizeof(float);
    unsigned char *copy = malloc(bytes);
    printf("tensor %zu", t);
    for (size_t list = 0; list < trainer->kernel.layout->lists; list++) {
      CU(cuMemcpyDtoH(copy, trainer->tensors[t].lists[list], bytes));
      printf(" %c %016" PRIx64, "pgmvx"[list], adam_hash(copy, bytes));
    }
    printf("\n");
    free(copy);
  }
}

int main(int count, char **list) {
  program_start(count, list, 1, "policy_program KERNEL.ptx [name=value ...]");
  const int own = (int)option("handler", 0);
  if (own == 1 || own == 2)
    signal(the_signal(), own == 1 ? handle : SIG_IGN);
  trainer_count = number("contexts", 1);
  for (size_t i = 0; i < trainer_count; i++)
    make_trainer(&trainers[i], list[1], (int)i);
  CU(cuCtxSetCurrent(trainers[0].context));
  if (option("threads", 0) != 0) {
    pthread_t threads[CONTEXTS_MOST];
    pthread_barrier_init(&raised, NULL, (unsigned)trainer_count);
    for (size_t i = 0; i < trainer_count; i++)
      pthread_create(&threads[i], NULL, steps_alone, &trainers[i]);
    for (size_t i = 0; i < trainer_count; i++)
      pthread_join(threads[i], NULL);
  } else {
    steps_in_turn((int)option("steps", 8)); /* 0: none */
    before((int)option("steps", 8) + 1);
  }
  for (size_t i = 0; i < trainer_count; i++)
    print_hashes(&trainers[i]);
  printf("handled %d\ndone\n", (int)handled);
  return 0;
}
