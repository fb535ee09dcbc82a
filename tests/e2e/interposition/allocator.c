/* Stands for a library that allocates device memory on behalf of a program. */
#include <cuda.h>
CUresult allocate(CUdeviceptr *, size_t);
CUresult allocate(CUdeviceptr *pointer, size_t bytes) {
  CUresult result = cuMemAlloc(pointer, bytes);
  return result; /* not a jump: this library has to be on the stack */
}
