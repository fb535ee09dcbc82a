// CUDA_CHECK(call): a failed runtime call ends the program's work with the call's text and place.
#pragma once
#include <cuda_runtime.h>
#include <stdexcept>
#include <string>

namespace charlm {

struct CudaError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void check_cuda(cudaError_t error, const char *call, const char *file, int line) {
  if (error != cudaSuccess)
    throw CudaError(std::string(call) + " failed: " + cudaGetErrorName(error) + " (" +
                    cudaGetErrorString(error) + ") at " + file + ":" + std::to_string(line));
}

} // namespace charlm

#define CUDA_CHECK(call) ::charlm::check_cuda((call), #call, __FILE__, __LINE__)
