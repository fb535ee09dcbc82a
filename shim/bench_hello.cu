// The smallest CUDA program, for its start-up: an allocation, a kernel, a copy.
#include <cstdio>

__global__ void answer(int *x) {
  *x = 42;
}

int main() {
  int *x, y = 0;
  if (cudaMalloc(&x, sizeof *x))
    return 1;
  answer<<<1, 1>>>(x);
  if (cudaMemcpy(&y, x, sizeof y, cudaMemcpyDeviceToHost) || cudaFree(x))
    return 1;
  printf("%d\n", y);
  return y != 42;
}
