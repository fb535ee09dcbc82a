/* Start-up, context stacks, sticky errors, what dies with a context, peers, forks. */
#include "tests/unit/gpusim_driver.h"

static int before_init(void) {
  int count;
  CUcontext context;
  return cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED &&
                 cuCtxGetCurrent(&context) == CUDA_ERROR_NOT_INITIALIZED &&
                 cuInit(1) == CUDA_ERROR_INVALID_VALUE
             ? 0
             : 1;
}

static int no_devices(void) {
  setenv("GPUSIM_DEVICES", "0", 1);
  return cuInit(0) == CUDA_ERROR_NO_DEVICE ? 0 : 1;
}

static int forked(void) {
  start();
  CUdeviceptr memory;
  pid_t child = fork();
  if (child == 0)
    _exit(cuMemAlloc(&memory, 16) == CUDA_ERROR_NOT_INITIALIZED &&
                  cuInit(0) == CUDA_ERROR_NOT_INITIALIZED
              ? 0
              : 1);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 && cuMemAlloc(&memory, 16) == CUDA_SUCCESS ? 0 : 1;
}

static void test_stack(CUcontext primary) {
  CUcontext created, current;
  CUdevice device;
  CUdeviceptr memory;
  unsigned long long id, other_id;
  MUST(cuCtxCreate(&created, NULL, 0, 1));
  MUST(cuCtxGetCurrent(&current));
  MUST(cuCtxGetDevice(&device));
  tap_ok(current == created && device == 1, "a created context is current");
  MUST(cuCtxGetId(created, &id));
  MUST(cuCtxGetId(primary, &other_id));
  tap_ok(id != other_id, "contexts have ids");
  MUST(cuCtxPopCurrent(&current));
  MUST(cuCtxGetCurrent(&current));
  tap_ok(current == primary, "popping it brings back the one before");
  MUST(cuCtxPushCurrent(created));
  MUST(cuCtxDestroy(created));
  MUST(cuCtxGetCurrent(&current));
  tap_ok(current == primary, "destroying the current context pops it");
  tap_ok(cuCtxPushCurrent(created) == CUDA_ERROR_INVALID_CONTEXT &&
             cuCtxDestroy(primary) == CUDA_ERROR_INVALID_CONTEXT,
         "a destroyed context can't be pushed, a primary one not destroyed");
  MUST(cuCtxSetCurrent(NULL));
  tap_ok(cuMemAlloc(&memory, 16) == CUDA_ERROR_INVALID_CONTEXT,
         "without a context nothing can be allocated");
  MUST(cuCtxSetCurrent(primary));
}

static void test_death(void) {
  CUcontext context;
  CUdeviceptr memory;
  CUstream stream;
  CUevent event;
  CUmodule module;
  size_t before, after, total;
  MUST(cuMemGetInfo(&before, &total));
  MUST(cuCtxCreate(&context, NULL, 0, 0));
  MUST(cuMemAlloc(&memory, 1 << 20));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuEventCreate(&event, 0));
  CUfunction function = load_kernel(&module, "store");
  for (uint32_t i = 0; i < 50; i++)
    MUST(launch_store(function, stream, memory, i));
  MUST(cuEventRecord(event, stream));
  void *view = gpusim_host_view((void *)memory);
  MUST(cuCtxDestroy(context));
  tap_ok(gpusim_counter_by_name("launches") >= 50, "destroying a context waits for its work");
  MUST(cuMemGetInfo(&after, &total));
  tap_ok(before == after && !cpu_can_read((CUdeviceptr)view), "and frees its memory");
  tap_ok(cuStreamQuery(stream) == CUDA_ERROR_INVALID_HANDLE &&
             cuEventQuery(event) == CUDA_ERROR_CONTEXT_IS_DESTROYED &&
             cuModuleUnload(module) == CUDA_ERROR_INVALID_HANDLE,
         "its streams, events and modules are no more");
  MUST(cuEventDestroy(event));
}

static void test_sticky(CUcontext primary) {
  CUdeviceptr memory;
  CUmodule module;
  CUcontext other;
  size_t free_bytes, total;
  MUST(cuMemAlloc(&memory, 4096));
  CUfunction function = load_kernel(&module, "store");
  unsigned long long errors = gpusim_counter_by_name("kernel_errors");
  MUST(launch_store(function, NULL, memory, 5));
  MUST(cuCtxSynchronize());
  tap_ok(device_word(memory) == 5, "a kernel writes where it may");
  MUST(launch_store(function, NULL, memory + 4096, 5));
  tap_ok(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS,
         "a store one byte beyond an allocation is an error when it is carried out");
  tap_ok(cuMemGetInfo(&free_bytes, &total) == CUDA_ERROR_ILLEGAL_ADDRESS &&
             cuMemAlloc(&memory, 16) == CUDA_ERROR_ILLEGAL_ADDRESS &&
             launch_store(function, NULL, memory, 5) == CUDA_ERROR_ILLEGAL_ADDRESS &&
             cuStreamQuery(NULL) == CUDA_ERROR_ILLEGAL_ADDRESS,
         "and answers every further call");
  tap_ok(gpusim_counter_by_name("kernel_errors") == errors + 1, "it is counted once");
  MUST(cuDevicePrimaryCtxRetain(&other, 1));
  MUST(cuCtxPushCurrent(other));
  tap_ok(cuMemGetInfo(&free_bytes, &total) == CUDA_SUCCESS, "another context doesn't mind");
  MUST(cuCtxPopCurrent(NULL));
  MUST(cuDevicePrimaryCtxRelease(1));
  MUST(cuDevicePrimaryCtxReset(0));
  MUST(cuCtxSetCurrent(primary));
  tap_ok(cuMemGetInfo(&free_bytes, &total) == CUDA_SUCCESS && free_bytes == total,
         "resetting the device ends it, and its memory");
}

static void test_primary(void) {
  CUcontext context;
  unsigned flags;
  int active;
  CUdeviceptr memory;
  MUST(cuDevicePrimaryCtxRetain(&context, 1));
  MUST(cuDevicePrimaryCtxRetain(&context, 1));
  MUST(cuCtxPushCurrent(context));
  MUST(cuMemAlloc(&memory, 4096));
  MUST(cuDevicePrimaryCtxRelease(1));
  MUST(cuDevicePrimaryCtxGetState(1, &flags, &active));
  tap_ok(active == 1 && cuMemsetD8(memory, 0, 16) == CUDA_SUCCESS,
         "a primary context lives while it is retained");
  MUST(cuDevicePrimaryCtxRelease(1));
  MUST(cuDevicePrimaryCtxGetState(1, &flags, &active));
  tap_ok(active == 0 && cuMemAlloc(&memory, 16) == CUDA_ERROR_CONTEXT_IS_DESTROYED,
         "after the last release it is no more, though still current");
  tap_ok(cuDevicePrimaryCtxRelease(1) == CUDA_ERROR_INVALID_CONTEXT,
         "one release too many is told");
  MUST(cuCtxPopCurrent(NULL));
}

static void test_peers(CUcontext primary) {
  CUcontext second;
  CUdeviceptr memory;
  CUmodule module;
  int can;
  MUST(cuMemAlloc(&memory, 4096));
  MUST(cuDeviceCanAccessPeer(&can, 1, 0));
  MUST(cuDevicePrimaryCtxRetain(&second, 1));
  MUST(cuCtxPushCurrent(second));
  MUST(cuCtxEnablePeerAccess(primary, 0));
  tap_ok(can == 1 && cuCtxEnablePeerAccess(primary, 0) == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
         "peer access is enabled once");
  CUfunction function = load_kernel(&module, "store");
  MUST(launch_store(function, NULL, memory, 11));
  MUST(cuCtxSynchronize());
  tap_ok(device_word(memory) == 11, "then kernels of one device write the other's memory");
  MUST(cuCtxDisablePeerAccess(primary));
  tap_ok(cuCtxDisablePeerAccess(primary) == CUDA_ERROR_PEER_ACCESS_NOT_ENABLED,
         "and disabled once");
  uint32_t word = 0;
  CUdeviceptr own;
  MUST(cuMemAlloc(&own, 4096));
  MUST(cuMemcpyPeer(own, second, memory, primary, 4096));
  MUST(cuMemcpyDtoH(&word, own, 4));
  tap_ok(word == 11, "copies between devices need no peer access");
  MUST(launch_store(function, NULL, memory, 12));
  tap_ok(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS, "kernels do");
  MUST(cuCtxPopCurrent(NULL));
  MUST(cuDevicePrimaryCtxRelease(1));
}

static void test_lookup(void) {
  void *function;
  CUdriverProcAddressQueryResult status;
  MUST(cuGetProcAddress("cuMemAlloc", &function, 13000, 0, &status));
  tap_ok(function == (void *)cuMemAlloc && status == CU_GET_PROC_ADDRESS_SUCCESS,
         "cuGetProcAddress answers the exported function itself");
  MUST(cuGetProcAddress("cuNoSuchThing", &function, 13000, 0, &status));
  tap_ok(function == NULL && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
         "an unknown name is null and said to be unknown");
  MUST(cuGetProcAddress("cuLibraryLoadData", &function, 11000, 0, &status));
  tap_ok(function == NULL && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
         "a newer name is null and said to be newer");
  tap_ok(cuGetProcAddress("cuInit", &function, 99000, 0, &status) == CUDA_ERROR_INVALID_VALUE,
         "a version newer than the driver is refused");
}

int main(void) {
  tap_ok(in_child(before_init) == 0, "before cuInit every call says so");
  tap_ok(in_child(no_devices) == 0, "without devices cuInit says so");
  tap_ok(in_child(forked) == 0, "CUDA can't be used in the child of an initialised process");
  setenv("GPUSIM_DEVICES", "2", 1);
  CUcontext primary = start();
  test_stack(primary);
  test_death();
  test_primary();
  test_peers(primary);
  test_lookup();
  test_sticky(primary);
  return tap_done();
}
