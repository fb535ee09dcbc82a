/* State outside of ranges (outside.h): pools of cudaMallocAsync, and virtual memory that the program maps itself, as
   PyTorch's expandable segments are. The driver tells them apart. */
#include "outside.h"
#include "../policy/report.h"
#include "driver.h"

static bool in_pool(uintptr_t address) {
  CUmemoryPool pool = NULL;
  return driver.cuPointerGetAttribute &&
         !driver.cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) && pool;
}

static bool in_mapping(uintptr_t address) {
  CUmemGenericAllocationHandle handle;
  if (!driver.cuMemRetainAllocationHandle || !driver.cuMemRelease ||
      driver.cuMemRetainAllocationHandle(&handle, (void *)address))
    return false;
  (void)driver.cuMemRelease(handle);
  return true;
}

void outside_tell(const struct moment *moments, size_t count) {
  static bool said;
  size_t pooled = 0, mapped = 0;
  for (size_t i = 0; i < count && !said; i++) {
    if (moments[i].range || !moments[i].bytes)
      continue;
    if (in_pool(moments[i].address))
      pooled += moments[i].bytes;
    else if (in_mapping(moments[i].address))
      mapped += moments[i].bytes;
  }
  if (pooled)
    report_notice(
        "%zu bytes of optimizer state lie in a pool of cudaMallocAsync and stay on the device: "
        "take backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF",
        pooled);
  if (mapped)
    report_notice(
        "%zu bytes of optimizer state lie in virtual memory that the program maps itself and stay "
        "on the device: take expandable_segments:True out of PYTORCH_CUDA_ALLOC_CONF",
        mapped);
  said |= pooled || mapped;
}
