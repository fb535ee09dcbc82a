/* P8: words that streams wait for and write: latency, queries, kinds of memory, capture. */
#include "probe.h"
#include <stdio.h>

static uint32_t *words; /* pinned: [0] CPU to GPU, [64] GPU to CPU; lines of their own */
enum { TO_GPU = 0, TO_CPU = 64 };

static CUdeviceptr address(const uint32_t *word) {
  return (CUdeviceptr)(uintptr_t)word;
}

/* The CPU sets a word that the stream waits for, the stream sets another; batches are enqueued
   before they begin. */
static void ping_pong(void) {
  enum { BATCH = 100, BATCHES = 10 };
  static double us[BATCH * BATCHES];
  step("measuring ping-pong");
  for (uint32_t batch = 0; batch < BATCHES; batch++) {
    for (uint32_t i = 1; i <= BATCH; i++) {
      MUST(cuStreamWaitValue32_v2, machine.stream, address(&words[TO_GPU]), batch * BATCH + i,
           CU_STREAM_WAIT_VALUE_GEQ);
      MUST(cuStreamWriteValue32_v2, machine.stream, address(&words[TO_CPU]), batch * BATCH + i, 0);
    }
    for (uint32_t i = 1; i <= BATCH; i++) {
      uint32_t value = batch * BATCH + i;
      double begin = now_us();
      __atomic_store_n(&words[TO_GPU], value, __ATOMIC_RELEASE);
      if (!word_reaches(&words[TO_CPU], value, 5000))
        give_up("value %u didn't come back within 5 s", value);
      us[value - 1] = now_us() - begin;
    }
    MUST(cuStreamSynchronize, machine.stream);
  }
  fact_number("round_trip_median_us", median(us, BATCH * BATCHES));
  fact_number("round_trip_fastest_us", us[0]);
  fact_number("round_trip_99th_percentile_us", us[BATCH * BATCHES * 99 / 100]);
}

static void queries(void) {
  CUevent event;
  step("asking a waiting stream");
  words[TO_GPU] = 0;
  MUST(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
  MUST(cuStreamWaitValue32_v2, machine.stream, address(&words[TO_GPU]), 1,
       CU_STREAM_WAIT_VALUE_GEQ);
  MUST(cuEventRecord, event, machine.stream);
  pause_ms(20);
  CUresult stream = CALL_CU(cuStreamQuery, machine.stream), after = CALL_CU(cuEventQuery, event);
  fact_result("stream_query_while_waiting", stream);
  fact_result("event_query_while_waiting", after);
  expect(stream == CUDA_ERROR_NOT_READY, "cuStreamQuery of a waiting stream answers NOT_READY");
  expect(after == CUDA_ERROR_NOT_READY, "cuEventQuery behind the wait answers NOT_READY");
  __atomic_store_n(&words[TO_GPU], 1, __ATOMIC_RELEASE);
  MUST(cuStreamSynchronize, machine.stream);
  stream = CALL_CU(cuStreamQuery, machine.stream);
  fact_result("stream_query_afterwards", stream);
  expect(stream == CUDA_SUCCESS, "cuStreamQuery answers SUCCESS when the value came");
  MUST(cuEventDestroy_v2, event);
}

/* A wait is for (int32_t)(word - value) >= 0: a counter may wrap around. */
static void cyclic(void) {
  step("waiting across the wrap of a counter");
  words[TO_GPU] = 0xfffffff0;
  MUST(cuStreamWaitValue32_v2, machine.stream, address(&words[TO_GPU]), 3,
       CU_STREAM_WAIT_VALUE_GEQ);
  pause_ms(20);
  bool held = CALL_CU(cuStreamQuery, machine.stream) == CUDA_ERROR_NOT_READY;
  __atomic_store_n(&words[TO_GPU], 3, __ATOMIC_RELEASE);
  MUST(cuStreamSynchronize, machine.stream);
  fact_bool("wait_is_cyclic", held);
  expect(held, "0xfffffff0 is before 3 for a wait");
  fact_result("wait_64", CALL_CU(cuStreamWaitValue64_v2, machine.stream, address(&words[128]), 0,
                                 CU_STREAM_WAIT_VALUE_GEQ));
  MUST(cuStreamSynchronize, machine.stream);
}

static void on_host_piece(void) {
  need_host();
  CUdeviceptr va = reserve(machine.granularity);
  put(va, machine.granularity, ON_HOST);
  volatile uint32_t *word = (volatile uint32_t *)(uintptr_t)va;
  step("waiting for a word on a host piece");
  word[0] = word[64] = 0;
  CUresult waits = CALL_CU(cuStreamWaitValue32_v2, machine.stream, va, 1, CU_STREAM_WAIT_VALUE_GEQ);
  CUresult writes = CALL_CU(cuStreamWriteValue32_v2, machine.stream, va + 256, 7, 0);
  fact_result("wait_on_host_piece", waits);
  fact_result("write_on_host_piece", writes);
  __atomic_store_n(word, 1, __ATOMIC_RELEASE);
  MUST(cuStreamSynchronize, machine.stream);
  expect(waits == CUDA_SUCCESS && writes == CUDA_SUCCESS && word[64] == 7,
         "a stream can wait for and write words on a host piece");
}

static bool no_capture(CUresult result) {
  return unsupported(result) || result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static void captured(void) {
  CUgraph graph = NULL;
  CUgraphExec executable = NULL;
  size_t nodes = 0;
  step("capturing value operations");
  words[TO_CPU] = 0;
  words[TO_GPU] = 1;
  MUST(cuStreamBeginCapture_v2, machine.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  CUresult waits = CALL_CU(cuStreamWaitValue32_v2, machine.stream, address(&words[TO_GPU]), 1,
                           CU_STREAM_WAIT_VALUE_GEQ);
  CUresult writes = CALL_CU(cuStreamWriteValue32_v2, machine.stream, address(&words[TO_CPU]), 9, 0);
  CUresult ended = CALL_CU(cuStreamEndCapture, machine.stream, &graph);
  if (no_capture(waits)) {
    fact_text("captured", "not supported by this driver");
    return;
  }
  fact_result("captured_wait", waits);
  fact_result("captured_write", writes);
  fact_result("captured_end", ended);
  if (ended != CUDA_SUCCESS || graph == NULL) {
    fact_text("captured", "no");
    return;
  }
  MUST(cuGraphGetNodes, graph, NULL, &nodes);
  fact_count("captured_nodes", nodes);
  CUresult result = CALL_CU(cuGraphInstantiateWithFlags, &executable, graph, 0);
  if (result == CUDA_SUCCESS)
    result = CALL_CU(cuGraphLaunch, executable, machine.stream);
  fact_result("captured_launch", result);
  MUST(cuStreamSynchronize, machine.stream);
  fact_text("captured", result == CUDA_SUCCESS && words[TO_CPU] == 9 ? "yes, and replayed" : "yes");
}

void probe_values(void) {
  start();
  words = host_alloc(4096);
  for (int i = 0; i < 1024; i++)
    words[i] = 0;
  ping_pong();
  queries();
  cyclic();
  captured();
  on_host_piece();
}
