/* Disorder within the rules, contexts that end under load, and forks: what may happen does, what
   must not doesn't. Each check runs in a process of its own. */
#include "tests/unit/gpusim_driver.h"
#include <pthread.h>
#include <sys/mman.h>

static const char *seed;

enum { STREAMS = 4, ROUNDS = 40 };

/* Streams that are ordered by nothing, each with work that must stay in its order. */
static bool ordered_within_streams(void) {
  CUstream streams[STREAMS];
  CUmodule module;
  CUdeviceptr memory;
  bool right = true;
  setenv("GPUSIM_CHAOS", seed, 1);
  start();
  CUfunction function = load_kernel(&module, "store");
  MUST(cuMemAlloc(&memory, 4096));
  for (int i = 0; i < STREAMS; i++)
    MUST(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
  for (uint32_t round = 1; round <= ROUNDS; round++)
    for (int i = 0; i < STREAMS; i++)
      MUST(launch_store(function, streams[i], memory + 256u * (unsigned)i, round));
  MUST(cuCtxSynchronize());
  for (int i = 0; i < STREAMS; i++)
    right = right && device_word(memory + 256u * (unsigned)i) == ROUNDS;
  return right;
}

static int chaos(void) {
  return ordered_within_streams() && gpusim_counter_by_name("slow_operations") >= 2 &&
                 gpusim_counter_by_name("out_of_order") >= 10
             ? 0
             : 1;
}

static int calm(void) {
  return ordered_within_streams() && gpusim_counter_by_name("slow_operations") == 0 ? 0 : 1;
}

static int slow_count(void) {
  ordered_within_streams();
  return (int)gpusim_counter_by_name("slow_operations");
}

static int slow_operations(const char *value) {
  seed = value;
  return in_child(slow_count);
}

/* A producer's and a consumer's streams, joined by events: the order holds in any chaos. */
static int events_hold(void) {
  CUstream producer, consumer;
  CUevent made, taken;
  CUmodule module;
  CUdeviceptr memory;
  void *host;
  setenv("GPUSIM_CHAOS", "11", 1);
  start();
  CUfunction function = load_kernel(&module, "store");
  MUST(cuMemAlloc(&memory, 4096));
  MUST(cuMemHostAlloc(&host, 4096, 0));
  MUST(cuStreamCreate(&producer, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&consumer, CU_STREAM_NON_BLOCKING));
  MUST(cuEventCreate(&made, 0));
  MUST(cuEventCreate(&taken, 0));
  for (uint32_t i = 0; i < 60; i++) {
    MUST(launch_store(function, producer, memory, i));
    MUST(cuEventRecord(made, producer));
    MUST(cuStreamWaitEvent(consumer, made, 0));
    MUST(cuMemcpyDtoHAsync((uint32_t *)host + i, memory, 4, consumer));
    MUST(cuEventRecord(taken, consumer));
    MUST(cuStreamWaitEvent(producer, taken, 0));
  }
  MUST(cuCtxSynchronize());
  for (uint32_t i = 0; i < 60; i++)
    if (((uint32_t *)host)[i] != i)
      return 1;
  return 0;
}

/* ---- the end of a context under load ---- */

static CUcontext context;
static _Atomic bool stop;
static _Atomic int submitted;
static CUresult last_answer;

static void *submit_until_refused(void *unused) {
  CUstream stream;
  CUdeviceptr memory;
  MUST(cuCtxSetCurrent(context));
  MUST(cuMemAlloc(&memory, 4096));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUresult answer = CUDA_SUCCESS;
  while (answer == CUDA_SUCCESS && !stop) {
    answer = cuMemsetD8Async(memory, 1, 4096, stream);
    submitted++;
  }
  last_answer = answer;
  return unused;
}

static int destroy_under_load(void) {
  pthread_t thread;
  CUdeviceptr memory;
  CUcontext primary = start();
  MUST(cuCtxCreate(&context, NULL, 0, 0));
  pthread_create(&thread, NULL, submit_until_refused, NULL);
  while (submitted < 200)
    pause_ms(1);
  MUST(cuCtxDestroy(context));
  pause_ms(10);
  stop = true;
  pthread_join(thread, NULL);
  MUST(cuCtxSetCurrent(primary));
  return (last_answer == CUDA_ERROR_CONTEXT_IS_DESTROYED ||
          last_answer == CUDA_ERROR_INVALID_HANDLE) &&
                 cuMemAlloc(&memory, 4096) == CUDA_SUCCESS
             ? 0
             : 1;
}

static int reset_under_load(void) {
  pthread_t thread;
  size_t free_bytes, total;
  context = start();
  pthread_create(&thread, NULL, submit_until_refused, NULL);
  while (submitted < 200)
    pause_ms(1);
  MUST(cuDevicePrimaryCtxReset(0));
  pause_ms(10);
  stop = true;
  pthread_join(thread, NULL);
  MUST(cuMemGetInfo(&free_bytes, &total));
  return (last_answer == CUDA_ERROR_CONTEXT_IS_DESTROYED ||
          last_answer == CUDA_ERROR_INVALID_HANDLE) &&
                 free_bytes == total
             ? 0
             : 1;
}

/* ---- forks ---- */

static unsigned char *new_page(void) {
  return mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* The device goes on writing registered pages after a child got its copy of them: the parent sees
   those writes, and what the child does to its copy stays there. */
static int fork_with_registered(void) {
  start();
  CUdeviceptr memory;
  CUstream stream;
  struct gate gate = new_gate();
  MUST(cuMemAlloc(&memory, 4096));
  MUST(cuMemsetD8(memory, 0x77, 4096));
  MUST(cuCtxSynchronize());
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  unsigned char *pages = new_page();
  memset(pages, 0x11, 4096);
  MUST(cuMemHostRegister(pages, 4096, 0));
  hold(gate, stream);
  MUST(cuMemcpyDtoHAsync(pages, memory, 4096, stream));
  pid_t child = fork();
  if (child == 0) {
    bool own = pages[0] == 0x11;
    memset(pages, 0x33, 4096);
    _exit(own ? 0 : 1);
  }
  int status;
  waitpid(child, &status, 0);
  bool untouched = pages[0] == 0x11 && pages[4095] == 0x11;
  open_gate(gate);
  MUST(cuStreamSynchronize(stream));
  return status == 0 && untouched && pages[0] == 0x77 && pages[4095] == 0x77 ? 0 : 1;
}

static bool child_can_read(CUdeviceptr address) {
  pid_t child = fork();
  if (child == 0)
    _exit(cpu_can_read(address) ? 1 : 0);
  int status;
  waitpid(child, &status, 0);
  return status != 0;
}

/* What the driver mapped, it mapped for this process. */
static int children_without_pages(void) {
  void *pinned;
  CUdeviceptr piece;
  start();
  MUST(cuMemHostAlloc(&pinned, 4096, 0));
  MUST(cuMemAddressReserve(&piece, PIECE, 0, 0, 0));
  MUST(cuMemMap(piece, PIECE, 0, create(host_memory()), 0));
  MUST(grant(piece, PIECE, CU_MEM_LOCATION_TYPE_HOST_NUMA));
  return cpu_can_read((CUdeviceptr)pinned) && cpu_can_read(piece) &&
                 !child_can_read((CUdeviceptr)pinned) && !child_can_read(piece)
             ? 0
             : 1;
}

/* ---- sticky errors ---- */

static int sticky_everywhere(void) {
  CUmodule module, other;
  CUdeviceptr memory, more;
  CUstream stream, second;
  CUevent event;
  CUgraph graph;
  CUgraphExec exec;
  void *host;
  size_t free_bytes, total;
  int least, greatest;
  uint32_t word;
  start();
  MUST(cuMemAlloc(&memory, 4096));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuEventCreate(&event, 0));
  CUfunction function = load_kernel(&module, "store");
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(launch_store(function, stream, memory, 1));
  MUST(cuStreamEndCapture(stream, &graph));
  MUST(cuGraphInstantiate(&exec, graph, 0));
  MUST(launch_store(function, stream, memory + 4096, 5));
  while (cuStreamQuery(stream) == CUDA_ERROR_NOT_READY)
    pause_ms(1);
  const CUresult answers[] = {cuStreamSynchronize(stream),
                              cuStreamSynchronize(NULL),
                              cuStreamQuery(stream),
                              cuCtxSynchronize(),
                              cuEventRecord(event, stream),
                              cuEventQuery(event),
                              cuEventSynchronize(event),
                              cuEventCreate(&event, 0),
                              cuStreamWaitEvent(stream, event, 0),
                              cuStreamCreate(&second, 0),
                              cuMemAlloc(&more, 16),
                              cuMemFree(memory),
                              cuMemHostAlloc(&host, 4096, 0),
                              cuMemAllocManaged(&more, 4096, CU_MEM_ATTACH_GLOBAL),
                              cuMemAllocAsync(&more, 16, stream),
                              cuMemFreeAsync(memory, stream),
                              cuMemGetInfo(&free_bytes, &total),
                              cuMemcpyDtoH(&word, memory, 4),
                              cuMemcpyDtoHAsync(&word, memory, 4, stream),
                              cuMemsetD8(memory, 1, 16),
                              cuMemsetD8Async(memory, 1, 16, stream),
                              cuModuleLoadData(&other, TEST_PTX),
                              launch_store(function, stream, memory, 1),
                              cuGraphLaunch(exec, stream),
                              cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED),
                              cuStreamWriteValue32(stream, memory, 1, 0),
                              cuStreamWaitValue32(stream, memory, 1, 0),
                              cuCtxGetStreamPriorityRange(&least, &greatest)};
  for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
    if (answers[i] != CUDA_ERROR_ILLEGAL_ADDRESS) {
      printf("# call %zu answers %d\n", i, (int)answers[i]);
      return 1;
    }
  return 0;
}

int main(void) {
  seed = "3";
  tap_ok(in_child(chaos) == 0,
         "chaos slows and reorders what isn't ordered, counts it, and keeps each stream's order");
  seed = "0";
  tap_ok(in_child(calm) == 0, "seed 0 is calm");
  int third = slow_operations("3"), again = slow_operations("3"), fourth = slow_operations("4");
  tap_ok(third == again && (third != fourth || third != slow_operations("5")),
         "a seed makes the same disorder again, another one another");
  tap_ok(in_child(events_hold) == 0, "what events order stays ordered");
  tap_ok(in_child(destroy_under_load) == 0, "a context can be destroyed while a thread submits");
  tap_ok(in_child(reset_under_load) == 0, "and reset, which frees its streams and memory");
  tap_ok(in_child(fork_with_registered) == 0,
         "after a fork the device writes the parent's registered pages, the child its own");
  tap_ok(in_child(children_without_pages) == 0,
         "pinned pages and host pieces aren't in a child at all");
  tap_ok(in_child(sticky_everywhere) == 0, "a sticky error is answered by every kind of call");
  return tap_done();
}
