/* A driver-API program whose step is many launches of a fused Adam kernel, with an operation between two of them that
   may write what the later one reads, by any way that there is. Nothing synchronises until the end. Prints hashes of p, g,
   m, v; the same numbers are expected with and without the preload.

   ahead_program KERNEL.ptx [name=value ...]
     launches=4       in a step, each of tensors of its own
     tensors=2        of each launch
     elements=5000    of each tensor
     steps=4
     at=2             the launch of each step before which the operation comes; its gradients are G
     between=nothing  or
       memset copy upload kernel graph cooperative attributes
                      G is written on the program's stream by that
       write batch    the first element of G is written as a word of the stream
       thread         G is written on the program's stream by another thread
       event          G is written on another stream, which the program's waits for by event
       event_early    the same, but for the waiting enqueued before the step
       value          the program's stream waits for a word that another stream writes behind G
       legacy         G is written on the legacy stream (with blocking=1)
       legacy_event   G is written on another stream before the step, and the legacy stream's event between (with blocking=1)
       host callback  the learning rate, in memory of the host, is written by a function of the host (with lr_pointer=1)
       count          a foreach kernel adds to the step counters of this launch and those after it
       scale          a foreach kernel adds to G
       stranger       a kernel that isn't known adds to the step counters
       pool           memory is allocated in stream order
       unknown        an event is recorded
       refused        a launch without a configuration, which the driver refuses
     shared=0         1: this launch's gradients are those of the launch before; 2: its parameters
     newer=0          1: asks for a driver function by the version that had it first, 13.1; more: by that version
     lr_pointer=0 grad_scale=0 decay=0.1 */
#define _GNU_SOURCE
#include "tests/e2e/adam_program.h"
#include <inttypes.h>
#include <pthread.h>

enum { GRAIN = 128, LISTS = 4 };

static struct adam_kernel kernel;
static struct adam_tensor *tensors;
static size_t tensor_count, launch_tensors, array_elements;
static CUdeviceptr arrays[LISTS], steps, other, ballast;
static size_t ballast_bytes;
static CUstream stream, second;
static CUevent reached;
static CUfunction fill, adds, strange;
static CUgraphExec graph;
static float *host_lr;
static uint32_t *word, words_written;
static struct adam_tensor *target; /* the launch's first tensor: its gradient is G */

/* ---- G by all ways ---- */

static const char kernels[] =
    ".version 6.5\n.target sm_70\n.address_size 64\n"
    ".visible .entry fill(.param .u64 to, .param .f32 value, .param .u32 count) {\n"
    "  .reg .b64 a, b; .reg .b32 i, n, k; .reg .f32 f; .reg .pred p;\n"
    "  ld.param.u64 a, [to]; ld.param.f32 f, [value]; ld.param.u32 n, [count];\n"
    "  mov.u32 i, %ctaid.x; mov.u32 k, %ntid.x; mul.lo.u32 i, i, k; mov.u32 k, %tid.x; add.u32 i, "
    "i, k;\n"
    "  setp.ge.u32 p, i, n; @p ret;\n"
    "  mul.wide.u32 b, i, 4; add.u64 a, a, b; st.global.f32 [a], f; ret;\n}\n"
/* Each thread takes a block's whole chunk: PyTorch's list of one tensor each, its element, and what is added. */
#define ADDS(name)                                                                                 \
  ".visible .entry " name "(.param .align 8 .b8 list[3368], .param .align 1 .b8 functor[1],"       \
  " .param .align 1 .b8 plus[1], .param .f32 value) {\n"                                           \
  "  .reg .b64 l, a, b, n; .reg .b32 t, i, k; .reg .f32 f, g; .reg .pred p;\n"                     \
  "  mov.u64 l, list; ld.param.f32 f, [value]; mov.u32 k, %tid.x; setp.ne.u32 p, k, 0; @p ret;\n"  \
  "  mov.u32 i, %ctaid.x; cvt.u64.u32 b, i; add.u64 a, l, b; ld.param.u8 t, [a+1760];\n"           \
  "  mul.wide.u32 b, t, 8; add.u64 a, l, b; ld.param.u64 n, [a+880]; ld.param.u64 a, [a];\n"       \
  "again: setp.eq.u64 p, n, 0; @p ret;\n"                                                          \
  "  ld.global.f32 g, [a]; add.f32 g, g, f; st.global.f32 [a], g;\n"                               \
  "  add.u64 a, a, 4; sub.u64 n, n, 1; bra again;\n}\n"
#define FOREACH                                                                                    \
  "_ZN2at6native12_GLOBAL__N_125multi_tensor_apply_kernelINS1_18TensorListMetadataILi1EEENS1_"     \
  "21BinaryOpScalarFunctorIfLi1ELi1ELi0EEEJSt4plusIfEfEEEvT_T0_DpT1_"
    ADDS(FOREACH) ADDS("stranger");

/* By a kernel over a list, to tensors whose addresses and sizes are given. */
static void add_by(CUfunction function, const CUdeviceptr *addresses, const size_t *counts,
                   size_t count, float value) {
  enum { TENSORS = 110 };
  for (size_t from = 0; from < count; from += TENSORS) {
    unsigned char list[3368] = {0}, functor = 0, plus = 0;
    unsigned blocks = 0;
    for (size_t i = from; i < count && i < from + TENSORS; i++, blocks++) {
      memcpy(list + (i - from) * 8, &addresses[i], 8);
      memcpy(list + 880 + (i - from) * 8, &counts[i], 8);
      list[1760 + blocks] = (unsigned char)(i - from);
    }
    void *parameters[] = {list, &functor, &plus, &value};
    CU(cuLaunchKernel(function, blocks, 1, 1, 512, 1, 1, 0, stream, parameters, NULL));
  }
}

static void count_by(CUfunction function, size_t from) {
  CUdeviceptr *addresses = calloc(tensor_count, sizeof *addresses);
  size_t *counts = calloc(tensor_count, sizeof *counts);
  for (size_t t = from; t < tensor_count; t++) {
    addresses[t - from] = tensors[t].step;
    counts[t - from] = 1;
  }
  add_by(function, addresses, counts, tensor_count - from, 1);
  free(addresses);
  free(counts);
}

static CUresult fill_launch(const CUlaunchConfig *config, bool cooperative) {
  CUdeviceptr to = target->lists[1];
  float value = 0.25f;
  uint32_t count = (uint32_t)target->elements;
  void *parameters[] = {&to, &value, &count};
  const unsigned blocks = (count + 255) / 256;
  if (config)
    return cuLaunchKernelEx(config, fill, parameters, NULL);
  return cooperative
             ? cuLaunchCooperativeKernel(fill, blocks, 1, 1, 256, 1, 1, 0, stream, parameters)
             : cuLaunchKernel(fill, blocks, 1, 1, 256, 1, 1, 0, stream, parameters, NULL);
}

static void with_attributes(void) {
  CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PRIORITY, .value = {.priority = 0}};
  const CUlaunchConfig config = {.gridDimX = (unsigned)(target->elements + 255) / 256,
                                 .gridDimY = 1,
                                 .gridDimZ = 1,
                                 .blockDimX = 256,
                                 .blockDimY = 1,
                                 .blockDimZ = 1,
                                 .hStream = stream,
                                 .attrs = &attribute,
                                 .numAttrs = 1};
  CU(fill_launch(&config, false));
}

static CUresult set_target(CUstream on) {
  return adam_set(target->lists[1], 0.25f, target->elements, on);
}

/* Keeps a stream busy for some time. */
static void delay(CUstream on) {
  for (int i = 0; i < 24; i++)
    CU(cuMemcpyDtoDAsync(ballast, ballast + ballast_bytes, ballast_bytes, on));
}

static void *in_thread(void *context) {
  CU(cuCtxSetCurrent(context));
  CU(set_target(stream));
  return NULL;
}

static void by_thread(void) {
  CUcontext context;
  pthread_t thread;
  CU(cuCtxGetCurrent(&context));
  if (pthread_create(&thread, NULL, in_thread, context) || pthread_join(thread, NULL))
    exit(2);
}

static void change_lr(void *unused) {
  (void)unused;
  *host_lr *= 0.5f;
}

static void called_back(CUstream on, CUresult result, void *data) {
  (void)on;
  (void)result;
  change_lr(data);
}

static void from_pool(void) {
  CUdeviceptr pointer;
  CU(cuMemAllocAsync(&pointer, 4096, stream));
  CU(cuMemFreeAsync(pointer, stream));
}

static void write_word(bool batch) {
  const uint32_t bits = 0x3e800000; /* 0.25 */
  CUstreamBatchMemOpParams one;
  memset(&one, 0, sizeof one);
  one.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  one.writeValue.address = target->lists[1];
  one.writeValue.value = bits;
  CU(batch ? cuStreamBatchMemOp(stream, 1, &one, 0)
           : cuStreamWriteValue32(stream, target->lists[1], bits, 0));
}

static void wait_for_word(void) {
  delay(second);
  CU(set_target(second));
  CU(cuStreamWriteValue32(second, (CUdeviceptr)(uintptr_t)word, ++words_written, 0));
  CU(cuStreamWaitValue32(stream, (CUdeviceptr)(uintptr_t)word, words_written,
                         CU_STREAM_WAIT_VALUE_GEQ));
}

static void by_other_stream(void) {
  delay(second);
  CU(set_target(second));
  CU(cuEventRecord(reached, second));
}

static void capture(void) {
  CUgraph captured;
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CU(set_target(stream));
  CU(cuStreamEndCapture(stream, &captured));
  CU(cuGraphInstantiate(&graph, captured, 0));
}

static const char *between;
static bool is(const char *name) {
  return strcmp(between, name) == 0;
}

/* The second stream goes on behind this step's gradients; of work that the step waits for, what is enqueued before it. */
static void before_step(void) {
  const bool early = is("event_early") || is("legacy_event");
  if (!early && !is("event") && !is("value"))
    return;
  CU(cuEventRecord(reached, stream));
  CU(cuStreamWaitEvent(second, reached, 0));
  if (early)
    by_other_stream();
}

static void refused_launch(void) {
  if (cuLaunchKernelEx(NULL, adds, NULL, NULL) == CUDA_ERROR_INVALID_VALUE)
    return;
  fprintf(stderr, "a launch without a configuration was not refused\n");
  exit(2);
}

static void operation(size_t first) {
  const CUdeviceptr g = target->lists[1];
  const size_t bytes = target->elements * 4;
  static float host[64] = {0.5f, 0.25f};
  if (is("memset"))
    CU(set_target(stream));
  else if (is("copy"))
    CU(cuMemcpyDtoDAsync(g, other, bytes, stream));
  else if (is("upload"))
    CU(cuMemcpyHtoDAsync(g, host, sizeof host, stream));
  else if (is("kernel") || is("cooperative"))
    CU(fill_launch(NULL, is("cooperative")));
  else if (is("attributes"))
    with_attributes();
  else if (is("graph"))
    CU(cuGraphLaunch(graph, stream));
  else if (is("write") || is("batch"))
    write_word(is("batch"));
  else if (is("thread"))
    by_thread();
  else if (is("event"))
    by_other_stream();
  else if (is("value"))
    wait_for_word();
  else if (is("legacy"))
    CU(set_target(CU_STREAM_LEGACY));
  else if (is("legacy_event"))
    CU(cuEventRecord(reached, CU_STREAM_LEGACY));
  else if (is("host"))
    CU(cuLaunchHostFunc(stream, change_lr, NULL));
  else if (is("callback"))
    CU(cuStreamAddCallback(stream, called_back, NULL, 0));
  else if (is("count") || is("stranger"))
    count_by(is("count") ? adds : strange, first);
  else if (is("scale"))
    add_by(adds, &g, &target->elements, 1, 0.5f);
  else if (is("pool"))
    from_pool();
  else if (is("unknown"))
    CU(cuEventRecord(reached, stream));
  else if (is("refused"))
    refused_launch();
  else if (!is("nothing") && !is("event_early")) {
    fprintf(stderr, "between=%s: no such operation\n", between);
    exit(2);
  }
  if (is("event") || is("event_early"))
    CU(cuStreamWaitEvent(stream, reached, 0));
}

/* ---- the rest ---- */

static CUdeviceptr allocate(size_t bytes) {
  CUdeviceptr pointer;
  if (cuMemAlloc(&pointer, bytes) != CUDA_SUCCESS)
    CU(cuMemAlloc(&pointer, bytes));
  return pointer;
}

static void make(size_t launches) {
  launch_tensors = (size_t)option("tensors", 2);
  tensor_count = launches * launch_tensors;
  tensors = calloc(tensor_count, sizeof *tensors);
  const size_t elements = (size_t)option("elements", 5000);
  const size_t stride = (elements + GRAIN - 1) / GRAIN * GRAIN;
  array_elements = tensor_count * stride;
  for (size_t list = 0; list < LISTS; list++)
    arrays[list] = allocate(array_elements * 4);
  other = allocate(array_elements * 4);
  ballast_bytes = 1 << 20;
  ballast = allocate(2 * ballast_bytes);
  steps = allocate(tensor_count * 4 + 16);
  for (size_t t = 0; t < tensor_count; t++) {
    tensors[t].elements = elements;
    tensors[t].step = steps + t * 4;
    for (size_t list = 0; list < LISTS; list++)
      tensors[t].lists[list] = arrays[list] + t * stride * 4;
  }
  float *numbers = malloc(array_elements * 4);
  uint64_t state = ADAM_RANDOM_STATE;
  for (size_t list = 0; list < 3; list++) {
    for (size_t i = 0; i < array_elements; i++)
      numbers[i] = (adam_random(&state) * 2 - 1) * (list ? 0.01f : 1.0f);
    CU(cuMemcpyHtoD(list == 2 ? other : arrays[list], numbers, array_elements * 4));
  }
  free(numbers);
  CU(cuMemsetD32(arrays[2], 0x3a83126f, array_elements));
  CU(cuMemsetD32(arrays[3], 0x372727ac, array_elements));
  CU(cuMemsetD32(ballast, 0, ballast_bytes / 2));
  CU(cuMemsetD32(steps, 0, tensor_count + 4));
  CU(cuCtxSynchronize()); /* the other streams don't wait for the legacy one */
}

static void print_hashes(void) {
  unsigned char *copy = malloc(array_elements * 4);
  CU(cuCtxSynchronize());
  for (size_t list = 0; list < LISTS; list++) {
    CU(cuMemcpyDtoH(copy, arrays[list], array_elements * 4));
    printf("%c %016" PRIx64 "\n", "pgmv"[list], adam_hash(copy, array_elements * 4));
  }
  free(copy);
}

int main(int count, char **list) {
  CUmodule module, own;
  program_start(count, list, 1, "ahead_program KERNEL.ptx [name=value ...]");
  between = setting("between") ? setting("between") : "nothing";
  CU(adam_load(&kernel, &module, list[1], 0));
  CU(cuModuleLoadData(&own, kernels));
  CU(cuModuleGetFunction(&fill, own, "fill"));
  CU(cuModuleGetFunction(&adds, own, FOREACH));
  CU(cuModuleGetFunction(&strange, own, "stranger"));
  const unsigned flags = option("blocking", 0) != 0 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
  CU(cuStreamCreate(&stream, flags));
  CU(cuStreamCreate(&second, flags));
  CU(cuEventCreate(&reached, CU_EVENT_DISABLE_TIMING));
  void *memory;
  CU(cuMemHostAlloc(&memory, 4096, 0));
  memset(memory, 0, 4096);
  word = memory;
  host_lr = (float *)memory + 16;
  *host_lr = 1e-3f;

  const size_t launches = (size_t)option("launches", 4), at = (size_t)option("at", 2);
  make(launches);
  target = &tensors[at < launches ? at * launch_tensors : 0];
  const int shared = (int)option("shared", 0);
  for (size_t t = 0; t < launch_tensors && shared && at > 0 && at < launches; t++)
    tensors[at * launch_tensors + t].lists[shared == 1] =
        tensors[(at - 1) * launch_tensors + t].lists[shared == 1];
  struct adam_scalars s = {
      .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .decay = option("decay", 0.1), .eps = 1e-8};
  if (option("lr_pointer", 0) != 0)
    s.lr_pointer = host_lr;
  if (option("grad_scale", 0) != 0) {
    CU(adam_set(steps + tensor_count * 4, 8, 1, stream));
    s.grad_scale = (const float *)(uintptr_t)(steps + tensor_count * 4);
  }
  if (is("graph"))
    capture();
  const int version = (int)option("newer", 0);
  void *function = NULL;
  CUdriverProcAddressQueryResult status;
  if (version) {
    CU(cuGetProcAddress("cuLaunchHostFunc", &function, version > 1 ? version : 13010,
                        CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status));
    printf("a function: %d\n", function != NULL);
  }
  CU(cuCtxSynchronize());
  const int step_count = (int)option("steps", 4);
  for (int step = 0; step < step_count; step++) {
    /* New gradients, of which the operation writes some again. */
    CU(cuMemcpyDtoDAsync(arrays[1], step % 2 ? arrays[0] : other, array_elements * 4, stream));
    before_step();
    count_by(adds, 0);
    for (size_t i = 0; i < launches; i++) {
      if (i == at)
        operation(i * launch_tensors);
      CU(adam_step(&kernel, tensors + i * launch_tensors, launch_tensors, &s, stream));
    }
  }
  print_hashes();
  printf("done\n");
  return 0;
}
