/* A library that brings its own runtime, or uses the program's, and treats memory as collectives
   libraries do: driver functions by cudaGetDriverEntryPoint; buffers by cudaMalloc or by cuMemCreate;
   freeing by what the driver says of an address; registering the program's buffers after asking for
   their bounds. Each function answers 0 when all went as for native memory, else the number of the
   line that didn't. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define NEED(condition)                                                                            \
  do {                                                                                             \
    if (!(condition))                                                                              \
      return __LINE__;                                                                             \
  } while (0)

/* The formatter finds no end of reordering this list. */
/* clang-format off */
#define FUNCTIONS(F)                                                                               \
  F(cuMemCreate)                                                                                   \
  F(cuMemRelease) F(cuMemAddressReserve) F(cuMemAddressFree) F(cuMemMap) F(cuMemUnmap)             \
      F(cuMemSetAccess) F(cuMemRetainAllocationHandle) F(cuMemGetAddressRange)                     \
          F(cuMemGetAllocationGranularity) F(cuPointerGetAttribute)
/* clang-format on */
#define DECLARE(name) static __typeof__(&name) p_##name;
FUNCTIONS(DECLARE)

static int load(void) {
#define LOAD(name)                                                                                 \
  NEED(!cudaGetDriverEntryPointByVersion(#name, (void **)&p_##name, 12040, cudaEnableDefault,      \
                                         NULL) &&                                                  \
       p_##name);
  FUNCTIONS(LOAD)
  return 0;
}

/* A handle behind an address: memory that was mapped. */
static int is_virtual(CUdeviceptr address) {
  CUmemGenericAllocationHandle handle;
  if (p_cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address))
    return 0;
  (void)p_cuMemRelease(handle);
  return 1;
}

/* 0: memory of cudaMalloc is native here; -1: it was made of pieces. */
EXPORT int buffer(CUdeviceptr program, size_t bytes) {
  void *memory;
  unsigned char first = 0;
  (void)program;
  NEED(!load());
  NEED(!cudaMalloc(&memory, bytes));
  NEED(!cudaMemset(memory, 0x5a, bytes));
  NEED(!cudaMemcpy(&first, memory, 1, cudaMemcpyDeviceToHost) && first == 0x5a);
  const int made_of_pieces = is_virtual((CUdeviceptr)(uintptr_t)memory);
  NEED(!cudaFree(memory));
  return made_of_pieces ? -1 : 0;
}

/* Its own mapped memory, freed by what the driver tells about the address. */
EXPORT int mapped(CUdeviceptr program, size_t bytes) {
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                    .requestedHandleTypes =
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
  const CUmemAccessDesc access = {{.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle, retained;
  CUdeviceptr address;
  size_t granularity = 0, size = 0;
  (void)program;
  NEED(!load() && !cudaFree(NULL));
  NEED(!p_cuMemGetAllocationGranularity(&granularity, &properties,
                                        CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  bytes = (bytes + granularity - 1) / granularity * granularity;
  NEED(!p_cuMemCreate(&handle, bytes, &properties, 0));
  NEED(!p_cuMemAddressReserve(&address, bytes, granularity, 0, 0));
  NEED(!p_cuMemMap(address, bytes, 0, handle, 0));
  NEED(!p_cuMemSetAccess(address, bytes, &access, 1));
  NEED(!cudaMemset((void *)(uintptr_t)address, 1, bytes) && !cudaDeviceSynchronize());
  NEED(!p_cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)address));
  NEED(retained == handle && !p_cuMemRelease(retained));
  NEED(!p_cuMemGetAddressRange(NULL, &size, address) && size == bytes);
  NEED(!p_cuMemUnmap(address, size));
  NEED(!p_cuMemRelease(handle));
  NEED(!p_cuMemAddressFree(address, size));
  return 0;
}

/* A buffer of the program's that it takes hold of. */
EXPORT int registered(CUdeviceptr program, size_t bytes) {
  CUdeviceptr base = 0;
  size_t size = 0;
  unsigned type = 0;
  NEED(!load());
  NEED(!p_cuMemGetAddressRange(&base, &size, program + bytes / 2));
  NEED(base == program && size == bytes);
  NEED(!p_cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, program));
  return type == CU_MEMORYTYPE_DEVICE ? 0 : __LINE__;
}

/* Host memory of its own by cuMemCreate, asked for with a device but perhaps no context. */
EXPORT int host_probe(CUdeviceptr program, size_t bytes) {
  const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .location = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA}};
  CUmemGenericAllocationHandle handle;
  (void)program;
  NEED(!load());
  NEED(!p_cuMemCreate(&handle, bytes, &properties, 0));
  NEED(!p_cuMemRelease(handle));
  return 0;
}
