/* Refers weakly to the driver, which isn't loaded: under the preload they are not empty. */
#include <cuda.h>
#include <stdio.h>
/* NOLINTBEGIN(readability-redundant-declaration): weak here */
CUresult cuInit(unsigned) __attribute__((weak));
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t) __attribute__((weak));
/* NOLINTEND(readability-redundant-declaration) */

int main(void) {
  CUdeviceptr pointer;
  printf("%d %d\n", cuInit ? (int)cuInit(0) : 3,
         cuMemAlloc_v2 ? (int)cuMemAlloc_v2(&pointer, 8) : 3);
  return 0;
}
