/* Calls without a context, and with pointers that nobody knows, a line for each answer. With `context` the same under one. */
#include <cuda.h>
#include <stdio.h>

static void host_memory(CUmemLocationType type, int id) {
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = type, .id = id}};
  CUmemGenericAllocationHandle handle;
  const CUresult made = cuMemCreate(&handle, (size_t)4 << 20, &properties, 0);
  printf("create type %d id %d: %d", (int)type, id, (int)made);
  printf(" release %d\n", made ? -1 : (int)cuMemRelease(handle));
}

static void calls(void) {
  CUdevice device = -1;
  CUdeviceptr memory = 0;
  size_t room = 0, total = 0;
  CUmemGenericAllocationHandle handle;
  const CUdeviceptr unknown = 0x123456789000;
  unsigned type = 0;
  printf("device %d\n", (int)cuCtxGetDevice(&device));
  host_memory(CU_MEM_LOCATION_TYPE_DEVICE, 0);
  host_memory(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0);
  host_memory(CU_MEM_LOCATION_TYPE_DEVICE, 99);
  const CUresult allocated = cuMemAlloc(&memory, (size_t)4 << 20);
  printf("alloc %d\n", (int)allocated);
  if (!allocated) {
    const int range = cuMemRetainAllocationHandle(&handle, (void *)memory) == CUDA_SUCCESS;
    fprintf(stderr, "range %s\n", range ? "yes" : "no");
    printf("free %d\n", (int)cuMemFree(memory));
  }
  printf("room %d %d\n", (int)cuMemGetInfo(&room, &total), room <= total);
  printf("free unknown %d zero %d\n", (int)cuMemFree(unknown), (int)cuMemFree(0));
  printf("free in order: unknown %d, zero %d\n", (int)cuMemFreeAsync(unknown, NULL),
         (int)cuMemFreeAsync(0, NULL));
  printf("attribute %d bounds %d\n",
         (int)cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, unknown),
         (int)cuMemGetAddressRange(&memory, &room, unknown));
}

int main(int count, char **words) {
  CUcontext context;
  (void)words;
  printf("init %d\n", (int)cuInit(0));
  if (count > 1 && (cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)))
    return 1;
  calls();
  return 0;
}
