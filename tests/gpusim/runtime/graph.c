/* Graphs as objects: making, asking, instantiating. What is launched into a stream or captured from
   one is in stream.c. Node types, edges and update results have the driver's values. */
#include "runtime.h"

_Static_assert((int)cudaGraphNodeTypeEventRecord == (int)CU_GRAPH_NODE_TYPE_EVENT_RECORD,
               "node types are handed on as they are");
_Static_assert(sizeof(cudaGraphEdgeData) == sizeof(CUgraphEdgeData),
               "edges are handed on as they are");
_Static_assert(sizeof(struct cudaHostNodeParams) == sizeof(CUDA_HOST_NODE_PARAMS),
               "host nodes are handed on as they are");

cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned flags) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuGraphCreate(graph, flags));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuGraphDestroy(graph));
}

cudaError_t cudaGraphClone(cudaGraph_t *copy, cudaGraph_t graph) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuGraphClone(copy, graph));
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                          unsigned long long flags) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuGraphInstantiateWithFlags(exec, graph, flags));
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                 unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(exec, graph, flags);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuGraphExecDestroy(exec));
}

cudaError_t cudaGraphExecGetFlags(cudaGraphExec_t exec, unsigned long long *flags) {
  RUNTIME_ENTER();
  cuuint64_t value = 0;
  CUresult result = driver.cuGraphExecGetFlags(exec, &value);
  if (flags != NULL)
    *flags = value;
  return runtime_result(result);
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo *info) {
  RUNTIME_ENTER();
  CUgraphExecUpdateResultInfo found = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
  CUresult result = driver.cuGraphExecUpdate(exec, graph, &found);
  if (info != NULL) {
    info->result = (enum cudaGraphExecUpdateResult)found.result;
    info->errorNode = found.errorNode;
    info->errorFromNode = found.errorFromNode;
  }
  return runtime_result(result);
}

cudaError_t cudaGraphNodeSetEnabled(cudaGraphExec_t exec, cudaGraphNode_t node, unsigned enabled) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuGraphNodeSetEnabled(exec, node, enabled));
}

/* ---- questions ---- */

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuGraphGetNodes(graph, nodes, count));
}

cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuGraphGetRootNodes(graph, nodes, count));
}

cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t *from, cudaGraphNode_t *to,
                              cudaGraphEdgeData *edges, size_t *count) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuGraphGetEdges(graph, from, to, (CUgraphEdgeData *)edges, count));
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *type) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuGraphNodeGetType(node, (CUgraphNodeType *)type));
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *nodes,
                                         cudaGraphEdgeData *edges, size_t *count) {
  RUNTIME_ENTER();
  return runtime_result(
      driver.cuGraphNodeGetDependencies(node, nodes, (CUgraphEdgeData *)edges, count));
}

cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t *nodes,
                                           cudaGraphEdgeData *edges, size_t *count) {
  RUNTIME_ENTER();
  return runtime_result(
      driver.cuGraphNodeGetDependentNodes(node, nodes, (CUgraphEdgeData *)edges, count));
}

/* ---- nodes and edges ---- */

cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t *from,
                                     const cudaGraphNode_t *to, const cudaGraphEdgeData *edges,
                                     size_t count) {
  RUNTIME_ENTER();
  return runtime_result(
      driver.cuGraphAddDependencies(graph, from, to, (const CUgraphEdgeData *)edges, count));
}

static cudaError_t kernel_parameters(const struct cudaKernelNodeParams *p,
                                     CUDA_KERNEL_NODE_PARAMS *out) {
  CUfunction function;
  if (p == NULL)
    return cudaErrorInvalidValue;
  cudaError_t error = runtime_function(p->func, &function);
  if (error != cudaSuccess)
    return error;
  *out = (CUDA_KERNEL_NODE_PARAMS){.func = function,
                                   .gridDimX = p->gridDim.x,
                                   .gridDimY = p->gridDim.y,
                                   .gridDimZ = p->gridDim.z,
                                   .blockDimX = p->blockDim.x,
                                   .blockDimY = p->blockDim.y,
                                   .blockDimZ = p->blockDim.z,
                                   .sharedMemBytes = p->sharedMemBytes,
                                   .kernelParams = p->kernelParams,
                                   .extra = p->extra};
  return cudaSuccess;
}

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                   const cudaGraphNode_t *after, size_t count,
                                   const struct cudaKernelNodeParams *parameters) {
  RUNTIME_ENTER();
  CUDA_KERNEL_NODE_PARAMS own;
  cudaError_t error = kernel_parameters(parameters, &own);
  if (error != cudaSuccess)
    return runtime_fail(error);
  return runtime_result(driver.cuGraphAddKernelNode(node, graph, after, count, &own));
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const struct cudaKernelNodeParams *parameters) {
  RUNTIME_ENTER();
  CUDA_KERNEL_NODE_PARAMS own;
  cudaError_t error = kernel_parameters(parameters, &own);
  if (error != cudaSuccess)
    return runtime_fail(error);
  return runtime_result(driver.cuGraphExecKernelNodeSetParams(exec, node, &own));
}

cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t *node, cudaGraph_t graph,
                                     const cudaGraphNode_t *after, size_t count, void *to,
                                     const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  RUNTIME_ENTER();
  (void)kind; /* addresses tell */
  CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                        .srcDevice = device_address(from),
                        .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                        .dstDevice = device_address(to),
                        .WidthInBytes = bytes,
                        .Height = 1,
                        .Depth = 1};
  return runtime_result(driver.cuGraphAddMemcpyNode(node, graph, after, count, &copy, NULL));
}

cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                   const cudaGraphNode_t *after, size_t count,
                                   const struct cudaMemsetParams *p) {
  RUNTIME_ENTER();
  if (p == NULL)
    return runtime_fail(cudaErrorInvalidValue);
  CUDA_MEMSET_NODE_PARAMS fill = {.dst = device_address(p->dst),
                                  .pitch = p->pitch,
                                  .value = p->value,
                                  .elementSize = p->elementSize,
                                  .width = p->width,
                                  .height = p->height};
  return runtime_result(driver.cuGraphAddMemsetNode(node, graph, after, count, &fill, NULL));
}

cudaError_t cudaGraphAddHostNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                 const cudaGraphNode_t *after, size_t count,
                                 const struct cudaHostNodeParams *call) {
  RUNTIME_ENTER();
  return runtime_result(
      driver.cuGraphAddHostNode(node, graph, after, count, (const CUDA_HOST_NODE_PARAMS *)call));
}

cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                  const cudaGraphNode_t *after, size_t count) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuGraphAddEmptyNode(node, graph, after, count));
}

cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                       const cudaGraphNode_t *after, size_t count,
                                       cudaGraph_t child) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuGraphAddChildGraphNode(node, graph, after, count, child));
}

cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                        const cudaGraphNode_t *after, size_t count,
                                        cudaEvent_t event) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuGraphAddEventRecordNode(node, graph, after, count, event));
}

cudaError_t cudaGraphAddEventWaitNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                      const cudaGraphNode_t *after, size_t count,
                                      cudaEvent_t event) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuGraphAddEventWaitNode(node, graph, after, count, event));
}
