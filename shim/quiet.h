/* Driver calls on our own behalf, whatever the program's thread is doing: while one is quiet, the
   thread's capture mode is relaxed, so that our calls neither fail because of nor invalidate a
   capture that another thread has open. */
#ifndef OFFLOAD_QUIET_H
#define OFFLOAD_QUIET_H
#include "driver.h"

static inline CUstreamCaptureMode quiet_begin(void) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (!driver.cuThreadExchangeStreamCaptureMode || driver.cuThreadExchangeStreamCaptureMode(&mode))
    mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  return mode;
}

static inline void quiet_end(CUstreamCaptureMode mode) {
  if (driver.cuThreadExchangeStreamCaptureMode)
    (void)driver.cuThreadExchangeStreamCaptureMode(&mode);
}
#endif
