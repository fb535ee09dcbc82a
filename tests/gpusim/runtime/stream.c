/* What a stream can be asked and told: waiting, events recorded in it, capture. Compiled twice, see
 * runtime.h. */
#include "runtime.h"

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuStreamSynchronize(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuStreamQuery(stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuStreamWaitEvent(stream, event, flags));
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuStreamGetPriority(stream, priority));
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuStreamGetFlags(stream, flags));
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuStreamGetId(stream, id));
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuStreamGetDevice(stream, device));
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *user,
                                  unsigned flags) {
  RUNTIME_ENTER();
  return runtime_result(
      driver.cuStreamAddCallback(stream, (CUstreamCallback)callback, user, flags));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuEventRecord(event, stream));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuEventRecordWithFlags(event, stream, flags));
}

/* ---- capture ---- */

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuStreamIsCapturing(stream, (CUstreamCaptureStatus *)status));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuStreamEndCapture(stream, graph));
}

_Static_assert(sizeof(cudaGraphEdgeData) == sizeof(CUgraphEdgeData),
               "edges are handed on as they are");

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *dependency_count) {
  RUNTIME_ENTER();
  cuuint64_t number = 0;
  CUresult result = driver.cuStreamGetCaptureInfo(
      stream, (CUstreamCaptureStatus *)status, &number, graph, dependencies,
      (const CUgraphEdgeData **)edges, dependency_count);
  if (id != NULL)
    *id = number;
  return runtime_result(result);
}

cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                          const cudaGraphNode_t *nodes,
                                          const cudaGraphEdgeData *edges, size_t count,
                                          enum cudaStreamCaptureMode mode) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuStreamBeginCaptureToGraph(
      stream, graph, nodes, (const CUgraphEdgeData *)edges, count, (CUstreamCaptureMode)mode));
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *nodes,
                                                const cudaGraphEdgeData *edges, size_t count,
                                                unsigned flags) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuStreamUpdateCaptureDependencies(
      stream, nodes, (const CUgraphEdgeData *)edges, count, flags));
}

/* ---- graphs ---- */

cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t *exec, cudaGraph_t graph,
                                           cudaGraphInstantiateParams *parameters) {
  RUNTIME_ENTER();
  if (parameters == NULL)
    return runtime_fail(cudaErrorInvalidValue);
  CUDA_GRAPH_INSTANTIATE_PARAMS own = {.flags = parameters->flags,
                                       .hUploadStream = parameters->uploadStream};
  CUresult result = driver.cuGraphInstantiateWithParams(exec, graph, &own);
  parameters->errNode_out = own.hErrNode_out;
  parameters->result_out = (cudaGraphInstantiateResult)own.result_out;
  return runtime_result(result);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuGraphLaunch(exec, stream));
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuGraphUpload(exec, stream));
}
