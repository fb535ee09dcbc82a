/* Preloaded before the library: a program's cuLaunchKernel becomes cuLaunchKernelEx, as newer runtimes launch. */
#include <cuda.h>
#include <stdio.h>

static int launches;

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                        CUstream stream, void **parameters, void **extra) {
  const CUlaunchConfig config = {.gridDimX = grid_x,
                                 .gridDimY = grid_y,
                                 .gridDimZ = grid_z,
                                 .blockDimX = block_x,
                                 .blockDimY = block_y,
                                 .blockDimZ = block_z,
                                 .sharedMemBytes = shared,
                                 .hStream = stream};
  launches++;
  return cuLaunchKernelEx(&config, function, parameters, extra);
}

__attribute__((destructor)) static void tell(void) {
  fprintf(stderr, "cuLaunchKernelEx %d times\n", launches);
}
