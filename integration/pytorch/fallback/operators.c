/* What an operator that runs on the CPU does on the device first: an empty kernel with the
   addresses of the tensors as parameters, as the real operator's kernel would have them, and the
   wait for it. Called by gpusim_operators.py through ctypes, from any thread. The driver is found
   and called as programs do it, so whatever is preloaded before the driver meets these calls. */
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

/* Addresses one launch takes; more tensors are more launches. */
#define ADDRESSES 16

#define FOUR(n)                                                                                    \
  ".param .u64 a" #n "0, .param .u64 a" #n "1, .param .u64 a" #n "2, .param .u64 a" #n "3"
static const char image[] = ".version 7.0\n.target sm_75\n.address_size 64\n"
                            ".visible .entry operator_on_the_cpu(" FOUR(0) ", " FOUR(1) ", " FOUR(
                                2) ", " FOUR(3) ")\n{\n  ret;\n}\n";

#define FUNCTION(result, name, ...) static result (*name##_call)(__VA_ARGS__)
FUNCTION(CUresult, cuLibraryLoadData, CUlibrary *, const void *, CUjit_option *, void **,
         unsigned int, CUlibraryOption *, void **, unsigned int);
FUNCTION(CUresult, cuLibraryGetKernel, CUkernel *, CUlibrary, const char *);
FUNCTION(CUresult, cuLaunchKernel, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
         unsigned, unsigned, CUstream, void **, void **);
FUNCTION(CUresult, cuStreamSynchronize, CUstream);
FUNCTION(CUresult, cuCtxGetCurrent, CUcontext *);
FUNCTION(CUresult, cuCtxSetCurrent, CUcontext);
FUNCTION(CUresult, cuDevicePrimaryCtxRetain, CUcontext *, CUdevice);
FUNCTION(CUresult, cuStreamIsCapturing, CUstream, CUstreamCaptureStatus *);

static pthread_once_t find_once = PTHREAD_ONCE_INIT, load_once = PTHREAD_ONCE_INIT;
static CUresult find_result, load_result; /* written once, under find_once and load_once */
static CUfunction kernel;                 /* the library's: good in every context */

static void find_driver(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  find_result = CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
  if (driver == NULL) {
    fprintf(stderr, "operators: %s\n", dlerror());
    return;
  }
#define FIND(name) *(void **)&name##_call = dlsym(driver, #name)
  FIND(cuLibraryLoadData);
  FIND(cuLibraryGetKernel);
  FIND(cuLaunchKernel);
  FIND(cuStreamSynchronize);
  FIND(cuStreamIsCapturing);
  FIND(cuCtxGetCurrent);
  FIND(cuCtxSetCurrent);
  FIND(cuDevicePrimaryCtxRetain);
  if (!cuLibraryLoadData_call || !cuLibraryGetKernel_call || !cuLaunchKernel_call ||
      !cuStreamSynchronize_call || !cuStreamIsCapturing_call || !cuCtxGetCurrent_call ||
      !cuCtxSetCurrent_call || !cuDevicePrimaryCtxRetain_call)
    return;
  find_result = CUDA_SUCCESS;
}

static void load_kernel(void) {
  CUlibrary library;
  CUkernel found;
  load_result = cuLibraryLoadData_call(&library, image, NULL, NULL, 0, NULL, NULL, 0);
  if (load_result == CUDA_SUCCESS)
    load_result = cuLibraryGetKernel_call(&found, library, "operator_on_the_cpu");
  if (load_result == CUDA_SUCCESS)
    kernel = (CUfunction)found;
}

/* A thread's first call may be ours: the runtime, too, makes the device's primary context current
   then. The reference is kept, as the runtime keeps its own. */
static CUresult need_context(int device) {
  CUcontext context = NULL;
  CUresult result = cuCtxGetCurrent_call(&context);
  if (result != CUDA_SUCCESS || context != NULL)
    return result;
  result = cuDevicePrimaryCtxRetain_call(&context, device);
  return result == CUDA_SUCCESS ? cuCtxSetCurrent_call(context) : result;
}

/* Launches in `stream` of the calling thread's context and waits until the stream has done all that
   was asked of it. CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED while the stream is captured: what the CPU
   does then can't be repeated. */
__attribute__((visibility("default"))) CUresult
operators_begin(int device, CUstream stream, const CUdeviceptr *addresses, int count) {
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  pthread_once(&find_once, find_driver);
  if (find_result != CUDA_SUCCESS)
    return find_result;
  CUresult result = need_context(device);
  if (result != CUDA_SUCCESS)
    return result;
  pthread_once(&load_once, load_kernel);
  if (load_result != CUDA_SUCCESS)
    return load_result;
  result = cuStreamIsCapturing_call(stream, &capture);
  if (result == CUDA_SUCCESS && capture != CU_STREAM_CAPTURE_STATUS_NONE)
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  for (int at = 0; at < count && result == CUDA_SUCCESS; at += ADDRESSES) {
    CUdeviceptr values[ADDRESSES];
    void *parameters[ADDRESSES];
    for (int i = 0; i < ADDRESSES; i++) {
      values[i] = at + i < count ? addresses[at + i] : 0;
      parameters[i] = &values[i];
    }
    result = cuLaunchKernel_call(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
  }
  return result == CUDA_SUCCESS ? cuStreamSynchronize_call(stream) : result;
}
