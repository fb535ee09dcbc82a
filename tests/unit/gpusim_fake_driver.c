/* A libcuda.so.1 for tests/unit/gpusim_runtime_calls.c alone: it records what the runtime asks for
   and calls. As the simulated and the real driver it is reached through cuGetProcAddress_v2 only.
 */
#define _GNU_SOURCE
#include "gpusim_fake_driver.h"
#include <execinfo.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT struct fake_driver_log fake_driver_log;

static int a_context;

static CUresult fake_init(unsigned flags) {
  (void)flags;
  fake_driver_log.lookups_before_init = fake_driver_log.lookup_count;
  return CUDA_SUCCESS;
}

static CUresult fake_device_count(int *count) {
  *count = 1;
  return CUDA_SUCCESS;
}

static CUresult fake_retain(CUcontext *context, CUdevice device) {
  (void)device;
  *context = (CUcontext)&a_context;
  return CUDA_SUCCESS;
}

static _Thread_local CUcontext current;

static CUresult fake_get_current(CUcontext *context) {
  *context = current;
  return CUDA_SUCCESS;
}

static CUresult fake_set_current(CUcontext context) {
  current = context;
  return CUDA_SUCCESS;
}

static CUresult fake_alloc(CUdeviceptr *address, size_t bytes) {
  (void)bytes;
  fake_driver_log.frame_count = backtrace(fake_driver_log.frames, FAKE_DRIVER_FRAMES);
  *address = 0x1000;
  return CUDA_SUCCESS;
}

static CUresult fake_synchronize_legacy(CUstream stream) {
  (void)stream;
  fake_driver_log.legacy_calls++;
  return CUDA_SUCCESS;
}

static CUresult fake_synchronize_per_thread(CUstream stream) {
  (void)stream;
  fake_driver_log.per_thread_calls++;
  return CUDA_SUCCESS;
}

static const struct {
  const char *name;
  void *function, *per_thread;
} functions[] = {
    {"cuInit", (void *)fake_init, NULL},
    {"cuDeviceGetCount", (void *)fake_device_count, NULL},
    {"cuDevicePrimaryCtxRetain", (void *)fake_retain, NULL},
    {"cuCtxGetCurrent", (void *)fake_get_current, NULL},
    {"cuCtxSetCurrent", (void *)fake_set_current, NULL},
    {"cuMemAlloc", (void *)fake_alloc, NULL},
    {"cuStreamSynchronize", (void *)fake_synchronize_legacy, (void *)fake_synchronize_per_thread},
};

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version,
                                    cuuint64_t flags, CUdriverProcAddressQueryResult *status) {
  struct fake_driver_log *log = &fake_driver_log;
  if (log->lookup_count < FAKE_DRIVER_LOOKUPS)
    log->lookups[log->lookup_count++] =
        (struct fake_driver_lookup){name, version, (unsigned)flags, status != NULL};
  *function = NULL;
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
    if (strcmp(functions[i].name, name) == 0)
      *function =
          flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM && functions[i].per_thread != NULL
              ? functions[i].per_thread
              : functions[i].function;
  return *function != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
