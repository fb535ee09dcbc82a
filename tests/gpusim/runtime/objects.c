/* Streams and events as objects: creation, destruction, and what events answer. */
#include "runtime.h"

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuStreamCreate(stream, CU_STREAM_DEFAULT));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuStreamCreate(stream, flags));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuStreamCreateWithPriority(stream, flags, priority));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuStreamDestroy(stream));
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)mode));
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuEventCreate(event, CU_EVENT_DEFAULT));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuEventCreate(event, flags));
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuEventDestroy(event));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuEventQuery(event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuEventSynchronize(event));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
  RUNTIME_ENTER();
  return runtime_result(driver.cuEventElapsedTime(ms, start, end));
}
