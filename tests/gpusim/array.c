/* Arrays: rows of elements in device memory that have no address for the program. Here they lie row
   after row without gaps; copies reach them by gpusim_array. No textures or surfaces, no layers. */
#include "tests/gpusim/driver.h"
#include <stdlib.h>

struct CUarray_st {
  CUDA_ARRAY3D_DESCRIPTOR descriptor;
  CUdeviceptr address;
  size_t pitch, rows, planes; /* pitch in bytes */
};

static size_t element_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
  const size_t channels = descriptor->NumChannels;
  if (channels != 1 && channels != 2 && channels != 4)
    return 0;
  switch ((int)descriptor->Format) {
  case CU_AD_FORMAT_UNSIGNED_INT8:
  case CU_AD_FORMAT_SIGNED_INT8:
    return channels;
  case CU_AD_FORMAT_UNSIGNED_INT16:
  case CU_AD_FORMAT_SIGNED_INT16:
  case CU_AD_FORMAT_HALF:
    return 2 * channels;
  case CU_AD_FORMAT_UNSIGNED_INT32:
  case CU_AD_FORMAT_SIGNED_INT32:
  case CU_AD_FORMAT_FLOAT:
    return 4 * channels;
  default:
    return 0;
  }
}

uintptr_t gpusim_array(CUarray array, size_t *pitch, size_t *rows) {
  if (!gpusim_handle_is(array, HANDLE_ARRAY))
    return 0;
  *pitch = array->pitch;
  *rows = array->rows;
  return array->address;
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
  if (array == NULL || descriptor == NULL || descriptor->Width == 0 || descriptor->Flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const size_t bytes = element_bytes(descriptor);
  if (bytes == 0)
    return CUDA_ERROR_INVALID_VALUE;
  struct CUarray_st made = {.descriptor = *descriptor,
                            .pitch = descriptor->Width * bytes,
                            .rows = descriptor->Height ? descriptor->Height : 1,
                            .planes = descriptor->Depth ? descriptor->Depth : 1};
  CUresult result = cuMemAlloc_v2(&made.address, made.pitch * made.rows * made.planes);
  if (result != CUDA_SUCCESS)
    return result;
  *array = gpusim_new(sizeof **array);
  **array = made;
  gpusim_handle_add(*array, HANDLE_ARRAY, NULL);
  return CUDA_SUCCESS;
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor) {
  if (descriptor == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  const CUDA_ARRAY3D_DESCRIPTOR flat = {.Width = descriptor->Width,
                                        .Height = descriptor->Height,
                                        .Format = descriptor->Format,
                                        .NumChannels = descriptor->NumChannels};
  return cuArray3DCreate_v2(array, &flat);
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *descriptor, CUarray array) {
  if (descriptor == NULL || !gpusim_handle_is(array, HANDLE_ARRAY))
    return CUDA_ERROR_INVALID_VALUE;
  *descriptor = (CUDA_ARRAY_DESCRIPTOR){.Width = array->descriptor.Width,
                                        .Height = array->descriptor.Height,
                                        .Format = array->descriptor.Format,
                                        .NumChannels = array->descriptor.NumChannels};
  return CUDA_SUCCESS;
}

/* Waits for the work that may use it, as cuMemFree does. */
CUresult cuArrayDestroy(CUarray array) {
  if (!gpusim_handle_is(array, HANDLE_ARRAY))
    return CUDA_ERROR_INVALID_HANDLE;
  CUresult result = cuMemFree_v2(array->address);
  if (result == CUDA_SUCCESS) {
    gpusim_handle_remove(array);
    free(array);
  }
  return result;
}

/* Runs of bytes in an array of one row (cuda.h: offsets count from the array's beginning). */
static CUdeviceptr inside(CUarray array, size_t offset, size_t bytes) {
  if (!gpusim_handle_is(array, HANDLE_ARRAY) || offset > array->pitch * array->rows ||
      bytes > array->pitch * array->rows - offset)
    return 0;
  return array->address + offset;
}

CUresult cuMemcpyDtoA_v2(CUarray to, size_t offset, CUdeviceptr from, size_t bytes) {
  CUdeviceptr at = inside(to, offset, bytes);
  return at != 0 ? cuMemcpyDtoD_v2(at, from, bytes) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t offset, size_t bytes) {
  CUdeviceptr at = inside(from, offset, bytes);
  return at != 0 ? cuMemcpyDtoD_v2(to, at, bytes) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpyHtoA_v2(CUarray to, size_t offset, const void *from, size_t bytes) {
  CUdeviceptr at = inside(to, offset, bytes);
  return at != 0 ? cuMemcpyHtoD_v2(at, from, bytes) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpyAtoH_v2(void *to, CUarray from, size_t offset, size_t bytes) {
  CUdeviceptr at = inside(from, offset, bytes);
  return at != 0 ? cuMemcpyDtoH_v2(to, at, bytes) : CUDA_ERROR_INVALID_VALUE;
}
