/* Graphs: captured or made by hand, they replay what they hold, in the order of their edges and of
   the stream they are launched in. */
#include "tests/unit/gpusim_driver.h"

static CUstream stream;
static CUdeviceptr memory;
static uint32_t *pinned;

static void clear(void) {
  MUST(cuMemsetD8Async(memory, 0, 4096, stream));
  MUST(cuStreamSynchronize(stream));
  memset(pinned, 0, 4096);
}

static uint32_t words[2];

static void count_call(void *counter) {
  __atomic_fetch_add((uint32_t *)counter, 1, __ATOMIC_SEQ_CST);
}

/* kernel(value from a local) -> copy -> host function -> value write; replayed twice. */
static void test_capture_replays(CUfunction function) {
  CUgraph graph;
  CUgraphExec exec;
  uint32_t calls = 0, word;
  clear();
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  MUST(launch_store(function, stream, memory, 77));
  MUST(cuMemcpyDtoHAsync(pinned, memory, 4, stream));
  MUST(cuLaunchHostFunc(stream, count_call, &calls));
  MUST(cuStreamWriteValue32(stream, memory + 64, 5, 0));
  MUST(cuStreamEndCapture(stream, &graph));
  MUST(cuGraphInstantiate(&exec, graph, 0));
  MUST(cuGraphDestroy(graph));
  MUST(cuStreamSynchronize(stream));
  tap_ok(device_word(memory) == 0 && calls == 0, "nothing of a graph happens before its launch");
  unsigned long long before = gpusim_counter_by_name("graph_launches");
  MUST(cuGraphLaunch(exec, stream));
  MUST(cuStreamSynchronize(stream));
  tap_ok(device_word(memory) == 77 && pinned[0] == 77 && calls == 1 &&
             device_word(memory + 64) == 5,
         "a launch carries out kernels, copies, host functions and value writes in order");
  clear();
  MUST(cuGraphLaunch(exec, stream));
  MUST(cuGraphLaunch(exec, stream));
  MUST(cuMemcpyDtoH(&word, memory, 4));
  MUST(cuStreamSynchronize(stream));
  tap_ok(device_word(memory) == 77 && pinned[0] == 77 && calls == 3,
         "and does so again at every launch, with the parameters of the capture");
  tap_ok(gpusim_counter_by_name("graph_launches") == before + 3, "launches of graphs are counted");
  MUST(cuGraphLaunch(exec, stream));
  MUST(cuGraphExecDestroy(exec));
  MUST(cuStreamSynchronize(stream));
  tap_ok(calls == 4, "destroying an executable graph doesn't stop its launches");
  tap_ok(cuGraphLaunch(exec, stream) == CUDA_ERROR_INVALID_VALUE,
         "but it can't be launched any more");
}

/* Pageable sources of a captured copy are read at each launch, not at the capture. */
static void test_pageable(void) {
  CUgraph graph;
  CUgraphExec exec;
  clear();
  words[0] = 1;
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuMemcpyHtoDAsync(memory, words, 4, stream));
  MUST(cuStreamEndCapture(stream, &graph));
  MUST(cuGraphInstantiate(&exec, graph, 0));
  words[0] = 2;
  MUST(cuGraphLaunch(exec, stream));
  MUST(cuStreamSynchronize(stream));
  tap_ok(device_word(memory) == 2, "a captured copy reads its source when it is launched");
  MUST(cuGraphExecDestroy(exec));
  MUST(cuGraphDestroy(graph));
}

static void test_order(CUfunction function) {
  CUgraph graph;
  CUgraphExec exec;
  CUstream other;
  struct gate gate = new_gate();
  MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  clear();
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuStreamWaitValue32(stream, (CUdeviceptr)gate.word, 1, CU_STREAM_WAIT_VALUE_GEQ));
  MUST(launch_store(function, stream, memory, 9));
  MUST(cuStreamEndCapture(stream, &graph));
  MUST(cuGraphInstantiate(&exec, graph, 0));
  MUST(cuGraphLaunch(exec, stream));
  pause_ms(20);
  tap_ok(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY && device_word(memory) == 0,
         "a value wait of a graph holds back what follows in it");
  MUST(cuGraphLaunch(exec, other));
  open_gate(gate);
  MUST(cuStreamSynchronize(stream));
  MUST(cuStreamSynchronize(other));
  tap_ok(device_word(memory) == 9, "until the value comes");
  MUST(cuGraphExecDestroy(exec));
  MUST(cuGraphDestroy(graph));

  close_gate(gate);
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(launch_store(function, stream, memory, 10));
  MUST(cuStreamEndCapture(stream, &graph));
  MUST(cuGraphInstantiate(&exec, graph, 0));
  hold(gate, stream);
  MUST(cuGraphLaunch(exec, stream));
  MUST(cuGraphLaunch(exec, other));
  pause_ms(20);
  tap_ok(cuStreamQuery(other) == CUDA_ERROR_NOT_READY,
         "launches of one executable graph follow each other, whatever their streams");
  open_gate(gate);
  MUST(cuStreamSynchronize(stream));
  MUST(cuStreamSynchronize(other));
  MUST(cuGraphExecDestroy(exec));
  MUST(cuGraphDestroy(graph));
  MUST(cuStreamDestroy(other));
}

/* store -> fill beside it -> copy of both, made by hand, edges against the order of creation. */
static void test_by_hand(CUfunction function) {
  CUgraph graph, again;
  CUgraphExec exec;
  CUgraphNode kernel, fill, copy, batch, empty, host, child, roots[4];
  CUdeviceptr to = memory;
  uint32_t value = 3, calls = 0;
  void *parameters[] = {&to, &value};
  CUDA_KERNEL_NODE_PARAMS launch = {.func = function,
                                    .gridDimX = 1,
                                    .gridDimY = 1,
                                    .gridDimZ = 1,
                                    .blockDimX = 1,
                                    .blockDimY = 1,
                                    .blockDimZ = 1,
                                    .kernelParams = parameters};
  CUDA_MEMSET_NODE_PARAMS memset_node = {
      .dst = memory + 4, .value = 0x0a0a0a0a, .elementSize = 4, .width = 1, .height = 1};
  CUDA_MEMCPY3D memcpy_node = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                               .srcDevice = memory,
                               .dstMemoryType = CU_MEMORYTYPE_HOST,
                               .dstHost = pinned,
                               .WidthInBytes = 8,
                               .Height = 1,
                               .Depth = 1};
  CUstreamBatchMemOpParams operations[2];
  memset(operations, 0, sizeof operations);
  operations[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operations[0].writeValue.address = memory + 128;
  operations[0].writeValue.value = 21;
  operations[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operations[1].waitValue.address = memory + 128;
  operations[1].waitValue.value = 21;
  operations[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  CUDA_BATCH_MEM_OP_NODE_PARAMS batch_node = {.count = 2, .paramArray = operations};
  CUDA_HOST_NODE_PARAMS host_node = {.fn = count_call, .userData = &calls};
  size_t count;
  clear();
  MUST(cuGraphCreate(&graph, 0));
  MUST(cuGraphAddMemcpyNode(&copy, graph, NULL, 0, &memcpy_node, NULL));
  MUST(cuGraphAddKernelNode(&kernel, graph, NULL, 0, &launch));
  MUST(cuGraphAddMemsetNode(&fill, graph, &kernel, 1, &memset_node, NULL));
  MUST(cuGraphAddEmptyNode(&empty, graph, &fill, 1));
  MUST(cuGraphAddDependencies(graph, &empty, &copy, NULL, 1));
  MUST(cuGraphAddBatchMemOpNode(&batch, graph, &copy, 1, &batch_node));
  MUST(cuGraphAddHostNode(&host, graph, &batch, 1, &host_node));
  count = 4;
  MUST(cuGraphGetRootNodes(graph, roots, &count));
  tap_ok(count == 1 && roots[0] == kernel && roots[1] == NULL,
         "a node without edges to it is a root");
  MUST(cuGraphInstantiate(&exec, graph, 0));
  MUST(cuGraphLaunch(exec, stream));
  MUST(cuStreamSynchronize(stream));
  tap_ok(pinned[0] == 3 && pinned[1] == 0x0a0a0a0a && device_word(memory + 128) == 21 && calls == 1,
         "a graph made by hand runs in the order of its edges, not of its making");

  value = 4;
  MUST(cuGraphExecKernelNodeSetParams(exec, kernel, &launch));
  MUST(cuGraphLaunch(exec, stream));
  MUST(cuStreamSynchronize(stream));
  tap_ok(pinned[0] == 4, "an executable graph's kernel takes new parameters");
  MUST(cuGraphKernelNodeGetParams(kernel, &launch));
  tap_ok(launch.func == function && *(uint32_t *)launch.kernelParams[1] == 3,
         "the graph it was made of keeps the old ones, and tells them");
  MUST(cuGraphNodeSetEnabled(exec, fill, 0));
  clear();
  MUST(cuGraphLaunch(exec, stream));
  MUST(cuStreamSynchronize(stream));
  tap_ok(pinned[0] == 4 && pinned[1] == 0, "a disabled node does nothing");

  MUST(cuGraphCreate(&again, 0));
  MUST(cuGraphAddChildGraphNode(&child, again, NULL, 0, graph));
  CUgraphExec outer;
  MUST(cuGraphInstantiate(&outer, again, 0));
  calls = 0;
  clear();
  MUST(cuGraphLaunch(outer, stream));
  MUST(cuStreamSynchronize(stream));
  tap_ok(pinned[0] == 3 && pinned[1] == 0x0a0a0a0a && calls == 1, "a child graph runs as a whole");
  CUgraphExecUpdateResultInfo info;
  tap_ok(cuGraphExecUpdate(outer, graph, &info) == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE &&
             info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED,
         "an update from a graph of another shape is refused");
  MUST(cuGraphExecUpdate(exec, graph, &info));
  MUST(cuGraphLaunch(exec, stream));
  MUST(cuStreamSynchronize(stream));
  tap_ok(pinned[0] == 3, "one of the same shape brings its parameters");
  MUST(cuGraphAddDependencies(graph, &host, &kernel, NULL, 1));
  CUgraphExec none;
  tap_ok(cuGraphInstantiate(&none, graph, 0) == CUDA_ERROR_INVALID_VALUE,
         "a circle of edges can't be instantiated");
  MUST(cuGraphExecDestroy(exec));
  MUST(cuGraphExecDestroy(outer));
  MUST(cuGraphDestroy(graph));
  MUST(cuGraphDestroy(again));
}

static void test_events(CUfunction function) {
  CUgraph graph;
  CUgraphExec exec;
  CUevent event;
  CUstream waiting;
  struct gate gate = new_gate();
  clear();
  MUST(cuEventCreate(&event, 0));
  MUST(cuStreamCreate(&waiting, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  hold(gate, stream);
  MUST(launch_store(function, stream, memory, 6));
  MUST(cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL));
  MUST(cuStreamEndCapture(stream, &graph));
  MUST(cuGraphInstantiate(&exec, graph, 0));
  MUST(cuGraphLaunch(exec, stream));
  tap_ok(cuEventQuery(event) == CUDA_ERROR_NOT_READY, "an event node records at the launch");
  MUST(cuStreamWaitEvent(waiting, event, 0));
  MUST(cuMemcpyDtoHAsync(pinned, memory, 4, waiting));
  open_gate(gate);
  MUST(cuStreamSynchronize(waiting));
  tap_ok(pinned[0] == 6, "and streams outside can wait for it");
  MUST(cuStreamSynchronize(stream));
  MUST(cuGraphExecDestroy(exec));
  MUST(cuGraphDestroy(graph));

  clear();
  close_gate(gate);
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_EXTERNAL));
  MUST(cuMemcpyDtoHAsync(pinned, memory, 4, stream));
  MUST(cuStreamEndCapture(stream, &graph));
  MUST(cuGraphInstantiate(&exec, graph, 0));
  hold(gate, waiting);
  MUST(launch_store(function, waiting, memory, 8));
  MUST(cuEventRecord(event, waiting));
  MUST(cuGraphLaunch(exec, stream));
  open_gate(gate);
  MUST(cuStreamSynchronize(stream));
  tap_ok(pinned[0] == 8, "an event wait node waits for the record before the launch");
  MUST(cuGraphExecDestroy(exec));
  MUST(cuGraphDestroy(graph));
  MUST(cuStreamDestroy(waiting));
  MUST(cuEventDestroy(event));
}

static void test_captured_launch(CUfunction function) {
  CUgraph graph, outer;
  CUgraphExec exec, outer_exec;
  CUgraphNode node;
  CUgraphNodeType type;
  size_t count = 1;
  clear();
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(launch_store(function, stream, memory, 12));
  MUST(cuStreamEndCapture(stream, &graph));
  MUST(cuGraphInstantiate(&exec, graph, 0));
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuGraphLaunch(exec, stream));
  MUST(cuStreamEndCapture(stream, &outer));
  MUST(cuGraphGetNodes(outer, &node, &count));
  MUST(cuGraphNodeGetType(node, &type));
  MUST(cuGraphInstantiate(&outer_exec, outer, 0));
  MUST(cuGraphExecDestroy(exec));
  MUST(cuGraphLaunch(outer_exec, stream));
  MUST(cuStreamSynchronize(stream));
  tap_ok(count == 1 && type == CU_GRAPH_NODE_TYPE_GRAPH && device_word(memory) == 12,
         "a captured launch of a graph is a child graph");
  MUST(cuGraphExecDestroy(outer_exec));
  MUST(cuGraphDestroy(graph));
  MUST(cuGraphDestroy(outer));
}

static int unloaded_kernel(void) {
  CUmodule module;
  CUgraph graph;
  CUgraphExec exec;
  start();
  MUST(cuStreamCreate(&stream, 0));
  MUST(cuMemAlloc(&memory, 4096));
  CUfunction function = load_kernel(&module, "store");
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(launch_store(function, stream, memory, 12));
  MUST(cuStreamEndCapture(stream, &graph));
  MUST(cuGraphInstantiate(&exec, graph, 0));
  MUST(cuModuleUnload(module));
  return cuGraphLaunch(exec, stream) == CUDA_ERROR_INVALID_HANDLE &&
                 gpusim_counter_by_name("violations") == 1
             ? 0
             : 1;
}

static int freed_memory(void) {
  CUgraph graph;
  CUgraphExec exec;
  start();
  MUST(cuStreamCreate(&stream, 0));
  MUST(cuMemAlloc(&memory, 4096));
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuMemsetD32Async(memory, 1, 16, stream));
  MUST(cuStreamEndCapture(stream, &graph));
  MUST(cuGraphInstantiate(&exec, graph, 0));
  MUST(cuMemFree(memory));
  MUST(cuGraphLaunch(exec, stream));
  return cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS ? 0 : 1;
}

/* Two branches that write the same word: which comes last changes under GPUSIM_CHAOS only. */
static int distinct_results(const char *seed) {
  CUgraph graph;
  CUgraphExec exec;
  CUgraphNode node;
  unsigned seen = 0;
  setenv("GPUSIM_CHAOS", seed, 1);
  start();
  MUST(cuStreamCreate(&stream, 0));
  MUST(cuMemAlloc(&memory, 4096));
  MUST(cuGraphCreate(&graph, 0));
  for (uint32_t i = 0; i < 4; i++) {
    CUDA_MEMSET_NODE_PARAMS fill = {
        .dst = memory, .value = i, .elementSize = 4, .width = 1, .height = 1};
    MUST(cuGraphAddMemsetNode(&node, graph, NULL, 0, &fill, NULL));
  }
  MUST(cuGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 40; i++) {
    MUST(cuGraphLaunch(exec, stream));
    MUST(cuStreamSynchronize(stream));
    seen |= 1u << device_word(memory);
  }
  return (int)seen + (gpusim_counter_by_name("reordered_nodes") > 0 ? 100 : 0);
}

static int ordered(void) {
  return distinct_results("0");
}

static int disordered(void) {
  return distinct_results("7");
}

int main(void) {
  tap_ok(in_child(ordered) == 1u << 3, "branches of a graph run in the order of creation");
  tap_ok(in_child(disordered) == 115, "under GPUSIM_CHAOS in any, and the reordering is counted");
  tap_ok(in_child(unloaded_kernel) == 0, "a graph can't run a kernel whose module was unloaded");
  tap_ok(in_child(freed_memory) == 0, "a graph that touches freed memory ends in an error");
  start();
  CUmodule module;
  void *host;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuMemAlloc(&memory, 4096));
  MUST(cuMemHostAlloc(&host, 4096, 0));
  pinned = host;
  CUfunction function = load_kernel(&module, "store");
  test_capture_replays(function);
  test_pageable();
  test_order(function);
  test_by_hand(function);
  test_events(function);
  test_captured_launch(function);
  return tap_done();
}
