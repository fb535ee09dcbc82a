/* Faults: calls that fail by name, count and error, and nothing else that fails with them. */
#include "tests/unit/gpusim_driver.h"
#include <pthread.h>

static const char *faults;

static int start_only(void) {
  setenv("GPUSIM_FAULT", faults, 1);
  return cuInit(0) == CUDA_SUCCESS ? 0 : 1;
}

static int starting_with(const char *value) {
  faults = value;
  return in_child(start_only);
}

static unsigned long long injected(void) {
  return gpusim_counter_by_name("injected_faults");
}

static int third_allocation(void) {
  CUdeviceptr memory = 0;
  setenv("GPUSIM_FAULT", "cuMemAlloc:3:CUDA_ERROR_OUT_OF_MEMORY", 1);
  start();
  bool right = cuMemAlloc(&memory, 16) == CUDA_SUCCESS && cuMemAlloc(&memory, 16) == CUDA_SUCCESS;
  CUdeviceptr before = memory;
  right = right && cuMemAlloc(&memory, 16) == CUDA_ERROR_OUT_OF_MEMORY && memory == before;
  return right && cuMemAlloc(&memory, 16) == CUDA_SUCCESS && injected() == 1 ? 0 : 1;
}

/* By the exported name one form fails, by the base name all of them. */
static int forms(void) {
  CUstream stream;
  uint32_t word = 0;
  setenv("GPUSIM_FAULT", "cuMemcpyHtoD_v2:*:1,cuStreamCreateWithPriority:2-:999", 1);
  start();
  CUdeviceptr memory;
  MUST(cuMemAlloc(&memory, 16));
  bool right = cuMemcpyHtoD(memory, &word, 4) == CUDA_ERROR_INVALID_VALUE &&
               cuMemcpyHtoD(memory, &word, 4) == CUDA_ERROR_INVALID_VALUE &&
               cuMemcpy(memory, (CUdeviceptr)&word, 4) == CUDA_SUCCESS;
  right = right && cuStreamCreateWithPriority(&stream, 0, 0) == CUDA_SUCCESS &&
          cuStreamCreateWithPriority(&stream, 0, 0) == CUDA_ERROR_UNKNOWN &&
          cuStreamCreateWithPriority(&stream, 0, 0) == CUDA_ERROR_UNKNOWN;
  /* a room's call of another is not the program's: cuStreamCreate makes streams that way */
  return right && cuStreamCreate(&stream, 0) == CUDA_SUCCESS && injected() == 4 ? 0 : 1;
}

static int range(void) {
  int count, failed = 0;
  setenv("GPUSIM_FAULT", "cuDeviceGetCount:2-3:CUDA_ERROR_NO_DEVICE", 1);
  start();
  for (int i = 1; i <= 5; i++)
    failed |= (cuDeviceGetCount(&count) == CUDA_ERROR_NO_DEVICE) << i;
  return failed == (1 << 2 | 1 << 3) ? 0 : 1;
}

static int init_itself(void) {
  setenv("GPUSIM_FAULT", "cuInit:1:NO_DEVICE", 1);
  return cuInit(0) == CUDA_ERROR_NO_DEVICE && cuInit(0) == CUDA_SUCCESS ? 0 : 1;
}

/* Arguments in registers and on the stack arrive whole through a watched entry point. */
static int arguments(void) {
  CUmodule module;
  setenv("GPUSIM_FAULT", "cuMemUnmap:1:1", 1);
  start();
  CUdeviceptr memory;
  MUST(cuMemAlloc(&memory, 4096));
  CUfunction function = load_kernel(&module, "store");
  MUST(launch_store(function, NULL, memory, 4711));
  MUST(cuCtxSynchronize());
  return device_word(memory) == 4711 && injected() == 0 ? 0 : 1;
}

static CUresult answers[8];

static void *allocate(void *index) {
  CUdeviceptr memory;
  CUcontext context;
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  answers[(uintptr_t)index] = cuMemAlloc(&memory, 16);
  return NULL;
}

static int threads(void) {
  pthread_t threads_of[8];
  int failed = 0;
  setenv("GPUSIM_FAULT", "cuMemAlloc:5:2", 1);
  start();
  for (uintptr_t i = 0; i < 8; i++)
    pthread_create(&threads_of[i], NULL, allocate, (void *)i);
  for (int i = 0; i < 8; i++) {
    pthread_join(threads_of[i], NULL);
    failed += answers[i] == CUDA_ERROR_OUT_OF_MEMORY;
  }
  return failed == 1 ? 0 : 1;
}

/* Entry points that cuGetProcAddress hands out fail too. */
static int looked_up(void) {
  void *function;
  CUdeviceptr memory;
  setenv("GPUSIM_FAULT", "cuMemAlloc:*:2", 1);
  start();
  MUST(cuGetProcAddress("cuMemAlloc", &function, 12000, 0, NULL));
  return ((CUresult(*)(CUdeviceptr *, size_t))function)(&memory, 16) == CUDA_ERROR_OUT_OF_MEMORY
             ? 0
             : 1;
}

int main(void) {
  tap_ok(in_child(third_allocation) == 0,
         "the third call fails, without effect, and the fourth doesn't; it is counted");
  tap_ok(in_child(forms) == 0, "by name one form of a call fails; * is every call, 2- all but one");
  tap_ok(in_child(range) == 0, "2-3 is the second and the third");
  tap_ok(in_child(init_itself) == 0, "cuInit can fail too");
  tap_ok(in_child(arguments) == 0, "other calls get all their arguments");
  tap_ok(in_child(threads) == 0, "of eight threads one makes the fifth call");
  tap_ok(in_child(looked_up) == 0, "calls found by cuGetProcAddress fail as well");
  tap_ok(starting_with("cuMemCreate:3:2,cuMemMap:*:CUDA_ERROR_UNKNOWN") == 0, "a list is read");
  tap_ok(starting_with("cuMemCrate:3:2") == 87, "an unknown call ends the process with 87");
  tap_ok(starting_with("cuMemCreate:0:2") == 87 && starting_with("cuMemCreate:5-3:2") == 87 &&
             starting_with("cuMemCreate:x:2") == 87,
         "so does a count that can't be");
  tap_ok(starting_with("cuMemCreate:3:17171") == 87 && starting_with("cuMemCreate:3:0") == 87,
         "and an error that doesn't exist");
  tap_ok(starting_with("cuMemCreate:3") == 87, "and a missing part");
  return tap_done();
}
