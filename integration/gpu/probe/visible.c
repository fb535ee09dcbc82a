/* P8: is what was written before a value there for whoever sees the value? Down: copies and kernels
   write host memory, then the stream writes the value and the CPU reads. Up: the CPU writes memory
   and then the word that the stream waits for, and kernels and copies behind the wait read. Each
   is repeated until 10^5 times or until its time is over. */
#include "probe.h"
#include <string.h>

enum { SLOTS = 16, REPEATS = 100000 };
static uint32_t *flags; /* [0] the stream's, [64] the CPU's; lines of their own */
static CUdeviceptr stream_flag, cpu_flag;
static double time_us; /* for each question */

static void begin(void) {
  start();
  need_host();
  time_us = machine.simulated ? 0.2e6 : 2.2e6;
  flags = host_alloc(4096);
  stream_flag = (CUdeviceptr)(uintptr_t)&flags[0];
  cpu_flag = (CUdeviceptr)(uintptr_t)&flags[64];
  /* A kernel's first launch may load it, and loading may wait for work: for a stream that waits for
   * this thread it would wait forever. */
  must_succeed(fill(stream_flag, 1, 0, 0, machine.stream), "probe_fill", __FILE__, __LINE__);
  mismatches(stream_flag, 1, 0, 0, machine.stream);
}

static CUdeviceptr host_piece(size_t bytes) {
  bytes = (bytes + machine.granularity - 1) / machine.granularity * machine.granularity;
  CUdeviceptr va = reserve(bytes);
  put(va, bytes, ON_HOST);
  return va;
}

static void tell(const char *name, uint64_t repeats, uint64_t wrong) {
  fact_count(named("%s_repeats", name), repeats);
  fact_count(named("%s_wrong", name), wrong);
  expect(wrong == 0, "%s: nothing is stale (%llu of %llu repetitions were)", name,
         (unsigned long long)wrong, (unsigned long long)repeats);
  expect(repeats >= (machine.simulated ? 100 : 2000), "%s: at least 2000 repetitions (%llu)", name,
         (unsigned long long)repeats);
}

/* ---- down ---- */

/* Repetition i writes the number i to all words of slot i mod SLOTS. At most SLOTS repetitions are
   enqueued ahead of what the CPU has read, so that no slot is written while it is read. */
static void down(const char *name, CUdeviceptr host, size_t bytes, bool by_kernel) {
  const uint32_t words = (uint32_t)(bytes / 4);
  uint32_t i = 0, sent = 0;
  uint64_t wrong = 0;
  CUdeviceptr device;
  step(named("looking at %s", name));
  MUST(cuMemAlloc_v2, &device, bytes);
  memset(flags, 0, 4096);
  double end = now_us() + time_us;
  while (i < REPEATS && now_us() < end) {
    for (; sent < i + SLOTS && sent < REPEATS; sent++) {
      CUdeviceptr slot = host + (sent + 1) % SLOTS * bytes;
      uint32_t value = sent + 1;
      if (by_kernel) {
        must_succeed(fill(slot, words, value, 0, machine.stream), "probe_fill", __FILE__, __LINE__);
      } else {
        MUST(cuMemsetD32Async, device, value, words, machine.stream);
        MUST(cuMemcpyDtoHAsync_v2, (void *)(uintptr_t)slot, device, bytes, machine.stream);
      }
      MUST(cuStreamWriteValue32_v2, machine.stream, stream_flag, value, 0);
    }
    i++;
    if (!word_reaches(&flags[0], i, 5000))
      give_up("%s: value %u wasn't written within 5 s", name, i);
    const uint32_t *slot = (const uint32_t *)(uintptr_t)(host + i % SLOTS * bytes);
    wrong += mismatches_here(slot, words, i, 0) != 0;
  }
  MUST(cuStreamSynchronize, machine.stream);
  MUST(cuMemFree_v2, device);
  tell(name, i, wrong);
}

void probe_visible_down(void) {
  begin();
  CUdeviceptr pinned = (CUdeviceptr)(uintptr_t)host_alloc(SLOTS * 64 * KIB);
  CUdeviceptr piece = host_piece(SLOTS * 64 * KIB);
  down("copy_of_64_bytes_to_pinned", pinned, 64, false);
  down("copy_of_64KiB_to_pinned", pinned, machine.simulated ? 4 * KIB : 64 * KIB, false);
  down("copy_of_4KiB_to_host_piece", piece, 4 * KIB, false);
  down("kernel_to_pinned", pinned, 4 * KIB, true);
  down("kernel_to_host_piece", piece, 4 * KIB, true);
}

/* ---- up ---- */

/* Repetition i: the CPU writes i to every word and then to its flag; behind the wait a
   kernel (or a copy and then a kernel) counts words that aren't i. The same lines are read each
   time, so that a stale line in the GPU's cache would show. */
static void up(const char *name, CUdeviceptr host, size_t bytes, bool by_copy) {
  const uint64_t words = bytes / 4;
  volatile uint32_t *here = (volatile uint32_t *)(uintptr_t)host;
  CUfunction check = kernel("probe_check");
  CUdeviceptr device, from;
  uint32_t i = 0, stride = 0;
  uint64_t read_words = words, wrong = 0;
  step(named("looking at %s", name));
  MUST(cuMemAlloc_v2, &device, bytes);
  MUST(cuMemsetD32Async, machine.errors, 0, 2, machine.stream);
  memset(flags, 0, 4096);
  from = by_copy ? device : host;
  double end = now_us() + time_us;
  while (i < REPEATS && now_us() < end) {
    i++;
    void *parameters[] = {&from, &read_words, &i, &stride, &machine.errors};
    MUST(cuStreamWaitValue32_v2, machine.stream, cpu_flag, i, CU_STREAM_WAIT_VALUE_GEQ);
    if (by_copy)
      MUST(cuMemcpyHtoDAsync_v2, device, (void *)(uintptr_t)host, bytes, machine.stream);
    must_succeed(launch(check, blocks_for(words), THREADS, machine.stream, parameters),
                 "probe_check", __FILE__, __LINE__);
    MUST(cuStreamWriteValue32_v2, machine.stream, stream_flag, i, 0);
    for (uint64_t w = 0; w < words; w++)
      here[w] = i;
    __atomic_store_n(&flags[64], i, __ATOMIC_RELEASE);
    if (!word_reaches(&flags[0], i, 5000))
      give_up("%s: the stream didn't come to repetition %u within 5 s", name, i);
  }
  MUST(cuStreamSynchronize, machine.stream);
  MUST(cuMemcpyDtoH_v2, &wrong, machine.errors, sizeof wrong);
  MUST(cuMemFree_v2, device);
  fact_count(named("%s_repeats", name), i);
  fact_count(named("%s_wrong", name), wrong);
  expect(wrong == 0, "%s: nothing is stale (%llu words in %u repetitions were)", name,
         (unsigned long long)wrong, i);
}

void probe_visible_up(void) {
  begin();
  int told = device_attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  size_t cache = told > 0 ? (size_t)told : 64 * MIB;
  fact_count("l2_cache_bytes", cache);
  size_t small = machine.simulated ? 4 * KIB : 64 * KIB;
  size_t large = machine.simulated ? 256 * KIB : 2 * cache;
  CUdeviceptr pinned = (CUdeviceptr)(uintptr_t)host_alloc(large), piece = host_piece(large);
  up("kernel_reads_pinned_small", pinned, small, false);
  up("kernel_reads_host_piece_small", piece, small, false);
  up("copy_reads_pinned_small", pinned, small, true);
  up("kernel_reads_pinned_large", pinned, large, false);
  up("kernel_reads_host_piece_large", piece, large, false);
  up("copy_reads_host_piece_large", piece, large, true);
}
