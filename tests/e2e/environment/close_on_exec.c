/* The same by the driver's API, whose first meeting with the preload comes after the files are open: opened as
   interpreters open them, which no inherited descriptor is. */
#include <cuda.h>
#include <stdio.h>

int main(void) {
  FILE *files[3] = {fopen("one.dat", "we"), fopen("two.dat", "we"), fopen("three.dat", "we")};
  CUcontext context;
  CUdeviceptr memory;
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
      cuMemAlloc(&memory, (size_t)4 << 20) || cuMemFree(memory))
    return 1;
  for (int i = 0; i < 3; i++)
    if (!files[i] || fprintf(files[i], "descriptor %d answer 42\n", fileno(files[i])) < 0)
      return 1;
  return 0;
}
