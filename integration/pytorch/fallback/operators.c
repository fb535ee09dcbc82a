/* What an operator that runs on the CPU does on the device first: an empty kernel with the
   addresses of the tensors as parameters, as the real operator's kernel would have them, and the
   wait for it. Called by gpusim_operators.py through ctypes, from any thread. */
#include "integration/pytorch/libraries/driver.h"
#include "integration/pytorch/libraries/touch.h"

/* Launches in `stream` of the calling thread's context and waits until the stream has done all that
   was asked of it. CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED while the stream is captured: what the CPU
   does then can't be repeated. */
__attribute__((visibility("default"))) CUresult
operators_begin(int device, CUstream stream, const CUdeviceptr *addresses, int count) {
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult result = touch_need_context(device);
  if (result == CUDA_SUCCESS)
    result = driver.cuStreamIsCapturing(stream, &capture);
  if (result == CUDA_SUCCESS && capture != CU_STREAM_CAPTURE_STATUS_NONE)
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (result == CUDA_SUCCESS)
    result = touch(TOUCH_OPERATOR, stream, addresses, count);
  return result == CUDA_SUCCESS ? driver.cuStreamSynchronize(stream) : result;
}
