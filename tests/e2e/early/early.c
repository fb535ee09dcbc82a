/* A driver program that trains with "backward" kernels between its steps, queues everything and
   synchronises only at the end; and that does one thing to its optimizer state between two steps, which
   state that was copied up early must not outlive. Prints hashes of p, m and v: the same are expected with
   and without the preload.

   early ADAM.ptx TOUCH.ptx [name=value ...]
     touch=none  between the steps `at` and `at` + 1, of the first tensor:
                   copy, memset, word, kernel, large, foreach, collective, graph: m is written to
                   other       by a kernel on another stream, which the next step waits for
                   late        the same, but between the step's two launches, of the second group's state
                   inverted    by a kernel on another stream, queued before the step but held up by a word that the
                               step's stream writes behind one two steps later (not on one hardware queue)
                   realloc     m is freed and allocated again, and the old numbers are copied back but for one
                   load        m and v are new allocations, with other numbers, as a checkpoint's
                   reorder     from then on the groups are stepped in the other order
                   shrink      from then on the first tensor is not stepped
                   grow        from then on one more tensor is stepped
                   skip        a step is left out
                   read        m is copied from
                   grab        more memory than is free is asked for, once
     at=5 steps=10 groups=2 (launches a step) rounds=1 (of a backward kernel's loop) entry=0 skew=0
     full=0      1: the device is full from the step before on, so that nothing can come home
     loop=0      1: touch at every step from `at` on
     found_inf=0 1: a found_inf that says 1 at step `at`
     many=0      so many tensors of 1,024 elements more
     sync=0      1: synchronise after every step */
#define _GNU_SOURCE
#include "tests/e2e/adam_program.h"
#include <inttypes.h>

enum {
  TENSORS_MOST = 700,
  LARGE_BYTES = 1616,
  LARGE_WORDS_AT = 1600,
  LIST_BYTES = 3368,
  LITTLE_MOST = 1024
};

static bool touches(const char *what) {
  const char *touch = setting("touch");
  return strcmp(touch ? touch : "none", what) == 0;
}

static struct adam_kernel kernel;
static struct adam_tensor tensors[TENSORS_MOST];
static size_t tensor_count, stepped_count, stepped_first, step_number;
static CUfunction twist, twist_large, collective, backward, foreach;
static CUstream stream, other_stream;
static CUdeviceptr work, scratch; /* a list in memory; room for a tensor's state */

static CUdeviceptr allocate(size_t bytes) {
  CUdeviceptr pointer;
  if (cuMemAlloc(&pointer, bytes) != CUDA_SUCCESS)
    CU(cuMemAlloc(&pointer, bytes));
  return pointer;
}

static size_t list_bytes(size_t t, size_t list) {
  return tensors[t].elements * kernel.element_bytes[list];
}

static void set_state(size_t t) {
  static const uint32_t patterns[ADAM_LISTS] = {0, 0, 0x3a83126f, 0x372727ac, 0x36f036ef};
  for (size_t list = 2; list < kernel.layout->lists; list++)
    CU(cuMemsetD8(tensors[t].lists[list], (unsigned char)(patterns[list] >> 24),
                  list_bytes(t, list)));
}

/* Little tensors' state lies side by side, m v m v, as allocators with a grain of 512 bytes lay it. */
static CUdeviceptr little_state(size_t bytes) {
  static CUdeviceptr at, end;
  if (at + bytes > end) {
    at = allocate(1 << 20);
    end = at + (1 << 20);
  }
  const CUdeviceptr given = at;
  at += (bytes + 511) / 512 * 512;
  return given;
}

static void make_tensor(size_t elements) {
  const size_t t = tensor_count++;
  const size_t skew = number("skew", 0);
  tensors[t].elements = elements;
  for (size_t list = 0; list < kernel.layout->lists; list++) {
    const size_t bytes = list_bytes(t, list) + (list < 2 ? 0 : skew);
    tensors[t].lists[list] =
        list < 2 || elements > LITTLE_MOST ? allocate(bytes) : little_state(bytes);
    tensors[t].lists[list] += list < 2 ? 0 : skew;
  }
  tensors[t].step = allocate(4);
  float *numbers = malloc(elements * sizeof *numbers);
  uint64_t random = ADAM_RANDOM_STATE + t * 977;
  for (int list = 0; list < 2; list++) {
    for (size_t i = 0; i < elements; i++)
      numbers[i] = (adam_random(&random) * 2 - 1) * (list ? 0.01f : 1.0f);
    CU(cuMemcpyHtoD(tensors[t].lists[list], numbers, list_bytes(t, (size_t)list)));
  }
  free(numbers);
  set_state(t);
}

/* ---- kernels ---- */

static CUfunction function(CUmodule module, const char *name) {
  CUfunction found;
  CU(cuModuleGetFunction(&found, module, name));
  return found;
}

static void load_kernels(const char *path) {
  CUmodule module;
  char *ptx = adam_read_file(path);
  CU(cuModuleLoadData(&module, ptx));
  twist = function(module, "twist");
  twist_large = function(module, "twist_large");
  collective = function(module, "ncclDevKernel_Twist");
  backward = function(module, "backward");
  const char *at = strstr(ptx, ".entry _ZN2at6native");
  char *name = strndup(at + 7, strcspn(at + 7, "("));
  foreach
    = function(module, name);
  free(name);
  free(ptx);
}

static void launch(CUfunction which, unsigned blocks, CUstream on, void **parameters) {
  CU(cuLaunchKernel(which, blocks, 1, 1, 128, 1, 1, 0, on, parameters, NULL));
}

static void twist_by_parameter(size_t t, CUstream on) {
  uint32_t count = (uint32_t)(list_bytes(t, 2) / 4);
  launch(twist, 4, on, (void *[]){&tensors[t].lists[2], &count});
}

static void run_backward(void) {
  for (size_t t = 0; t < tensor_count; t++) {
    uint32_t count = (uint32_t)tensors[t].elements, rounds = (uint32_t)number("rounds", 1);
    launch(backward, 4, stream,
           (void *[]){&tensors[t].lists[0], &tensors[t].lists[1], &count, &rounds});
  }
}

/* ---- what is done between two steps ---- */

static void twist_large_struct(void) {
  unsigned char large[LARGE_BYTES] = {0};
  const uint32_t count = (uint32_t)(list_bytes(0, 2) / 4);
  memcpy(large + LARGE_WORDS_AT, &tensors[0].lists[2], 8);
  memcpy(large + LARGE_WORDS_AT + 8, &count, 4);
  launch(twist_large, 4, stream, (void *[]){large});
}

static void twist_foreach(void) {
  unsigned char list[LIST_BYTES] = {0}, functor = 0;
  const int64_t words = (int64_t)list_bytes(0, 2) / 4;
  const unsigned blocks = (unsigned)((words + 65535) / 65536);
  memcpy(list, &tensors[0].lists[2], 8);
  memcpy(list + 880, &words, 8);
  for (unsigned i = 0; i < blocks; i++)
    memcpy(list + 2080 + i * 4, &(int){(int)i}, 4); /* every block's tensor is 0 */
  launch(foreach, blocks, stream, (void *[]){list, &functor});
}

static void make_work(void) {
  struct {
    CUdeviceptr words;
    uint32_t count;
  } item = {tensors[0].lists[2], (uint32_t)(list_bytes(0, 2) / 4)};
  CU(cuMemcpyHtoD(work, &item, sizeof item));
}

static CUgraphExec executable;
static void make_graph(void) {
  CUgraph graph;
  CU(cuStreamBeginCapture(other_stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  twist_by_parameter(0, other_stream);
  CU(cuStreamEndCapture(other_stream, &graph));
  CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
}

static void by_other_stream(size_t t) {
  CUevent behind;
  CU(cuEventCreate(&behind, CU_EVENT_DISABLE_TIMING));
  CU(cuEventRecord(behind, stream));
  CU(cuStreamWaitEvent(other_stream, behind, 0));
  twist_by_parameter(t, other_stream);
  CU(cuEventRecord(behind, other_stream));
}
static void join_other_stream(void) {
  CUevent behind;
  CU(cuEventCreate(&behind, CU_EVENT_DISABLE_TIMING));
  CU(cuEventRecord(behind, other_stream));
  CU(cuStreamWaitEvent(stream, behind, 0));
}

static void reallocate(void) {
  const size_t bytes = list_bytes(0, 2);
  CU(cuMemcpyDtoDAsync(scratch, tensors[0].lists[2], bytes, stream));
  CU(cuMemFree(tensors[0].lists[2]));
  const CUdeviceptr before = tensors[0].lists[2];
  tensors[0].lists[2] = allocate(bytes);
  fprintf(stderr, "m came back %s\n", tensors[0].lists[2] == before ? "in place" : "elsewhere");
  CU(cuMemcpyDtoDAsync(tensors[0].lists[2], scratch, bytes, stream));
  CU(adam_set(tensors[0].lists[2] + bytes / 8 * 4, 0.125f, 1, stream));
}

static void load(void) {
  for (size_t list = 2; list < kernel.layout->lists; list++)
    tensors[0].lists[list] = allocate(list_bytes(0, list));
  set_state(0);
}

/* A program that asks once: on a device where our own staging is all that is in the way. */
static void grab(void) {
  size_t free_bytes = 0, total = 0;
  CUdeviceptr pointer;
  CU(cuMemGetInfo(&free_bytes, &total));
  if (cuMemAlloc(&pointer, free_bytes + ((size_t)1 << 20)) == CUDA_SUCCESS) {
    fprintf(stderr, "all that was free and more\n");
    CU(cuMemFree(pointer));
  }
}

static void touch(void) {
  const CUdeviceptr m = tensors[0].lists[2];
  if (touches("copy"))
    CU(cuMemcpyDtoDAsync(m + 64, tensors[1].lists[0], 4096, stream));
  else if (touches("memset"))
    CU(cuMemsetD32Async(m + 128, 0x3a000000, 100, stream));
  else if (touches("word"))
    CU(cuStreamWriteValue32(stream, m + 4096, 0x3a000000, 0));
  else if (touches("kernel"))
    twist_by_parameter(0, stream);
  else if (touches("large"))
    twist_large_struct();
  else if (touches("foreach"))
    twist_foreach();
  else if (touches("collective"))
    launch(collective, 4, stream, (void *[]){&work});
  else if (touches("graph"))
    CU(cuGraphLaunch(executable, stream));
  else if (touches("other"))
    by_other_stream(0), join_other_stream();
  else if (touches("realloc"))
    reallocate();
  else if (touches("load"))
    load();
  else if (touches("shrink"))
    stepped_first = 1;
  else if (touches("grow"))
    stepped_count = tensor_count;
  else if (touches("grab"))
    grab();
  else if (touches("read"))
    CU(cuMemcpyDtoDAsync(scratch, m, list_bytes(0, 2), stream));
}

/* ---- training ---- */

static void step(struct adam_scalars *s, bool reordered, bool late) {
  const size_t groups = number("groups", 2), count = stepped_count - stepped_first;
  for (size_t t = 0; t < tensor_count; t++)
    CU(adam_set(tensors[t].step, (float)step_number, 1, stream));
  for (size_t i = 0; i < groups; i++) {
    const size_t group = reordered ? groups - 1 - i : i;
    const size_t from = stepped_first + count * group / groups,
                 to = stepped_first + count * (group + 1) / groups;
    if (late && i == 1) /* it ran beside the first launch */
      join_other_stream();
    CU(adam_step(&kernel, tensors + from, to - from, s, stream));
  }
}

/* Leaves less than two pieces free. */
static void fill_device(void) {
  size_t free_bytes = 0, total = 0;
  CU(cuMemGetInfo(&free_bytes, &total));
  const size_t piece = number("piece", 16384);
  if (free_bytes > 4 * piece)
    (void)allocate((free_bytes / piece - 1) * piece);
}

static void print_hashes(void) {
  CU(cuCtxSynchronize());
  for (size_t list = 0; list < kernel.layout->lists; list++) {
    uint64_t all = 0;
    for (size_t t = 0; t < tensor_count; t++) {
      const size_t bytes = list_bytes(t, list);
      unsigned char *copy = malloc(bytes);
      CU(cuMemcpyDtoH(copy, tensors[t].lists[list], bytes));
      all = all * 31 + adam_hash(copy, bytes);
      free(copy);
    }
    printf("%c %016" PRIx64 "\n", "pgmvx"[list], all);
  }
}

int main(int count, char **list) {
  CUmodule module;
  program_start(count, list, 2, "early ADAM.ptx TOUCH.ptx [name=value ...]");
  CU(adam_load(&kernel, &module, list[1], (int)number("entry", 0)));
  load_kernels(list[2]);
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&other_stream, CU_STREAM_NON_BLOCKING));

  static const size_t sizes[] = {70000, 65536, 65537, 2, 131072, 65535, 1, 90000};
  for (size_t t = 0; t < sizeof sizes / sizeof *sizes; t++)
    make_tensor(sizes[t]);
  for (size_t t = 0; t < number("many", 0); t++)
    make_tensor(LITTLE_MOST);
  stepped_count = touches("grow") ? tensor_count - 1 : tensor_count;
  work = allocate(64);
  scratch = allocate(list_bytes(0, 2));
  const CUdeviceptr found_inf = allocate(4), gate = allocate(4);
  CU(cuMemsetD32(gate, 0, 1));
  struct adam_scalars s = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .decay = 0.1, .eps = 1e-8};
  if (number("found_inf", 0))
    s.found_inf = (const float *)(uintptr_t)found_inf;
  make_work();
  CU(cuMemsetD32(found_inf, 0, 1));
  CU(cuCtxSynchronize());

  const size_t steps = number("steps", 10), at = number("at", 5);
  bool reordered = false;
  for (size_t i = 1; i <= steps; i++) {
    run_backward();
    step_number = i;
    CU(adam_set(found_inf, i == at, 1, stream));
    const bool now = number("loop", 0) ? i > at : i == at + 1;
    if (now)
      touch();
    if (now && touches("late"))
      by_other_stream(tensor_count - 1);
    if (now && touches("inverted")) {
      CU(cuStreamWaitValue32(other_stream, gate, (uint32_t)i, CU_STREAM_WAIT_VALUE_EQ));
      twist_by_parameter(0, other_stream);
    }
    if (i == at + 1 && touches("reorder"))
      reordered = true;
    if (!(now && touches("skip")))
      step(&s, reordered, now && touches("late"));
    if (i == at + 3 && touches("inverted")) {
      CU(cuStreamWriteValue32(stream, gate, (uint32_t)at + 1, 0));
      join_other_stream();
    }
    if (i + 1 == at && number("full", 0))
      fill_device();
    if (i == 3 && touches("graph"))
      make_graph();
    if (number("sync", 0))
      CU(cuCtxSynchronize());
  }
  print_hashes();
  printf("done\n");
  return 0;
}
