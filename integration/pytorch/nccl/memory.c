/* ncclMemAlloc's and the communicators' own device memory. */
#include "integration/pytorch/nccl/memory.h"
#include "integration/pytorch/nccl/error.h"

static CUmemAllocationProp properties_of(int device) {
  CUmemAllocationProp properties = {
      .type = CU_MEM_ALLOCATION_TYPE_PINNED,
      .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
  };
  return properties;
}

static ncclResult_t map(CUdeviceptr *address, size_t bytes, int device,
                        CUmemGenericAllocationHandle handle) {
  CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr at = 0;
  ncclResult_t result = CHECK_CUDA(cuMemAddressReserve(&at, bytes, 0, 0, 0));
  if (result != ncclSuccess)
    return result;
  result = CHECK_CUDA(cuMemMap(at, bytes, 0, handle, 0));
  if (result == ncclSuccess) {
    result = CHECK_CUDA(cuMemSetAccess(at, bytes, &access, 1));
    if (result == ncclSuccess) {
      *address = at;
      return ncclSuccess;
    }
    driver.cuMemUnmap(at, bytes);
  }
  driver.cuMemAddressFree(at, bytes);
  return result;
}

ncclResult_t memory_allocate(CUdeviceptr *address, size_t bytes, int device) {
  CUmemAllocationProp properties = properties_of(device);
  CUmemGenericAllocationHandle handle;
  size_t granularity = 0;
  if (driver.cuMemGetAllocationGranularity(&granularity, &properties,
                                           CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS)
    return CHECK_CUDA(cuMemAlloc(address, bytes));
  size_t rounded = (bytes + granularity - 1) / granularity * granularity;
  CUresult created = driver.cuMemCreate(&handle, rounded, &properties, 0);
  if (created == CUDA_ERROR_NOT_SUPPORTED || created == CUDA_ERROR_NOT_PERMITTED)
    return CHECK_CUDA(cuMemAlloc(address, bytes));
  if (created != CUDA_SUCCESS)
    return driver_check(created, "cuMemCreate(");
  ncclResult_t result = map(address, rounded, device, handle);
  driver.cuMemRelease(handle); /* the mapping holds it */
  return result;
}

ncclResult_t memory_free(CUdeviceptr address) {
  CUmemGenericAllocationHandle handle;
  CUdeviceptr base = 0;
  size_t bytes = 0;
  if (address == 0)
    return ncclSuccess;
  if (driver.cuMemRetainAllocationHandle(&handle, (void *)address) != CUDA_SUCCESS)
    return CHECK_CUDA(cuMemFree(address));
  driver.cuMemRelease(handle);
  ncclResult_t result = CHECK_CUDA(cuMemGetAddressRange(&base, &bytes, address));
  if (result == ncclSuccess && base != address)
    result =
        nccl_fail(ncclInvalidArgument, "%p was not allocated by ncclMemAlloc", (void *)address);
  if (result == ncclSuccess)
    result = CHECK_CUDA(cuMemUnmap(base, bytes));
  if (result == ncclSuccess)
    result = CHECK_CUDA(cuMemAddressFree(base, bytes));
  return result;
}
