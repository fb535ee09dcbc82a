/* P9: graphs over a piece that were instantiated before it moved, launched after: each kind of node
   by itself, made by the graph calls and by capture; then home again. */
#include "probe.h"
#include <string.h>

enum node { KERNEL, MEMSET, COPY_IN, COPY_OUT, NODES };
static const char *const names[] = {"kernel", "memset", "copy_in", "copy_out"};
enum { SEED = 100, STRIDE = 3 };

static size_t bytes, words;
static CUdeviceptr va, buffer;
static CUgraphExec graphs[2][NODES]; /* [0] made by calls, [1] by capture; NULL: none */
static const char *const origins[] = {"explicit", "captured"};

static bool absent(CUresult result) {
  return unsupported(result) || result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ||
         result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

static CUdeviceptr target(enum node node) {
  return node == COPY_OUT ? buffer : va;
}
static CUdeviceptr source(enum node node) {
  return node == COPY_OUT ? va : buffer;
}

static CUresult add_node(CUgraph graph, enum node node) {
  CUgraphNode added;
  if (node == KERNEL) {
    uint64_t count = words;
    uint32_t seed = SEED + KERNEL, stride = STRIDE;
    void *parameters[] = {&va, &count, &seed, &stride};
    CUDA_KERNEL_NODE_PARAMS_v2 kernel_node;
    memset(&kernel_node, 0, sizeof kernel_node);
    kernel_node.func = kernel("probe_fill");
    kernel_node.gridDimX = blocks_for(words);
    kernel_node.blockDimX = THREADS;
    kernel_node.gridDimY = kernel_node.gridDimZ = kernel_node.blockDimY = kernel_node.blockDimZ = 1;
    kernel_node.kernelParams = parameters;
    return CALL_CU(cuGraphAddKernelNode_v2, &added, graph, NULL, 0, &kernel_node);
  }
  if (node == MEMSET) {
    CUDA_MEMSET_NODE_PARAMS set = {
        .dst = va, .value = SEED + MEMSET, .elementSize = 4, .width = words, .height = 1};
    return CALL_CU(cuGraphAddMemsetNode, &added, graph, NULL, 0, &set, machine.context);
  }
  CUDA_MEMCPY3D copy;
  memset(&copy, 0, sizeof copy);
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = source(node);
  copy.dstDevice = target(node);
  copy.srcPitch = copy.dstPitch = copy.WidthInBytes = bytes;
  copy.srcHeight = copy.dstHeight = copy.Height = copy.Depth = 1;
  return CALL_CU(cuGraphAddMemcpyNode, &added, graph, NULL, 0, &copy, machine.context);
}

static CUresult enqueue(enum node node) {
  switch (node) {
  case KERNEL:
    return fill(va, words, SEED + KERNEL, STRIDE, machine.stream);
  case MEMSET:
    return CALL_CU(cuMemsetD32Async, va, SEED + MEMSET, words, machine.stream);
  default:
    return CALL_CU(cuMemcpyDtoDAsync_v2, target(node), source(node), bytes, machine.stream);
  }
}

static CUresult make(bool capture, enum node node, CUgraphExec *executable) {
  CUgraph graph = NULL;
  CUresult result;
  if (capture) {
    result = CALL_CU(cuStreamBeginCapture_v2, machine.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    if (result != CUDA_SUCCESS)
      return result;
    result = enqueue(node);
    CUresult ended = CALL_CU(cuStreamEndCapture, machine.stream, &graph);
    if (result == CUDA_SUCCESS)
      result = ended;
  } else {
    result = CALL_CU(cuGraphCreate, &graph, 0);
    if (result == CUDA_SUCCESS)
      result = add_node(graph, node);
  }
  return result == CUDA_SUCCESS ? CALL_CU(cuGraphInstantiateWithFlags, executable, graph, 0)
                                : result;
}

static void make_all(void) {
  for (int capture = 0; capture < 2; capture++)
    for (int node = 0; node < NODES; node++) {
      step(named("making a graph with a %s node", names[node]));
      CUresult result = make(capture != 0, (enum node)node, &graphs[capture][node]);
      if (absent(result))
        result = CUDA_ERROR_NOT_SUPPORTED;
      fact_result(named("%s_%s", origins[capture], names[node]), result);
      if (result != CUDA_SUCCESS)
        graphs[capture][node] = NULL;
      expect(result == CUDA_SUCCESS || unsupported(result),
             "a graph with a %s node can be made, not %s", names[node], result_name(result));
    }
}

/* Launches every graph once; its target is made wrong and its source right before. */
static void launch_all(const char *when) {
  for (int capture = 0; capture < 2; capture++)
    for (int node = 0; node < NODES; node++) {
      if (graphs[capture][node] == NULL)
        continue;
      uint32_t seed = SEED + (uint32_t)node, stride = node == MEMSET ? 0 : STRIDE;
      const char *key = named("%s_%s_%s", origins[capture], names[node], when);
      step(named("launching %s", key));
      must_succeed(fill(target((enum node)node), words, ~seed, STRIDE, machine.stream),
                   "probe_fill", __FILE__, __LINE__);
      if (node == COPY_IN || node == COPY_OUT)
        must_succeed(fill(source((enum node)node), words, seed, STRIDE, machine.stream),
                     "probe_fill", __FILE__, __LINE__);
      CUresult result = CALL_CU(cuGraphLaunch, graphs[capture][node], machine.stream);
      if (result == CUDA_SUCCESS)
        result = CALL_CU(cuStreamSynchronize, machine.stream);
      if (result != CUDA_SUCCESS) {
        fact_result(key, result);
        expect(false, "%s works, not %s", key, result_name(result));
        continue;
      }
      uint64_t wrong = mismatches(target((enum node)node), words, seed, stride, machine.stream);
      fact_text(key, "%s", wrong == 0 ? "intact" : "wrong data");
      expect(wrong == 0, "%s gives the right data (%llu words differ)", key,
             (unsigned long long)wrong);
    }
}

void probe_graphs(void) {
  start();
  need_host();
  bytes = machine.granularity;
  words = bytes / 4;
  va = reserve(bytes);
  MUST(cuMemAlloc_v2, &buffer, bytes);
  CUmemGenericAllocationHandle handle = put(va, bytes, ON_DEVICE);
  /* loaded before the first capture, in which loading may be forbidden */
  must_succeed(fill(va, words, 1, 1, machine.stream), "probe_fill", __FILE__, __LINE__);
  MUST(cuStreamSynchronize, machine.stream);
  make_all();
  launch_all("before");
  step("moving the piece to the host");
  handle = move(va, bytes, handle, ON_HOST);
  launch_all("on_host");
  step("moving the piece back");
  handle = move(va, bytes, handle, ON_DEVICE);
  launch_all("back_on_device");
  take_away(va, bytes, handle);
}
