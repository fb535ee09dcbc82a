/* The empty kernels. They are a library's, not a module's: good in every context. Loaded once per
   process; the kernels are written under `once` and read afterwards. */
#include "integration/pytorch/libraries/touch.h"
#include "integration/pytorch/libraries/driver.h"
#include <pthread.h>
#include <stddef.h>

/* Addresses one launch takes. */
#define ADDRESSES 16

#define FOUR(n)                                                                                    \
  ".param .u64 a" #n "0, .param .u64 a" #n "1, .param .u64 a" #n "2, .param .u64 a" #n "3"
#define PARAMETERS FOUR(0) ", " FOUR(1) ", " FOUR(2) ", " FOUR(3)
static const char image[] = ".version 7.0\n.target sm_75\n.address_size 64\n"
#define KERNEL(word, name) ".visible .entry " #name "(" PARAMETERS ")\n{\n  ret;\n}\n"
#include "integration/pytorch/libraries/touch.def"
#undef KERNEL
    ;
static const char *const names[] = {
#define KERNEL(word, name) #name,
#include "integration/pytorch/libraries/touch.def"
#undef KERNEL
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CUresult loaded;
static CUfunction kernels[TOUCH_KERNELS];

static void load_kernels(void) {
  CUlibrary library;
  loaded = driver.cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0);
  for (int i = 0; i < TOUCH_KERNELS && loaded == CUDA_SUCCESS; i++) {
    CUkernel found = NULL;
    loaded = driver.cuLibraryGetKernel(&found, library, names[i]);
    kernels[i] = (CUfunction)found;
  }
}

CUresult touch_need_context(int device) {
  CUcontext context = NULL;
  CUresult result = driver_open();
  if (result == CUDA_SUCCESS)
    result = driver.cuCtxGetCurrent(&context);
  if (result != CUDA_SUCCESS || context != NULL)
    return result;
  result = driver.cuDevicePrimaryCtxRetain(&context, device);
  return result == CUDA_SUCCESS ? driver.cuCtxSetCurrent(context) : result;
}

CUresult touch(enum touch_kernel kernel, CUstream stream, const CUdeviceptr *addresses, int count) {
  CUresult result = driver_open();
  if (result != CUDA_SUCCESS)
    return result;
  pthread_once(&once, load_kernels);
  result = loaded;
  for (int at = 0; at < count && result == CUDA_SUCCESS; at += ADDRESSES) {
    CUdeviceptr values[ADDRESSES];
    void *parameters[ADDRESSES];
    for (int i = 0; i < ADDRESSES; i++) {
      values[i] = at + i < count ? addresses[at + i] : 0;
      parameters[i] = &values[i];
    }
    result = driver.cuLaunchKernel(kernels[kernel], 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
  }
  return result;
}
