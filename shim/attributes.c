/* Pointer attributes of ranges (attributes.h): a pure function of the range, no driver calls. A
   moved piece is host memory to the driver; MPI, UCX and DLPack consumers branch on that and would
   touch it with the CPU, so the answer stays DEVICE (cuda.h, CUpointer_attribute). */
#include "attributes.h"
#include <string.h>

#define ANSWER(type, ...)                                                                          \
  do {                                                                                             \
    type answer = (type)(__VA_ARGS__);                                                             \
    memcpy(value, &answer, sizeof answer);                                                         \
    return true;                                                                                   \
  } while (0)

bool attribute_answer(const struct range *range, CUpointer_attribute attribute, CUdeviceptr pointer,
                      void *value, CUresult *result) {
  *result = CUDA_SUCCESS;
  switch ((int)attribute) {
  case CU_POINTER_ATTRIBUTE_CONTEXT:
    ANSWER(CUcontext, range->context);
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    ANSWER(unsigned, CU_MEMORYTYPE_DEVICE);
  case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    ANSWER(CUdeviceptr, pointer);
  case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    *result = CUDA_ERROR_INVALID_VALUE;
    ANSWER(void *, NULL);
  case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    ANSWER(unsigned long long, range->id);
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    ANSWER(bool, false);
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    ANSWER(int, range->device);
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    ANSWER(bool, false);
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
  case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    ANSWER(CUdeviceptr, range->base);
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
  case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    ANSWER(size_t, range->bytes);
  case CU_POINTER_ATTRIBUTE_MAPPED:
    ANSWER(bool, true);
  case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    ANSWER(unsigned long long, 0);
  case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    ANSWER(unsigned, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
  case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    ANSWER(CUmemoryPool, NULL);
  case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
    ANSWER(unsigned long long, range->id);
  default:
    return false;
  }
}

bool attribute_pins(CUpointer_attribute attribute) {
  return attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS ||
         attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ||
         attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID ||
         attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE ||
         attribute == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES ||
         attribute == CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE;
}
