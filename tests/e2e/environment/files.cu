// A program that opens three files before its first CUDA call and keeps them to the end. Started with descriptors 0 to 2
// closed, it gets those numbers for its files.
#include <cstdio>

__global__ void answer(int *x) {
  *x = 42;
}

int main() {
  static const char *const names[] = {"one.dat", "two.dat", "three.dat"};
  FILE *files[3];
  int *x, y = 0;
  for (int i = 0; i < 3; i++)
    if (!(files[i] = fopen(names[i], "w")))
      return 1;
  if (cudaMalloc(&x, 4 << 20))
    return 1;
  answer<<<1, 1>>>(x);
  if (cudaMemcpy(&y, x, sizeof y, cudaMemcpyDeviceToHost) || cudaFree(x))
    return 1;
  for (int i = 0; i < 3; i++)
    fprintf(files[i], "descriptor %d answer %d\n", fileno(files[i]), y);
  return 0;
}
