/* What the runtime remembers: initialisation, primary contexts, the thread's device and last error.

   Called by every room. As in the runtime API: a device belongs to the calling thread and starts at
   0; a driver context that the program made current itself is respected; the last error is the
   thread's. */
#include "runtime.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_DEVICES = 64 };

static pthread_once_t init_once = PTHREAD_ONCE_INIT;
static cudaError_t init_error;
static int device_count;

static pthread_mutex_t primary_lock = PTHREAD_MUTEX_INITIALIZER; /* protects primary[] */
static CUcontext primary[MAX_DEVICES];

static _Thread_local int thread_device;
static _Thread_local cudaError_t last_error;

static void init(void) {
  if (!driver_open()) {
    init_error = cudaErrorInsufficientDriver;
    return;
  }
  CUresult result = driver.cuInit(0);
  if (result == CUDA_SUCCESS)
    result = driver.cuDeviceGetCount(&device_count);
  if (result == CUDA_SUCCESS && device_count == 0)
    result = CUDA_ERROR_NO_DEVICE;
  if (device_count > MAX_DEVICES)
    device_count = MAX_DEVICES;
  init_error = (cudaError_t)result;
}

cudaError_t runtime_init(void) {
  pthread_once(&init_once, init);
  return init_error;
}

int runtime_device_count(void) {
  return device_count;
}

bool runtime_device_valid(int device) {
  return device >= 0 && device < device_count;
}

CUresult runtime_primary_context(int device, CUcontext *context) {
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&primary_lock);
  if (primary[device] == NULL)
    result = driver.cuDevicePrimaryCtxRetain(&primary[device], device);
  *context = primary[device];
  pthread_mutex_unlock(&primary_lock);
  return result;
}

void runtime_primary_context_forget(int device) {
  pthread_mutex_lock(&primary_lock);
  primary[device] = NULL;
  pthread_mutex_unlock(&primary_lock);
}

CUresult runtime_set_device(int device) {
  CUcontext context;
  CUresult result = runtime_primary_context(device, &context);
  if (result == CUDA_SUCCESS)
    result = driver.cuCtxSetCurrent(context);
  if (result == CUDA_SUCCESS)
    thread_device = device;
  return result;
}

cudaError_t runtime_enter(void) {
  cudaError_t error = runtime_init();
  if (error != cudaSuccess)
    return error;
  CUcontext current = NULL;
  if (driver.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != NULL)
    return cudaSuccess;
  return (cudaError_t)runtime_set_device(thread_device);
}

int runtime_device(void) {
  CUcontext current = NULL;
  CUdevice device;
  if (driver.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != NULL &&
      driver.cuCtxGetDevice(&device) == CUDA_SUCCESS)
    thread_device = device;
  return thread_device;
}

cudaError_t runtime_fail(cudaError_t error) {
  if (error != cudaSuccess)
    last_error = error;
  return error;
}

cudaError_t runtime_result(CUresult result) {
  return runtime_fail((cudaError_t)result);
}

int gpusim_runtime_unsupported(const char *name) {
  const char *trace = getenv("GPUSIM_TRACE");
  if (trace != NULL && strtol(trace, NULL, 10) >= 1)
    fprintf(stderr, "gpusim: %s is not implemented: returning cudaErrorNotSupported\n", name);
  return (int)runtime_fail(cudaErrorNotSupported);
}

cudaError_t cudaGetLastError(void) {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError(void) {
  return last_error;
}
