/* The _ptsz and _ptds names: the same calls with the thread's own stream where the legacy one would
   be meant. A program reaches them by --default-stream per-thread or cuGetProcAddress with the
   per-thread flag. */
#include "tests/gpusim/driver.h"

#define OWN(stream) ((stream) != NULL ? (stream) : CU_STREAM_PER_THREAD)

/* Names whose last argument is the stream: PARAMETERS and ARGUMENTS without it. */
#define STREAM_LAST(name, PARAMETERS, ARGUMENTS)                                                   \
  GPUSIM_EXPORT CUresult name##_ptsz(UNPACK PARAMETERS, CUstream stream);                          \
  CUresult name##_ptsz(UNPACK PARAMETERS, CUstream stream) {                                       \
    return name(UNPACK ARGUMENTS, OWN(stream));                                                    \
  }
/* Names whose first argument is the stream. */
#define STREAM_FIRST(name, PARAMETERS, ARGUMENTS)                                                  \
  GPUSIM_EXPORT CUresult name##_ptsz(CUstream stream, UNPACK PARAMETERS);                          \
  CUresult name##_ptsz(CUstream stream, UNPACK PARAMETERS) {                                       \
    return name(OWN(stream), UNPACK ARGUMENTS);                                                    \
  }
#define UNPACK(...) __VA_ARGS__

STREAM_LAST(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes))
STREAM_LAST(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes),
            (to, from, bytes))
STREAM_LAST(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes), (to, from, bytes))
STREAM_LAST(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
            (to, from, bytes))
STREAM_LAST(cuMemcpyPeerAsync,
            (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
             size_t bytes),
            (to, to_context, from, from_context, bytes))
STREAM_LAST(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *p), (p))
STREAM_LAST(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *p), (p))
STREAM_LAST(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t n), (to, value, n))
STREAM_LAST(cuMemsetD16Async, (CUdeviceptr to, unsigned short value, size_t n), (to, value, n))
STREAM_LAST(cuMemsetD32Async, (CUdeviceptr to, unsigned value, size_t n), (to, value, n))
STREAM_LAST(cuMemsetD2D8Async,
            (CUdeviceptr to, size_t pitch, unsigned char value, size_t n, size_t height),
            (to, pitch, value, n, height))
STREAM_LAST(cuMemsetD2D16Async,
            (CUdeviceptr to, size_t pitch, unsigned short value, size_t n, size_t height),
            (to, pitch, value, n, height))
STREAM_LAST(cuMemsetD2D32Async,
            (CUdeviceptr to, size_t pitch, unsigned value, size_t n, size_t height),
            (to, pitch, value, n, height))
STREAM_LAST(cuMemPrefetchAsync_v2,
            (CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned flags),
            (pointer, bytes, location, flags))
STREAM_LAST(cuMemAllocAsync, (CUdeviceptr * pointer, size_t bytes), (pointer, bytes))
STREAM_LAST(cuMemAllocFromPoolAsync, (CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool),
            (pointer, bytes, pool))
STREAM_LAST(cuMemFreeAsync, (CUdeviceptr pointer), (pointer))
STREAM_LAST(cuEventRecord, (CUevent event), (event))

STREAM_FIRST(cuStreamGetPriority, (int *priority), (priority))
STREAM_FIRST(cuStreamGetFlags, (unsigned *flags), (flags))
STREAM_FIRST(cuStreamGetId, (unsigned long long *id), (id))
STREAM_FIRST(cuStreamGetDevice, (CUdevice * device), (device))
STREAM_FIRST(cuStreamGetCtx, (CUcontext * context), (context))
STREAM_FIRST(cuStreamGetCtx_v2, (CUcontext * context, CUgreenCtx *green), (context, green))
STREAM_FIRST(cuStreamWaitEvent, (CUevent event, unsigned flags), (event, flags))
STREAM_FIRST(cuStreamAddCallback, (CUstreamCallback callback, void *data, unsigned flags),
             (callback, data, flags))
STREAM_FIRST(cuLaunchHostFunc, (CUhostFn function, void *data), (function, data))
STREAM_FIRST(cuStreamWriteValue32_v2, (CUdeviceptr address, cuuint32_t value, unsigned flags),
             (address, value, flags))
STREAM_FIRST(cuStreamWaitValue32_v2, (CUdeviceptr address, cuuint32_t value, unsigned flags),
             (address, value, flags))
STREAM_FIRST(cuStreamWriteValue64_v2, (CUdeviceptr address, cuuint64_t value, unsigned flags),
             (address, value, flags))
STREAM_FIRST(cuStreamWaitValue64_v2, (CUdeviceptr address, cuuint64_t value, unsigned flags),
             (address, value, flags))
STREAM_FIRST(cuStreamBatchMemOp_v2,
             (unsigned count, CUstreamBatchMemOpParams *operations, unsigned flags),
             (count, operations, flags))
STREAM_FIRST(cuStreamBeginCapture_v2, (CUstreamCaptureMode mode), (mode))
STREAM_FIRST(cuStreamEndCapture, (CUgraph * graph), (graph))
STREAM_FIRST(cuStreamIsCapturing, (CUstreamCaptureStatus * status), (status))
STREAM_FIRST(cuStreamGetCaptureInfo, (CUstreamCaptureStatus * status, cuuint64_t *id), (status, id))
STREAM_FIRST(cuStreamGetCaptureInfo_v2,
             (CUstreamCaptureStatus * status, cuuint64_t *id, CUgraph *graph,
              const CUgraphNode **dependencies, size_t *count),
             (status, id, graph, dependencies, count))
STREAM_FIRST(cuStreamGetCaptureInfo_v3,
             (CUstreamCaptureStatus * status, cuuint64_t *id, CUgraph *graph,
              const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count),
             (status, id, graph, dependencies, edges, count))

STREAM_FIRST(cuStreamBeginCaptureToGraph,
             (CUgraph graph, const CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count,
              CUstreamCaptureMode mode),
             (graph, nodes, edges, count, mode))
STREAM_FIRST(cuStreamUpdateCaptureDependencies, (CUgraphNode * nodes, size_t count, unsigned flags),
             (nodes, count, flags))
STREAM_FIRST(cuStreamUpdateCaptureDependencies_v2,
             (CUgraphNode * nodes, const CUgraphEdgeData *edges, size_t count, unsigned flags),
             (nodes, edges, count, flags))
STREAM_LAST(cuGraphLaunch, (CUgraphExec graph), (graph))
STREAM_LAST(cuGraphUpload, (CUgraphExec graph), (graph))

GPUSIM_EXPORT CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
  return cuStreamBeginCapture(OWN(stream));
}

GPUSIM_EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                                         CUDA_GRAPH_INSTANTIATE_PARAMS *p);
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *p) {
  return cuGraphInstantiateWithParams(exec, graph, p); /* uploads need no stream here */
}

CUresult cuStreamSynchronize_ptsz(CUstream stream);
CUresult cuStreamSynchronize_ptsz(CUstream stream) {
  return cuStreamSynchronize(OWN(stream));
}

CUresult cuStreamQuery_ptsz(CUstream stream);
CUresult cuStreamQuery_ptsz(CUstream stream) {
  return cuStreamQuery(OWN(stream));
}

CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned flags);
CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned flags) {
  return cuEventRecordWithFlags(event, OWN(stream), flags);
}

CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                             unsigned by, unsigned bz, unsigned shared_bytes, CUstream stream,
                             void **parameters, void **extra) {
  return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared_bytes, OWN(stream), parameters, extra);
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz,
                                        unsigned bx, unsigned by, unsigned bz,
                                        unsigned shared_bytes, CUstream stream, void **parameters) {
  return cuLaunchCooperativeKernel(f, gx, gy, gz, bx, by, bz, shared_bytes, OWN(stream),
                                   parameters);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **parameters,
                               void **extra) {
  if (config == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUlaunchConfig own = *config;
  own.hStream = OWN(config->hStream);
  return cuLaunchKernelEx(&own, f, parameters, extra);
}

/* ---- synchronous copies and fills ---- */

CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return gpusim_copy(to, from, bytes, CU_STREAM_PER_THREAD);
}

CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t bytes) {
  return gpusim_copy(to, (CUdeviceptr)from, bytes, CU_STREAM_PER_THREAD);
}

CUresult cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes) {
  return gpusim_copy((CUdeviceptr)to, from, bytes, CU_STREAM_PER_THREAD);
}

CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return gpusim_copy(to, from, bytes, CU_STREAM_PER_THREAD);
}

CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                           CUcontext from_context, size_t bytes) {
  return gpusim_copy_peer(to, to_context, from, from_context, bytes, CU_STREAM_PER_THREAD, true);
}

CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *p) {
  return gpusim_copy_2d(p, CU_STREAM_PER_THREAD, true);
}

CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *p) {
  return gpusim_copy_2d(p, CU_STREAM_PER_THREAD, true);
}

CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D *p) {
  return gpusim_copy_3d(p, CU_STREAM_PER_THREAD, true);
}

#define FILLS(bits, type)                                                                          \
  CUresult cuMemsetD##bits##_v2_ptds(CUdeviceptr to, type value, size_t elements) {                \
    return gpusim_fill(to, 0, bits / 8, value, elements, 1, CU_STREAM_PER_THREAD, true);           \
  }                                                                                                \
  CUresult cuMemsetD2D##bits##_v2_ptds(CUdeviceptr to, size_t pitch, type value, size_t elements,  \
                                       size_t height) {                                            \
    return gpusim_fill(to, pitch, bits / 8, value, elements, height, CU_STREAM_PER_THREAD, true);  \
  }
FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned)
