/* Nodes made by hand: kernels, copies, fills, host functions, events, value operations, child graphs
   and empty ones; and what a kernel node says of itself. Parameters are taken at the call, as those
   of a launch are. */
#include "tests/gpusim/graph.h"

/* On success gpusim_mutex is held. */
static CUresult enter(const CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                      size_t count) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  if (out == NULL || (count > 0 && after == NULL))
    return CUDA_ERROR_INVALID_VALUE;
  gpusim_lock();
  bool right = gpusim_handle_is(graph, HANDLE_GRAPH);
  for (size_t i = 0; i < count && right; i++)
    right = gpusim_handle_is(after[i], HANDLE_GRAPH_NODE) && after[i]->graph == graph;
  if (right)
    return CUDA_SUCCESS;
  gpusim_unlock();
  return CUDA_ERROR_INVALID_VALUE;
}

/* A context given or the current one: what a node's memory is checked against. */
static CUresult context_of(CUcontext *context) {
  if (*context == NULL)
    *context = gpusim_current();
  return *context != NULL && gpusim_handle_is(*context, HANDLE_CONTEXT)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_CONTEXT;
}

/* Appends what a room made, or hands its error on; lets go of gpusim_mutex. */
#define LEAVE(out, graph, after, count, type, MADE)                                                \
  do {                                                                                             \
    const struct operation_kind *kind = NULL;                                                      \
    void *argument = NULL;                                                                         \
    CUresult made = (MADE);                                                                        \
    if (made == CUDA_SUCCESS)                                                                      \
      *(out) = gpusim_graph_append(graph, type, gpusim_payload_new(kind, argument), NULL, after,   \
                                   count);                                                         \
    gpusim_unlock();                                                                               \
    return made;                                                                                   \
  } while (0)

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                                 size_t count, const CUDA_KERNEL_NODE_PARAMS_v2 *parameters) {
  CUresult result = enter(node, graph, after, count);
  if (result != CUDA_SUCCESS)
    return result;
  LEAVE(node, graph, after, count, CU_GRAPH_NODE_TYPE_KERNEL,
        gpusim_launch_node(parameters, &kind, &argument));
}

static CUDA_KERNEL_NODE_PARAMS_v2 widened(const CUDA_KERNEL_NODE_PARAMS_v1 *p) {
  return (CUDA_KERNEL_NODE_PARAMS_v2){.func = p->func,
                                      .gridDimX = p->gridDimX,
                                      .gridDimY = p->gridDimY,
                                      .gridDimZ = p->gridDimZ,
                                      .blockDimX = p->blockDimX,
                                      .blockDimY = p->blockDimY,
                                      .blockDimZ = p->blockDimZ,
                                      .sharedMemBytes = p->sharedMemBytes,
                                      .kernelParams = p->kernelParams,
                                      .extra = p->extra};
}

CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                              size_t count, const CUDA_KERNEL_NODE_PARAMS_v1 *parameters) {
  if (parameters == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUDA_KERNEL_NODE_PARAMS_v2 wide = widened(parameters);
  return cuGraphAddKernelNode_v2(node, graph, after, count, &wide);
}

/* cuda.h: the arrays stay valid until the node's parameters change. */
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2 *parameters) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_lock();
  if (parameters == NULL || !gpusim_handle_is(node, HANDLE_GRAPH_NODE) ||
      node->type != CU_GRAPH_NODE_TYPE_KERNEL)
    result = CUDA_ERROR_INVALID_VALUE;
  else
    gpusim_launch_parameters(node->payload->argument, parameters);
  gpusim_unlock();
  return result;
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node,
                                       const CUDA_KERNEL_NODE_PARAMS_v2 *parameters) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_lock();
  const struct operation_kind *kind;
  void *argument;
  if (!gpusim_handle_is(node, HANDLE_GRAPH_NODE) || node->type != CU_GRAPH_NODE_TYPE_KERNEL)
    result = CUDA_ERROR_INVALID_VALUE;
  else
    result = gpusim_launch_node(parameters, &kind, &argument);
  if (result == CUDA_SUCCESS) {
    gpusim_payload_drop(node->payload);
    node->payload = gpusim_payload_new(kind, argument);
  }
  gpusim_unlock();
  return result;
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                              size_t count, const CUDA_MEMCPY3D *copy, CUcontext context) {
  CUresult result = context_of(&context);
  if (result == CUDA_SUCCESS)
    result = enter(node, graph, after, count);
  if (result != CUDA_SUCCESS)
    return result;
  LEAVE(node, graph, after, count, CU_GRAPH_NODE_TYPE_MEMCPY,
        gpusim_copy_node(copy, context, &kind, &argument));
}

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                              size_t count, const CUDA_MEMSET_NODE_PARAMS *fill,
                              CUcontext context) {
  CUresult result = context_of(&context);
  if (result == CUDA_SUCCESS)
    result = enter(node, graph, after, count);
  if (result != CUDA_SUCCESS)
    return result;
  LEAVE(node, graph, after, count, CU_GRAPH_NODE_TYPE_MEMSET,
        gpusim_fill_node(fill, context, &kind, &argument));
}

CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                            size_t count, const CUDA_HOST_NODE_PARAMS *call) {
  CUresult result = enter(node, graph, after, count);
  if (result != CUDA_SUCCESS)
    return result;
  LEAVE(node, graph, after, count, CU_GRAPH_NODE_TYPE_HOST,
        gpusim_host_node(call, &kind, &argument));
}

static CUresult add_plain(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                          CUgraphNodeType type, CUgraph child) {
  CUresult result = enter(node, graph, after, count);
  if (result != CUDA_SUCCESS)
    return result;
  if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
    if (gpusim_handle_is(child, HANDLE_GRAPH) && child != graph)
      child = gpusim_graph_copy(child);
    else
      result = CUDA_ERROR_INVALID_VALUE;
  }
  if (result == CUDA_SUCCESS)
    *node = gpusim_graph_append(graph, type, NULL, child, after, count);
  gpusim_unlock();
  return result;
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                             size_t count) {
  return add_plain(node, graph, after, count, CU_GRAPH_NODE_TYPE_EMPTY, NULL);
}

/* The child is copied: what happens to it later changes nothing here. */
CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                                  size_t count, CUgraph child) {
  return add_plain(node, graph, after, count, CU_GRAPH_NODE_TYPE_GRAPH, child);
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_lock();
  if (graph == NULL || !gpusim_handle_is(node, HANDLE_GRAPH_NODE) ||
      node->type != CU_GRAPH_NODE_TYPE_GRAPH)
    result = CUDA_ERROR_INVALID_VALUE;
  else
    *graph = node->child;
  gpusim_unlock();
  return result;
}

static CUresult add_event(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                          CUevent event, bool record) {
  CUresult result = enter(node, graph, after, count);
  if (result != CUDA_SUCCESS)
    return result;
  if (gpusim_handle_is(event, HANDLE_EVENT)) {
    struct gpusim_payload *payload =
        gpusim_payload_new(gpusim_event_operation(event, record), event);
    *node = gpusim_graph_append(
        graph, record ? CU_GRAPH_NODE_TYPE_EVENT_RECORD : CU_GRAPH_NODE_TYPE_WAIT_EVENT, payload,
        NULL, after, count);
  } else {
    result = CUDA_ERROR_INVALID_VALUE;
  }
  gpusim_unlock();
  return result;
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                                   size_t count, CUevent event) {
  return add_event(node, graph, after, count, event, true);
}

CUresult cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                                 size_t count, CUevent event) {
  return add_event(node, graph, after, count, event, false);
}

/* A batch is a chain inside a graph of its own. */
CUresult cuGraphAddBatchMemOpNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                                  size_t count, const CUDA_BATCH_MEM_OP_NODE_PARAMS *batch) {
  if (batch == NULL || batch->paramArray == NULL || batch->count == 0 || batch->count > 256 ||
      batch->flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  CUcontext context = batch->ctx;
  CUresult result = context_of(&context);
  if (result == CUDA_SUCCESS)
    result = enter(node, graph, after, count);
  if (result != CUDA_SUCCESS)
    return result;
  CUgraph chain = gpusim_graph_new();
  CUgraphNode last = NULL;
  for (unsigned i = 0; i < batch->count && result == CUDA_SUCCESS; i++) {
    const struct operation_kind *kind;
    void *argument;
    if (batch->paramArray[i].operation == CU_STREAM_MEM_OP_BARRIER)
      continue; /* every operation already is one */
    result = gpusim_value_node(&batch->paramArray[i], context, &kind, &argument);
    if (result == CUDA_SUCCESS)
      last = gpusim_graph_append(chain, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
                                 gpusim_payload_new(kind, argument), NULL, &last,
                                 last != NULL ? 1 : 0);
  }
  if (result == CUDA_SUCCESS)
    *node = gpusim_graph_append(graph, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, NULL, chain, after, count);
  else
    gpusim_graph_free(chain);
  gpusim_unlock();
  return result;
}
