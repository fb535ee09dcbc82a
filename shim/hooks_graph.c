/* Wrappers of graphs: what names addresses in them, what hands those on, and what ends them
   (graphs.h). Nothing here changes a call. */
#include "graphs.h"
#include "hooks.h"
#include "state.h"
#include "touch.h"
#include "unknown.h"

#define WATCHED(result) ((result) == CUDA_SUCCESS && process_active())

/* ---- lives ---- */

CUresult hook_cuGraphCreate(CUgraph *graph, unsigned flags) {
  CUresult result = hook_pass(cuGraphCreate, (graph, flags));
  if (WATCHED(result))
    graphs_made(GRAPHS_TEMPLATE(*graph));
  return result;
}

CUresult hook_cuGraphClone(CUgraph *clone, CUgraph original) {
  CUresult result = hook_pass(cuGraphClone, (clone, original));
  if (WATCHED(result)) {
    graphs_made(GRAPHS_TEMPLATE(*clone));
    graphs_inherit(GRAPHS_TEMPLATE(*clone), GRAPHS_TEMPLATE(original));
  }
  return result;
}

#define INSTANTIATE(symbol, parameters, arguments)                                                 \
  CUresult hook_##symbol parameters {                                                              \
    CUresult result = hook_pass(symbol, arguments);                                                \
    if (WATCHED(result)) {                                                                         \
      graphs_made(GRAPHS_EXECUTABLE(*executable));                                                 \
      graphs_inherit(GRAPHS_EXECUTABLE(*executable), GRAPHS_TEMPLATE(graph));                      \
    }                                                                                              \
    return result;                                                                                 \
  }
INSTANTIATE(cuGraphInstantiate,
            (CUgraphExec * executable, CUgraph graph, CUgraphNode *failed, char *log, size_t bytes),
            (executable, graph, failed, log, bytes))
INSTANTIATE(cuGraphInstantiate_v2,
            (CUgraphExec * executable, CUgraph graph, CUgraphNode *failed, char *log, size_t bytes),
            (executable, graph, failed, log, bytes))
INSTANTIATE(cuGraphInstantiateWithFlags,
            (CUgraphExec * executable, CUgraph graph, unsigned long long flags),
            (executable, graph, flags))
INSTANTIATE(cuGraphInstantiateWithParams,
            (CUgraphExec * executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *how),
            (executable, graph, how))
INSTANTIATE(cuGraphInstantiateWithParams_ptsz,
            (CUgraphExec * executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *how),
            (executable, graph, how))

/* Before the real call: afterwards the handle may be another graph's. The driver refuses only what is
   no graph of the program's. */
static void forget(struct graph_holder who) {
  if (process_active())
    graphs_gone(who);
}

CUresult hook_cuGraphDestroy(CUgraph graph) {
  forget(GRAPHS_TEMPLATE(graph));
  return hook_pass(cuGraphDestroy, (graph));
}

CUresult hook_cuGraphExecDestroy(CUgraphExec executable) {
  forget(GRAPHS_EXECUTABLE(executable));
  return hook_pass(cuGraphExecDestroy, (executable));
}

/* An update that failed may have been carried out in part (cuda.h, cuGraphExecUpdate). */
static void updated(CUresult result, CUgraphExec executable, CUgraph graph) {
  if (!process_active())
    return;
  if (result == CUDA_SUCCESS)
    graphs_replace(GRAPHS_EXECUTABLE(executable), GRAPHS_TEMPLATE(graph));
  else
    graphs_inherit(GRAPHS_EXECUTABLE(executable), GRAPHS_TEMPLATE(graph));
}

CUresult hook_cuGraphExecUpdate(CUgraphExec executable, CUgraph graph, CUgraphNode *failed,
                                CUgraphExecUpdateResult *how) {
  CUresult result = hook_pass(cuGraphExecUpdate, (executable, graph, failed, how));
  updated(result, executable, graph);
  return result;
}

CUresult hook_cuGraphExecUpdate_v2(CUgraphExec executable, CUgraph graph,
                                   CUgraphExecUpdateResultInfo *how) {
  CUresult result = hook_pass(cuGraphExecUpdate_v2, (executable, graph, how));
  updated(result, executable, graph);
  return result;
}

/* ---- nodes ---- */

/* Each answers for what is on drives: a node is added or set by then, but no graph launched. */
static CUresult name_copy(struct graph_holder who, const CUDA_MEMCPY3D *copy) {
  if (copy->srcMemoryType == CU_MEMORYTYPE_DEVICE || copy->srcMemoryType == CU_MEMORYTYPE_UNIFIED)
    DRIVER_TRY(graphs_hold_address(who, copy->srcDevice));
  if (copy->dstMemoryType == CU_MEMORYTYPE_DEVICE || copy->dstMemoryType == CU_MEMORYTYPE_UNIFIED)
    DRIVER_TRY(graphs_hold_address(who, copy->dstDevice));
  return CUDA_SUCCESS;
}

static CUresult inherit(struct graph_holder to, struct graph_holder from) {
  graphs_inherit(to, from);
  return CUDA_SUCCESS;
}

static CUresult name_node(struct graph_holder who, const CUgraphNodeParams *node) {
  switch ((int)node->type) {
  case CU_GRAPH_NODE_TYPE_KERNEL:
    return state_graph_launch(who,
                              node->kernel.func ? node->kernel.func : (CUfunction)node->kernel.kern,
                              node->kernel.kernelParams, node->kernel.extra);
  case CU_GRAPH_NODE_TYPE_MEMCPY:
    return name_copy(who, &node->memcpy.copyParams);
  case CU_GRAPH_NODE_TYPE_MEMSET:
    return graphs_hold_address(who, node->memset.dst);
  case CU_GRAPH_NODE_TYPE_GRAPH:
    return inherit(who, GRAPHS_TEMPLATE(node->graph.graph));
  default: /* the others name no memory that a copy or kernel works on */
    return CUDA_SUCCESS;
  }
}

/* The parameters of a node in a graph, by whatever call they come. */
#define NODE(symbol, parameters, arguments, who, naming)                                           \
  CUresult hook_##symbol parameters {                                                              \
    CUresult result = hook_pass(symbol, arguments);                                                \
    if (WATCHED(result)) {                                                                         \
      const struct graph_holder holder = who;                                                      \
      result = naming;                                                                             \
    }                                                                                              \
    return result;                                                                                 \
  }
#define ADD(symbol, more, more_arguments, naming)                                                  \
  NODE(symbol,                                                                                     \
       (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count, UNPACK more),   \
       (node, graph, after, count, UNPACK more_arguments), GRAPHS_TEMPLATE(graph), naming)
#define UNPACK(...) __VA_ARGS__
#define KERNEL_V1 state_graph_launch(holder, kernel->func, kernel->kernelParams, kernel->extra)
#define KERNEL_V2                                                                                  \
  state_graph_launch(holder, kernel->func ? kernel->func : (CUfunction)kernel->kern,               \
                     kernel->kernelParams, kernel->extra)

ADD(cuGraphAddKernelNode, (const CUDA_KERNEL_NODE_PARAMS_v1 *kernel), (kernel), KERNEL_V1)
ADD(cuGraphAddKernelNode_v2, (const CUDA_KERNEL_NODE_PARAMS_v2 *kernel), (kernel), KERNEL_V2)
ADD(cuGraphAddMemcpyNode, (const CUDA_MEMCPY3D *copy, CUcontext context), (copy, context),
    name_copy(holder, copy))
ADD(cuGraphAddMemsetNode, (const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext context), (fill, context),
    graphs_hold_address(holder, fill->dst))
ADD(cuGraphAddChildGraphNode, (CUgraph child), (child), inherit(holder, GRAPHS_TEMPLATE(child)))
ADD(cuGraphAddNode, (CUgraphNodeParams * what), (what), name_node(holder, what))
NODE(cuGraphAddNode_v2,
     (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges,
      size_t count, CUgraphNodeParams *what),
     (node, graph, after, edges, count, what), GRAPHS_TEMPLATE(graph), name_node(holder, what))

/* Of which graph a node is isn't known: what it names stays for good. */
#define UNSEEN GRAPHS_TEMPLATE(NULL)
NODE(cuGraphKernelNodeSetParams, (CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *kernel),
     (node, kernel), UNSEEN, KERNEL_V1)
NODE(cuGraphKernelNodeSetParams_v2, (CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *kernel),
     (node, kernel), UNSEEN, KERNEL_V2)
NODE(cuGraphMemcpyNodeSetParams, (CUgraphNode node, const CUDA_MEMCPY3D *copy), (node, copy),
     UNSEEN, name_copy(holder, copy))
NODE(cuGraphMemsetNodeSetParams, (CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *fill),
     (node, fill), UNSEEN, graphs_hold_address(holder, fill->dst))
NODE(cuGraphNodeSetParams, (CUgraphNode node, CUgraphNodeParams *what), (node, what), UNSEEN,
     name_node(holder, what))

#define SET(symbol, more, more_arguments, naming)                                                  \
  NODE(symbol, (CUgraphExec executable, CUgraphNode node, UNPACK more),                            \
       (executable, node, UNPACK more_arguments), GRAPHS_EXECUTABLE(executable), naming)
SET(cuGraphExecKernelNodeSetParams, (const CUDA_KERNEL_NODE_PARAMS_v1 *kernel), (kernel), KERNEL_V1)
SET(cuGraphExecKernelNodeSetParams_v2, (const CUDA_KERNEL_NODE_PARAMS_v2 *kernel), (kernel),
    KERNEL_V2)
SET(cuGraphExecMemcpyNodeSetParams, (const CUDA_MEMCPY3D *copy, CUcontext context), (copy, context),
    name_copy(holder, copy))
SET(cuGraphExecMemsetNodeSetParams, (const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext context),
    (fill, context), graphs_hold_address(holder, fill->dst))
SET(cuGraphExecChildGraphNodeSetParams, (CUgraph child), (child),
    inherit(holder, GRAPHS_TEMPLATE(child)))
SET(cuGraphExecNodeSetParams, (CUgraphNodeParams * what), (what), name_node(holder, what))

/* ---- launches: in a capture, the graph becomes a child of what is captured ---- */

#define GRAPH_LAUNCH(symbol, is_per_thread)                                                        \
  CUresult hook_##symbol(CUgraphExec executable, CUstream stream) {                                \
    if (process_active()) {                                                                        \
      const CUstream on = hook_stream(stream, is_per_thread);                                      \
      if (unknown_looking())                                                                       \
        unknown_unseen();                                                                          \
      DRIVER_TRY(touch_graph_launch(on));                                                          \
      if (touch_captured(on))                                                                      \
        graphs_inherit(GRAPHS_CAPTURES, GRAPHS_EXECUTABLE(executable));                            \
    }                                                                                              \
    return hook_pass(symbol, (executable, stream));                                                \
  }
GRAPH_LAUNCH(cuGraphLaunch, false)
GRAPH_LAUNCH(cuGraphLaunch_ptsz, true)
