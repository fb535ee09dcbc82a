/* What a program of the driver's API is and gets, a line each: whether it runs in secure-execution
   mode, whether the preload is in it, and whether a large allocation became a range (virtual memory
   has a handle to retain, native memory has none). */
#define _GNU_SOURCE
#include <cuda.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>

static int is_library(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size, (void)data;
  return strstr(info->dlpi_name, "liboffload.so") != NULL;
}

int main(void) {
  CUcontext context;
  CUdeviceptr memory;
  CUmemGenericAllocationHandle handle;
  unsigned value = 0;
  printf("secure %s\n", getauxval(AT_SECURE) ? "yes" : "no");
  printf("library %s\n", dl_iterate_phdr(is_library, NULL) ? "yes" : "no");
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
      cuMemAlloc(&memory, (size_t)4 << 20))
    return 1;
  const int range = cuMemRetainAllocationHandle(&handle, (void *)memory) == CUDA_SUCCESS;
  printf("range %s\n", range ? "yes" : "no");
  if (cuMemsetD32(memory, 42, 1) || cuMemcpyDtoH(&value, memory, sizeof value))
    return 1;
  printf("value %u\n", value);
  return 0;
}
