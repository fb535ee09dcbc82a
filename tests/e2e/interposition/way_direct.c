/* A program or, with a name for its function, a library that is linked against the driver and uses
   it by name. Compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM it means the per-thread forms. */
#include "way.h"

#ifndef USE
#define USE main
#endif
int USE(void);
int USE(void) {
  const struct way way = {.cuInit = cuInit,
                          .cuDeviceGet = cuDeviceGet,
                          .cuDevicePrimaryCtxRetain = cuDevicePrimaryCtxRetain,
                          .cuCtxSetCurrent = cuCtxSetCurrent,
                          .cuMemAlloc_v2 = cuMemAlloc,
                          .cuMemcpyHtoD_v2 = cuMemcpyHtoD,
                          .cuMemcpyDtoH_v2 = cuMemcpyDtoH,
                          .cuMemGetAddressRange_v2 = cuMemGetAddressRange,
                          .cuMemFree_v2 = cuMemFree};
  return way_use(&way);
}
