/* The clock against times worked out by hand from the machines' rates (policy/gpus.def): each case says
   its arithmetic. Everything is declared 1000 times larger than it is, so that a megabyte here is a
   gigabyte there. Each runs in a process of its own and may be a hundredth off: what hands leave out
   are the microseconds of starts and calls. */
#include "tests/unit/gpusim_driver.h"
#include <math.h>

enum { MEGABYTE = 1000000, REGION = 6 * MEGABYTE };

/* Four regions on either side, one a stream, so that nothing is copied by two streams at once. */
static CUdeviceptr device;
static char *host;
static CUstream streams[4];
static CUfunction copying, looping;

/* copying: a word of each thread from one place to another. looping: 1000 rounds of four
 * instructions. */
#define CLOCK_PTX                                                                                  \
  ".version 6.5\n.target sm_70\n.address_size 64\n"                                                \
  ".visible .entry copying(.param .u64 to, .param .u64 from)\n{\n"                                 \
  " .reg .b64 %rd<4>;\n .reg .b32 %r<5>;\n"                                                        \
  " ld.param.u64 %rd0, [to];\n ld.param.u64 %rd1, [from];\n"                                       \
  " mov.u32 %r0, %ctaid.x;\n mov.u32 %r1, %ntid.x;\n mov.u32 %r2, %tid.x;\n"                       \
  " mad.lo.u32 %r3, %r0, %r1, %r2;\n mul.wide.u32 %rd2, %r3, 4;\n"                                 \
  " add.u64 %rd0, %rd0, %rd2;\n add.u64 %rd1, %rd1, %rd2;\n"                                       \
  " ld.global.u32 %r4, [%rd1];\n st.global.u32 [%rd0], %r4;\n ret;\n}\n"                           \
  ".visible .entry looping(.param .u64 to, .param .u64 from)\n{\n"                                 \
  " .reg .f32 %f<2>;\n .reg .b32 %r<2>;\n .reg .pred %p<2>;\n"                                     \
  " mov.u32 %r0, 0;\n mov.f32 %f0, 0f3F800000;\n"                                                  \
  "again:\n fma.rn.f32 %f0, %f0, %f0, %f0;\n add.u32 %r0, %r0, 1;\n"                               \
  " setp.lt.u32 %p0, %r0, 1000;\n @%p0 bra again;\n ret;\n}\n"

static void begin(const char *profile) {
  setenv("GPUSIM_PROFILE", profile, 1);
  setenv("GPUSIM_SCALE", "1000", 0);
  setenv("GPUSIM_MEMORY", "64MiB", 1);
  start();
  CUmodule module;
  MUST(cuMemAlloc(&device, 4 * REGION));
  MUST(cuMemHostAlloc((void **)&host, 5 * REGION, 0));
  for (int i = 0; i < 4; i++)
    MUST(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
  MUST(cuModuleLoadData(&module, CLOCK_PTX));
  MUST(cuModuleGetFunction(&copying, module, "copying"));
  MUST(cuModuleGetFunction(&looping, module, "looping"));
}

static size_t region(CUstream stream) {
  for (size_t i = 0; i < 4; i++)
    if (streams[i] == stream)
      return i * REGION;
  return 0;
}

static void up(size_t megabytes, CUstream stream) {
  const size_t at = region(stream);
  MUST(cuMemcpyHtoDAsync(device + at, host + at, megabytes * MEGABYTE, stream));
}

static void down(size_t megabytes, CUstream stream) {
  const size_t at = region(stream);
  MUST(cuMemcpyDtoHAsync(host + at, device + at, megabytes * MEGABYTE, stream));
}

static void launch(CUfunction function, unsigned blocks, const void *to, const void *from,
                   CUstream stream) {
  void *parameters[] = {&to, &from};
  MUST(cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
}

/* 50 ms, by GPUSIM_KERNEL_TIME; at 1000 times its size no kernel is tiny. */
static void kernel(CUstream stream) {
  launch(looping, 1, NULL, NULL, stream);
}

static void kernels_take(const char *times) {
  setenv("GPUSIM_KERNEL_TIME", times, 1);
}

static bool close_to(const char *what, double wanted_ms, double got_ns) {
  const bool good = fabs(got_ns / 1e6 - wanted_ms) <= 0.01 * wanted_ms + 0.02;
  printf("# %s: by hand %.3f ms, the clock %.3f\n", what, wanted_ms, got_ns / 1e6);
  return good;
}

static double counted(const char *name) {
  return (double)gpusim_counter_by_name(name);
}

/* All that was submitted, to the end of the device's work. */
static bool takes(double wanted_ms) {
  return close_to("total", wanted_ms, (double)gpusim_clock_report());
}

/* The counter after takes(). */
static bool is(const char *counter, double wanted_ms) {
  return close_to(counter, wanted_ms, counted(counter));
}

static int exit_of(bool good) {
  MUST(cuCtxSynchronize());
  fflush(stdout);
  return good ? 0 : 1;
}

/* ---- copies ---- */

/* 5 GB at 55.4 GB/s. */
static int copy_bound(void) {
  begin("h200");
  for (int i = 0; i < 5; i++)
    up(1, streams[0]);
  return exit_of(takes(5 / 55.4e-3) && is("clock_copy_exposed_ns", 5 / 55.4e-3));
}

/* Two streams up: one engine, hence the sum. */
static int same_direction(void) {
  begin("h200");
  up(5, streams[0]);
  up(5, streams[1]);
  return exit_of(takes(10 / 55.4e-3));
}

/* H200: 5 GB up at 51.8 end at 96.5 ms; of 5 GB down at 49 then 0.27 are left, at 53.5. */
static int both_directions(void) {
  begin("h200");
  up(5, streams[0]);
  down(5, streams[1]);
  double first = 5 / 51.8e-3;
  return exit_of(takes(first + (5 - first * 49e-3) / 53.5e-3));
}

/* A100: down at 24.5 ends at 204 ms, up at 12 meanwhile, the rest at 25.5: far more than half the
 * time of one direction after the other. */
static int both_directions_pcie4(void) {
  begin("a100-pcie4");
  up(5, streams[0]);
  down(5, streams[1]);
  double first = 5 / 24.5e-3;
  return exit_of(takes(first + (5 - first * 12e-3) / 25.5e-3));
}

/* 10 times 1 GB read and written at 4800 GB/s. */
static int device_copies(void) {
  begin("h200");
  for (int i = 0; i < 10; i++)
    MUST(cuMemcpyDtoDAsync(device, device + REGION, MEGABYTE, streams[0]));
  return exit_of(takes(20 / 4800e-3) && counted("clock_copy_ns") == 0);
}

/* Down to pageable memory at 13 GB/s; up, the CPU takes the bytes at 13 before they go at 55.4. */
static int pageable_copies(void) {
  begin("h200");
  char *pageable = malloc(MEGABYTE);
  MUST(cuMemcpyDtoHAsync(pageable, device, MEGABYTE, streams[0]));
  MUST(cuMemcpyHtoDAsync(device, pageable, MEGABYTE, streams[0]));
  free(pageable);
  return exit_of(takes(1 / 13e-3 + 1 / 13e-3 + 1 / 55.4e-3));
}

/* 9 GB from one device to another at 450 GB/s. */
static int peer_copies(void) {
  CUcontext other;
  CUdeviceptr there;
  setenv("GPUSIM_DEVICES", "2", 1);
  begin("h200");
  CUcontext own;
  MUST(cuCtxGetCurrent(&own));
  MUST(cuDevicePrimaryCtxRetain(&other, 1));
  MUST(cuCtxSetCurrent(other));
  MUST(cuMemAlloc(&there, 9 * MEGABYTE));
  MUST(cuCtxSetCurrent(own));
  MUST(cuMemcpyPeerAsync(there, other, device, own, 9 * MEGABYTE, streams[0]));
  return exit_of(takes(9 / 450e-3));
}

/* ---- kernels ---- */

/* 4000 blocks of 256 read and write 4 bytes each: 8.192 GB at 4800 GB/s. */
static int memory_bound_kernel(void) {
  begin("h200");
  launch(copying, 4000, (void *)device, (void *)(device + REGION), streams[0]);
  MUST(cuStreamSynchronize(streams[0]));
  return exit_of(takes(8.192 / 4800e-3));
}

/* 40 blocks of 256 threads, 4000 instructions each, 2 FLOP an instruction: 81.92 GFLOP at 67. */
static int compute_bound_kernel(void) {
  begin("h200");
  launch(looping, 40, NULL, NULL, streams[0]);
  MUST(cuStreamSynchronize(streams[0]));
  return exit_of(takes(81.92 / 67));
}

/* 1.024 GB read from the host's pages at 35.2 GB/s, then as much written there at 52.8. */
static int zero_copy_kernels(void) {
  begin("h200");
  launch(copying, 1000, (void *)device, host, streams[0]);
  launch(copying, 1000, host, (void *)device, streams[0]);
  MUST(cuStreamSynchronize(streams[0]));
  return exit_of(takes(1.024 / 35.2e-3 + 1.024 / 52.8e-3) && counted("clock_copy_ns") == 0);
}

/* 50 ms by name; another at 989 TFLOP/s. */
static int given_durations(void) {
  kernels_take("none*=1,loop*=50000,copying=9.89e12flop");
  begin("h200");
  kernel(streams[0]);
  launch(copying, 1, (void *)device, (void *)device, streams[0]);
  return exit_of(takes(60) && is("clock_kernel_ns", 60) &&
                 counted("clock_unmeasured_kernels") == 0);
}

/* Two streams share the multiprocessors, so large kernels go one after the other. */
static int large_kernels(void) {
  kernels_take("looping=50000us");
  begin("h200");
  kernel(streams[0]);
  kernel(streams[1]);
  return exit_of(takes(100));
}

static int tiny_kernels(void) {
  kernels_take("looping=50000us");
  setenv("GPUSIM_SCALE", "1", 1);
  begin("h200");
  kernel(streams[0]);
  kernel(streams[1]);
  return exit_of(takes(50));
}

/* 1000 kernels that do nothing start one after the other, 3 us each: the host is faster. */
static int launch_bound(void) {
  kernels_take("copying=0");
  begin("h200");
  for (int i = 0; i < 1000; i++)
    launch(copying, 1, (void *)device, (void *)(device + REGION), streams[0]);
  return exit_of(takes(3));
}

/* Copies of a word start one after the other, 3 us each, ten of them counted for one. */
static int counted_starts(void) {
  setenv("GPUSIM_STARTS", "10", 1);
  begin("h200");
  for (int i = 0; i < 100; i++)
    MUST(cuMemcpyHtoDAsync(device, host, 4, streams[0]));
  return exit_of(takes(3));
}

/* A kernel that hasn't run when the clock is asked has no measured work, and that is said. */
static int unmeasured_kernel(void) {
  begin("h200");
  struct gate gate = new_gate();
  hold(gate, streams[0]);
  kernel(streams[0]);
  gpusim_clock_report();
  const bool said = counted("clock_unmeasured_kernels") == 1;
  open_gate(gate);
  return exit_of(said);
}

/* ---- the CPU ---- */

static uint32_t *words(void) {
  return (uint32_t *)(void *)(host + 4 * REGION);
}

/* A piece of a step on the CPU: gradient down, ready; done, update up. */
static void piece(size_t bytes, uint32_t generation) {
  uint32_t *ready = words(), *done = words() + 1;
  MUST(cuMemcpyDtoHAsync(host, device, bytes, streams[0]));
  MUST(cuStreamWriteValue32(streams[0], (CUdeviceptr)ready, generation, 0));
  MUST(cuStreamWaitValue32(streams[1], (CUdeviceptr)done, generation, CU_STREAM_WAIT_VALUE_GEQ));
  MUST(cuMemcpyHtoDAsync(device + REGION, host + REGION, bytes, streams[1]));
  while (__atomic_load_n(ready, __ATOMIC_ACQUIRE) != generation)
    pause_ms(1);
  __atomic_store_n(done, generation, __ATOMIC_RELEASE);
}

static void clear_words(void) {
  words()[0] = words()[1] = 0;
}

/* 1 GB down at 53.5, 28 bytes of memory for 4 of it at 300, 1 GB up at 55.4. */
static int host_work_inferred(void) {
  begin("h200");
  clear_words();
  piece(MEGABYTE, 1);
  return exit_of(takes(1 / 53.5e-3 + 7 / 300e-3 + 1 / 55.4e-3) &&
                 is("clock_host_exposed_ns", 7 / 300e-3) && counted("clock_inferred_waits") == 1);
}

/* Two pieces of 1 GB, both fetched before the first is waited for: the first is worked on while the second
   comes down, the second while the first goes up. Beside a copy the CPU has what that leaves of 300. */
static int host_work_ahead(void) {
  enum { NEXT_LINE = 16 };
  const double copy = 1 / 53.5e-3, back = 1 / 55.4e-3;
  const double first = copy + (7 - copy * (300e-3 - 53.5e-3)) / 300e-3;
  const double second = back + (7 - back * (300e-3 - 55.4e-3)) / 300e-3;
  begin("h200");
  for (int i = 0; i < 2; i++) {
    uint32_t *line = words() + i * NEXT_LINE;
    line[0] = line[1] = 0;
  }
  for (int i = 0; i < 2; i++) {
    MUST(cuMemcpyDtoHAsync(host, device, MEGABYTE, streams[0]));
    MUST(cuStreamWriteValue32(streams[0], (CUdeviceptr)(words() + i * NEXT_LINE), 1, 0));
  }
  for (int i = 0; i < 2; i++) {
    uint32_t *line = words() + i * NEXT_LINE;
    MUST(cuStreamWaitValue32(streams[1], (CUdeviceptr)(line + 1), 1, CU_STREAM_WAIT_VALUE_GEQ));
    MUST(cuMemcpyHtoDAsync(device + REGION, host + REGION, MEGABYTE, streams[1]));
    while (__atomic_load_n(line, __ATOMIC_ACQUIRE) != 1)
      pause_ms(1);
    __atomic_store_n(line + 1, 1, __ATOMIC_RELEASE);
  }
  return exit_of(takes(copy + first + second + back) && counted("clock_inferred_waits") == 2);
}

/* Ten pieces of 0.1 GB on one of eight GPUs: 9 GB pass through host memory, of which it has 77 GB/s; the
   first piece alone comes down at 57.3. */
static int dram_bound(void) {
  begin("h100-8");
  clear_words();
  for (uint32_t i = 1; i <= 10; i++)
    piece(MEGABYTE / 10, i);
  return exit_of(takes(8.9 / 77e-3 + 0.1 / 57.3e-3));
}

/* The same with a drive of 6 GB/s that reads 2 bytes for each that comes down: 2 GB. */
static int drive_bound(void) {
  setenv("GPUSIM_HOST_WORK", "dram=7,drive_read=2,drive_write=0.5", 1);
  setenv("GPUSIM_QUEUES", "8", 1); /* in one, the wait for a piece holds up the next one's copy */
  begin("h100-8");
  clear_words();
  for (uint32_t i = 1; i <= 10; i++)
    piece(MEGABYTE / 10, i);
  return exit_of(takes(2 / 6e-3 + 0.1 / 57.3e-3 + 0.1 / 55.6e-3));
}

/* Declared: 3 GB of memory between the two words, begun when the first is written at 50 ms. */
static int host_work_declared(void) {
  kernels_take("looping=50000");
  begin("h200");
  clear_words();
  struct gpusim_host_work work = {.what = "a \"step\"",
                                  .after = words(),
                                  .after_value = 1,
                                  .until = words() + 1,
                                  .until_value = 1,
                                  .dram_bytes = 3 * MEGABYTE};
  gpusim_clock_host_work(&work);
  kernel(streams[0]);
  piece(0, 1);
  kernel(streams[1]);
  return exit_of(takes(50 + 3 / 300e-3 + 50) && is("clock_host_exposed_ns", 10) &&
                 counted("clock_inferred_waits") == 0);
}

/* The calling thread: 3 GB, then a drive writes 1.1 GB at 11, then the copy. */
static int calling_thread_works(void) {
  begin("h200");
  gpusim_clock_host_work(&(struct gpusim_host_work){.dram_bytes = 3 * MEGABYTE});
  gpusim_clock_host_work(&(struct gpusim_host_work){.drive_write_bytes = 11 * MEGABYTE / 10});
  up(1, streams[0]);
  return exit_of(takes(10 + 100 + 1 / 55.4e-3));
}

static void declare_30_ms(void *unused) {
  (void)unused;
  gpusim_clock_host_work(&(struct gpusim_host_work){.ns = 30000000});
}

static int host_function_works(void) {
  begin("h200");
  MUST(cuLaunchHostFunc(streams[0], declare_30_ms, NULL));
  up(1, streams[0]);
  MUST(cuStreamSynchronize(streams[0]));
  return exit_of(takes(30 + 1 / 55.4e-3) && is("clock_host_ns", 30));
}

/* ---- overlap ---- */

/* 1 GB up at 55.4 under a kernel of 50 ms. */
static int hidden_copy(void) {
  kernels_take("looping=50000");
  begin("h200");
  up(1, streams[0]);
  kernel(streams[1]);
  return exit_of(takes(50) && is("clock_copy_ns", 1 / 55.4e-3) &&
                 counted("clock_copy_exposed_ns") < 10000);
}

/* 5 GB, 90.3 ms, of which a kernel hides 50. */
static int hidden_kernel(void) {
  kernels_take("looping=50000");
  begin("h200");
  up(5, streams[0]);
  kernel(streams[1]);
  return exit_of(takes(5 / 55.4e-3) && is("clock_kernel_ns", 50) &&
                 is("clock_copy_exposed_ns", 5 / 55.4e-3 - 50) &&
                 is("clock_exposed_ns", 5 / 55.4e-3 - 50));
}

/* The CPU's 23.3 ms begin when 1 GB is down at 18.7 ms, under a kernel of 50. */
static int hidden_host_work(void) {
  kernels_take("looping=50000");
  begin("h200");
  clear_words();
  kernel(streams[2]);
  piece(MEGABYTE, 1);
  return exit_of(takes(1 / 53.5e-3 + 7 / 300e-3 + 1 / 55.4e-3) && is("clock_host_ns", 7 / 300e-3) &&
                 counted("clock_host_exposed_ns") < 10000);
}

/* Twenty pieces up, used, down again by turns, 4 GB each way: the first up alone at 55.4 and its
   kernel, the other 3.8 at 51.8 while down moves at 49, what is then left of that at 53.5. */
static int staged_pipeline(void) {
  CUevent arrived[20], used[20];
  kernels_take("looping=100");
  begin("h200");
  for (int i = 0; i < 20; i++) {
    MUST(cuEventCreate(&arrived[i], CU_EVENT_DISABLE_TIMING));
    MUST(cuEventCreate(&used[i], CU_EVENT_DISABLE_TIMING));
    const size_t at = (size_t)i * MEGABYTE / 5;
    MUST(cuMemcpyHtoDAsync(device + at, host + at, MEGABYTE / 5, streams[0]));
    MUST(cuEventRecord(arrived[i], streams[0]));
    MUST(cuStreamWaitEvent(streams[1], arrived[i], 0));
    kernel(streams[1]);
    MUST(cuEventRecord(used[i], streams[1]));
    MUST(cuStreamWaitEvent(streams[2], used[i], 0));
    MUST(cuMemcpyDtoHAsync(host + REGION + at, device + at, MEGABYTE / 5, streams[2]));
  }
  double first = 0.2 / 55.4e-3 + 0.1, both = 3.8 / 51.8e-3;
  return exit_of(takes(first + both + (4 - both * 49e-3) / 53.5e-3));
}

/* ---- order ---- */

/* 5 GB take 90.3 ms. Behind the second kernel in one queue they begin at 50 ms. */
static void two_kernels_and_a_copy(const char *queues) {
  kernels_take("looping=50000");
  setenv("GPUSIM_QUEUES", queues, 1);
  begin("h200");
  kernel(streams[0]);
  kernel(streams[0]);
  up(5, streams[1]);
}

static int one_queue(void) {
  two_kernels_and_a_copy("1");
  return exit_of(takes(50 + 5 / 55.4e-3));
}

static int eight_queues(void) {
  two_kernels_and_a_copy("8");
  return exit_of(takes(100));
}

/* With one queue a value wait holds up the kernel behind it until the CPU's 23.3 ms are over. */
static void kernel_behind_a_wait(const char *queues) {
  kernels_take("looping=100000");
  setenv("GPUSIM_QUEUES", queues, 1);
  begin("h200");
  clear_words();
  piece(MEGABYTE, 1);
  kernel(streams[2]);
}

static int wait_holds_up_one_queue(void) {
  kernel_behind_a_wait("1");
  return exit_of(takes(1 / 53.5e-3 + 7 / 300e-3 + 100));
}

static int wait_holds_up_its_own_queue(void) {
  kernel_behind_a_wait("8");
  return exit_of(takes(100));
}

/* Copy, event, kernel in another stream. */
static int event_order(void) {
  CUevent event;
  kernels_take("looping=50000");
  begin("h200");
  MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  up(1, streams[0]);
  MUST(cuEventRecord(event, streams[0]));
  MUST(cuStreamWaitEvent(streams[1], event, 0));
  kernel(streams[1]);
  return exit_of(takes(1 / 55.4e-3 + 50));
}

/* By the time the wait is submitted the copy has really ended: the clock must know the edge all the
 * same. */
static int event_order_after_the_fact(void) {
  CUevent event;
  kernels_take("looping=50000");
  begin("h200");
  MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  up(1, streams[0]);
  MUST(cuEventRecord(event, streams[0]));
  while (cuEventQuery(event) != CUDA_SUCCESS)
    pause_ms(1);
  MUST(cuStreamWaitEvent(streams[1], event, 0));
  kernel(streams[1]);
  return exit_of(takes(1 / 55.4e-3 + 50));
}

/* A blocking stream's copy, a kernel on the legacy stream, another copy: all in turn. */
static int legacy_order(void) {
  CUstream blocking;
  kernels_take("looping=50000");
  begin("h200");
  MUST(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  up(1, blocking);
  kernel(NULL);
  up(1, blocking);
  return exit_of(takes(2 / 55.4e-3 + 50));
}

/* One stream writes a word behind its kernel, another waits for it; the word was 1 already. */
static int value_order(void) {
  kernels_take("looping=50000");
  begin("h200");
  clear_words();
  MUST(cuStreamWriteValue32(streams[0], (CUdeviceptr)words(), 1, 0));
  kernel(streams[0]);
  MUST(cuStreamWriteValue32(streams[0], (CUdeviceptr)words(), 2, 0));
  MUST(cuStreamWaitValue32(streams[1], (CUdeviceptr)words(), 2, CU_STREAM_WAIT_VALUE_EQ));
  up(1, streams[1]);
  return exit_of(takes(50 + 1 / 55.4e-3) && counted("clock_inferred_waits") == 0);
}

/* ---- graphs ---- */

static CUgraphExec captured(CUstream stream) {
  CUgraph graph;
  CUgraphExec exec;
  MUST(cuStreamEndCapture(stream, &graph));
  MUST(cuGraphInstantiate(&exec, graph, 0));
  MUST(cuGraphDestroy(graph));
  return exec;
}

/* A graph of 5 GB up, a kernel, a host function and a value write; another waits for the word and
   copies 1 GB up. The capture takes no time, and each launch all of it. */
static int graph_nodes(void) {
  kernels_take("looping=50000");
  begin("h200");
  clear_words();
  MUST(cuStreamBeginCapture(streams[0], CU_STREAM_CAPTURE_MODE_RELAXED));
  up(5, streams[0]);
  kernel(streams[0]);
  MUST(cuLaunchHostFunc(streams[0], declare_30_ms, NULL));
  MUST(cuStreamWriteValue32(streams[0], (CUdeviceptr)words(), 1, 0));
  CUgraphExec writer = captured(streams[0]);
  MUST(cuStreamBeginCapture(streams[1], CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuStreamWaitValue32(streams[1], (CUdeviceptr)words(), 1, CU_STREAM_WAIT_VALUE_EQ));
  up(1, streams[1]);
  CUgraphExec waiter = captured(streams[1]);
  MUST(cuGraphLaunch(writer, streams[0]));
  MUST(cuGraphLaunch(waiter, streams[1]));
  MUST(cuCtxSynchronize());
  const double once = 5 / 55.4e-3 + 50 + 30;
  bool good = takes(once + 1 / 55.4e-3) && counted("clock_inferred_waits") == 0 &&
              counted("clock_assumed_waits") == 0;
  MUST(cuGraphLaunch(writer, streams[0]));
  MUST(cuCtxSynchronize());
  return exit_of(good && takes(2 * once + 1 / 55.4e-3) && is("clock_host_ns", 60));
}

/* One graph in two streams at once: each launch is measured by itself, 81.92 GFLOP at 67. */
static int graph_kernels(void) {
  CUgraph graph;
  CUgraphExec execs[2];
  begin("h200");
  MUST(cuStreamBeginCapture(streams[0], CU_STREAM_CAPTURE_MODE_RELAXED));
  launch(looping, 40, NULL, NULL, streams[0]);
  MUST(cuStreamEndCapture(streams[0], &graph));
  for (int i = 0; i < 2; i++) {
    MUST(cuGraphInstantiate(&execs[i], graph, 0));
    MUST(cuGraphLaunch(execs[i], streams[i]));
  }
  MUST(cuCtxSynchronize());
  return exit_of(takes(2 * 81.92 / 67) && counted("clock_unmeasured_kernels") == 0);
}

static int synchronised_stream(void) {
  kernels_take("looping=50000");
  begin("h200");
  kernel(streams[0]);
  MUST(cuStreamSynchronize(streams[0]));
  up(1, streams[1]);
  return exit_of(takes(50 + 1 / 55.4e-3));
}

static int synchronised_context(void) {
  kernels_take("looping=50000");
  begin("h200");
  kernel(streams[0]);
  MUST(cuCtxSynchronize());
  up(1, streams[1]);
  return exit_of(takes(50 + 1 / 55.4e-3));
}

/* The queue holds two: the third kernel, and the copy behind it, are submitted when the first ends. */
static int full_queue(void) {
  kernels_take("looping=20000");
  setenv("GPUSIM_DEPTH", "2", 1);
  setenv("GPUSIM_QUEUES", "8", 1);
  begin("h200");
  for (int i = 0; i < 3; i++)
    kernel(streams[0]);
  up(5, streams[1]);
  return exit_of(takes(20 + 5 / 55.4e-3));
}

/* A gate that the test opens: the log can't know what it waited for. */
static int unexplained_wait(void) {
  begin("h200");
  struct gate gate = new_gate();
  hold(gate, streams[0]);
  up(1, streams[0]);
  open_gate(gate);
  return exit_of(takes(1 / 55.4e-3) && counted("clock_inferred_waits") == 0 &&
                 counted("clock_assumed_waits") == 0);
}

/* The log's only write of the word comes behind the wait it would have to release: the CPU did. */
static int wait_that_the_log_contradicts(void) {
  begin("h200");
  clear_words();
  MUST(cuStreamWaitValue32(streams[0], (CUdeviceptr)words(), 1, CU_STREAM_WAIT_VALUE_GEQ));
  up(1, streams[0]);
  __atomic_store_n(words(), 1, __ATOMIC_RELEASE);
  MUST(cuStreamWriteValue32(streams[0], (CUdeviceptr)words(), 1, 0));
  return exit_of(takes(1 / 55.4e-3) && counted("clock_assumed_waits") == 1);
}

/* ---- the same times in every run ---- */

static char timeline[64];

static int timeline_of_a_run(void) {
  setenv("GPUSIM_TIMELINE", timeline, 1);
  setenv("GPUSIM_DELAY_US", "2000", 1);
  kernels_take("looping=50000");
  begin("rtx4090");
  clear_words();
  for (uint32_t i = 1; i <= 5; i++) {
    piece(MEGABYTE / 10, i);
    kernel(streams[i % 4]);
    down(1, streams[(i + 1) % 4]);
  }
  launch(copying, 100, (void *)(device + region(streams[3])), host + region(streams[3]),
         streams[3]);
  return exit_of(true);
}

static char *content_of(const char *path) {
  FILE *file = fopen(path, "r");
  char *content = calloc(1, 1 << 20);
  if (file == NULL || content == NULL || fread(content, 1, (1 << 20) - 1, file) == 0)
    printf("# %s can't be read\n", path);
  if (file != NULL)
    fclose(file);
  return content;
}

static char *timeline_with_seed(const char *seed) {
  snprintf(timeline, sizeof timeline, "/tmp/gpusim_clock_%ld.json", (long)getpid());
  setenv("GPUSIM_SEED", seed, 1);
  char *content = in_child(timeline_of_a_run) == 0 ? content_of(timeline) : NULL;
  unlink(timeline);
  return content;
}

static bool same_timelines(void) {
  char *one = timeline_with_seed("1"), *other = timeline_with_seed("77");
  const bool same = one != NULL && other != NULL && strcmp(one, other) == 0 &&
                    strstr(one, "\"name\":\"looping\"") != NULL;
  free(one);
  free(other);
  return same;
}

/* ---- settings ---- */

static const char *variable, *value, *profile;

static int setting(void) {
  if (profile != NULL)
    setenv("GPUSIM_PROFILE", profile, 1);
  setenv(variable, value, 1);
  return cuInit(0) == CUDA_SUCCESS ? 0 : 1;
}

static bool refused(const char *with_profile, const char *name, const char *text_value) {
  profile = with_profile;
  variable = name;
  value = text_value;
  return in_child(setting) == 87;
}

static int no_clock(void) {
  start();
  gpusim_clock_host_work(&(struct gpusim_host_work){.ns = 1000});
  MUST(cuMemAlloc(&device, MEGABYTE));
  MUST(cuMemsetD8(device, 0, MEGABYTE));
  return gpusim_clock_report() == 0 ? 0 : 1;
}

int main(void) {
  const struct {
    int (*check)(void);
    const char *sentence;
  } cases[] = {
      {copy_bound, "copy-bound: copies of one stream take their bytes at the link's rate"},
      {same_direction, "copies of two streams in one direction share an engine"},
      {both_directions, "overlapped both ways: PCIe 5 is nearly full duplex"},
      {both_directions_pcie4, "overlapped both ways: PCIe 4 starves the way up"},
      {device_copies, "copies on the device read and write its memory"},
      {pageable_copies, "pageable copies are slow, and the CPU takes part"},
      {peer_copies, "copies between devices take the peer link"},
      {memory_bound_kernel, "kernel-bound: a copying kernel takes its bytes at the memory's rate"},
      {compute_bound_kernel, "kernel-bound: a looping kernel takes its instructions"},
      {zero_copy_kernels, "kernels on host pages take the link at their own rates"},
      {given_durations, "kernels take the durations given by name, in time or FLOPs"},
      {large_kernels, "large kernels of two streams go one after the other"},
      {tiny_kernels, "tiny ones side by side"},
      {launch_bound, "empty kernels take their starts"},
      {counted_starts, "starts count as often as GPUSIM_STARTS says"},
      {unmeasured_kernel, "a kernel without measured work is counted"},
      {host_work_inferred, "the CPU's work between two words is inferred from what came down"},
      {host_work_ahead, "also when pieces come down ahead of the waits for them"},
      {dram_bound, "DRAM-bound: pieces on the CPU take all bytes at its share of host memory"},
      {drive_bound, "drive-bound: the drive's part is the longest"},
      {host_work_declared, "declared work lies between its words"},
      {calling_thread_works, "work of the calling thread delays what it submits"},
      {host_function_works, "work of a host function lasts on its stream"},
      {hidden_copy, "overlapped: a longer kernel hides a copy"},
      {hidden_kernel, "overlapped: a longer copy is exposed but for the kernel's time"},
      {hidden_host_work, "overlapped: a longer kernel hides the CPU's work"},
      {staged_pipeline, "overlapped: a pipeline up, kernel, down takes its longest direction"},
      {one_queue, "one queue: work behind a kernel that waits for its stream waits, too"},
      {eight_queues, "eight queues: it doesn't"},
      {wait_holds_up_one_queue, "one queue: a value wait holds up all streams"},
      {wait_holds_up_its_own_queue, "eight queues: it holds up its own"},
      {event_order, "an event orders two streams"},
      {event_order_after_the_fact, "also when it had really happened before the wait"},
      {legacy_order, "the legacy stream and blocking streams take turns"},
      {value_order, "a value written by one stream releases the other"},
      {graph_nodes,
       "each launch of a graph takes the time of its copies, kernels, functions and words"},
      {graph_kernels, "one graph in two streams: each launch's kernel is measured by itself"},
      {synchronised_stream, "the host waits for a stream"},
      {synchronised_context, "the host waits for the context"},
      {full_queue, "a full queue delays what the host submits next"},
      {unexplained_wait, "a wait that nothing explains takes no time"},
      {wait_that_the_log_contradicts, "a wait that the log contradicts ends, and is counted"},
      {no_clock, "without GPUSIM_PROFILE there is no clock"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    tap_ok(in_child(cases[i].check) == 0, "%s", cases[i].sentence);
  tap_ok(same_timelines(), "delays change nothing in the timeline");
  tap_ok(refused(NULL, "GPUSIM_PROFILE", "h300"), "an unknown machine is refused");
  tap_ok(refused(NULL, "GPUSIM_TIMELINE", "/tmp/x"), "a timeline needs a machine");
  tap_ok(refused(NULL, "GPUSIM_KERNEL_TIME", "a=1"), "durations need a machine");
  tap_ok(refused("h200", "GPUSIM_KERNEL_TIME", "a=1s"), "durations in other units are refused");
  tap_ok(refused("h200", "GPUSIM_KERNEL_TIME", "=1"), "a duration without a pattern is refused");
  tap_ok(refused("h200", "GPUSIM_HOST_WORK", "disk=1"), "unknown work of the CPU is refused");
  tap_ok(refused("h200", "GPUSIM_HOST_WORK", "dram=-1"), "negative work is refused");
  tap_ok(refused("h200", "GPUSIM_SCALE", "0"), "a scale of nothing is refused");
  tap_ok(refused("h200", "GPUSIM_STARTS", "0"), "so are starts that take no time");
  tap_ok(refused(NULL, "GPUSIM_REPLAYS", "/dev/null"), "replays need a machine");
  tap_ok(refused("h200", "GPUSIM_REPLAYS", "/nowhere"),
         "a file of replays that isn't there is refused");
  return tap_done();
}
