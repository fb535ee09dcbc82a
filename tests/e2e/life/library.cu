// A library with a kernel of its own, registered with the runtime when it is loaded and given back when it is closed.
#include <cuda_runtime.h>

__global__ void up(int *number, int by) {
  atomicAdd(number, by);
}

extern "C" int count_up(int by) {
  int *number = nullptr, result = -1;
  if (cudaMalloc(&number, sizeof *number) != cudaSuccess ||
      cudaMemset(number, 0, sizeof *number) != cudaSuccess)
    return -1;
  up<<<2, 32>>>(number, by);
  if (cudaMemcpy(&result, number, sizeof result, cudaMemcpyDeviceToHost) != cudaSuccess ||
      cudaFree(number) != cudaSuccess)
    return -1;
  return result;
}
