/* Synchronous reads of state (touch_serve of touch.h): from wherever a piece is to the program's memory, without it being
   brought in. A copy to pageable memory is complete when it returns, also by the asynchronous calls (CUDA driver API, "API
   synchronization behavior"); pinned memory is synchronous by name only. */
#include "drive.h"
#include "driver.h"
#include "quiet.h"
#include "touch.h"

/* The driver knows nothing of pageable memory. What it calls managed or the device's isn't the host's. */
static bool host_memory(const void *destination, bool pinned_too) {
  unsigned type = 0;
  const CUresult result = driver.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                       (CUdeviceptr)(uintptr_t)destination);
  if (result == CUDA_ERROR_INVALID_VALUE)
    return true;
  bool managed = true;
  return pinned_too && result == CUDA_SUCCESS && type == CU_MEMORYTYPE_HOST &&
         driver.cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                      (CUdeviceptr)(uintptr_t)destination) == CUDA_SUCCESS &&
         !managed;
}

/* An event stands where the copy would: in the legacy stream behind what all blocking streams have, in those behind the
   legacy stream. */
static CUresult wait_as_copy(CUstream stream, CUcontext context) {
  CUcontext current = NULL;
  CUevent event;
  DRIVER_TRY(driver.cuCtxGetCurrent(&current));
  const bool push = context != current;
  if (push)
    DRIVER_TRY(driver.cuCtxPushCurrent_v2(context));
  CUresult result = driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  if (!result) {
    result = driver.cuEventRecord(event, stream);
    if (!result)
      result = driver.cuEventSynchronize(event);
    (void)driver.cuEventDestroy_v2(event);
  }
  if (push)
    (void)driver.cuCtxPopCurrent_v2(&current);
  return result;
}

bool touch_serve(void *destination, uintptr_t source, size_t bytes, CUstream stream, bool blocks,
                 CUresult *result) {
  uintptr_t low, high;
  range_watched(&low, &high);
  if (source < low || source >= high || !bytes)
    return false;
  const struct range *range = range_find(source);
  const struct toucher by = touch_by(stream);
  if (!range || bytes > range->bytes - (source - range->base) || !touch_watched(range) ||
      by.captured || !by.context || range_find((uintptr_t)destination))
    return false;
  CUstreamCaptureMode mode = quiet_begin();
  const bool served = host_memory(destination, blocks);
  *result = served ? wait_as_copy(stream, by.context) : CUDA_SUCCESS;
  quiet_end(mode);
  if (served && *result == CUDA_SUCCESS)
    *result = drive_serve(destination, source, bytes);
  return served;
}
