/* Refers weakly to the driver, which isn't loaded: under the preload the references are not empty.
 */
#include <cuda.h>
#include <stdio.h>
CUresult cuInit(unsigned)
    __attribute__((weak)); /* NOLINT(readability-redundant-declaration): weak */
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t) __attribute__((weak));
int main(void) {
  CUdeviceptr pointer;
  printf("%d %d\n", cuInit ? (int)cuInit(0) : 3,
         cuMemAlloc_v2 ? (int)cuMemAlloc_v2(&pointer, 8) : 3);
  return 0;
}
