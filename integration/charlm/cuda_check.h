// Calls of the runtime that end the program's work when they fail, and the one copy that needs care.
#pragma once
#include <cuda_runtime.h>
#include <stdexcept>
#include <string>

#define CUDA_CHECK(call) ::charlm::check_cuda((call), #call, __FILE__, __LINE__)

namespace charlm {

struct CudaError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void check_cuda(cudaError_t error, const char *call, const char *file, int line) {
  if (error != cudaSuccess)
    throw CudaError(std::string(call) + " failed: " + cudaGetErrorName(error) + " (" +
                    cudaGetErrorString(error) + ") at " + file + ":" + std::to_string(line));
}

// Copies pageable memory to the device and waits. A plain cudaMemcpy may return before the bytes arrive, and a
// non-blocking stream does not wait for it.
inline void copy_to_device(void *to, const void *from, size_t bytes, cudaStream_t stream) {
  CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

} // namespace charlm
