/* What the unit tests of the simulated driver share: start-up, gates that hold work back, a probe
   for closed memory, and children with switches of their own (switches are read once per process).
 */
#ifndef GPUSIM_DRIVER_TEST_H
#define GPUSIM_DRIVER_TEST_H
#include "tests/gpusim/gpusim.h"
#include "tests/lib/tap.h"
#include <cuda.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define UNUSED_OK __attribute__((unused))
enum { PIECE = 65536 }; /* the granularity of the tests */

UNUSED_OK static void must(CUresult result, const char *call, int line) {
  const char *name = "?";
  if (result == CUDA_SUCCESS)
    return;
  cuGetErrorName(result, &name);
  printf("Bail out! line %d: %s: %s\n", line, call, name);
  fflush(stdout);
  _exit(1);
}
/* For calls that only prepare a check. */
#define MUST(call) must((call), #call, __LINE__)

UNUSED_OK static CUcontext start(void) {
  CUcontext context;
  setenv("GPUSIM_GRANULARITY", "64KiB", 1);
  setenv("GPUSIM_DEADLOCK_MS", "10000", 0);
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  return context;
}

UNUSED_OK static void pause_ms(long ms) {
  struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

/* Tests of streams that don't wait for each other ask: one queue makes all of them wait. */
UNUSED_OK static bool with_one_queue(void) {
  const char *queues = getenv("GPUSIM_QUEUES");
  return queues != NULL && strcmp(queues, "1") == 0;
}

/* A word in pinned memory: work behind hold() waits until open_gate(). */
struct gate {
  uint32_t *word;
};

UNUSED_OK static struct gate new_gate(void) {
  void *word;
  MUST(cuMemHostAlloc(&word, 4096, 0));
  __atomic_store_n((uint32_t *)word, 0, __ATOMIC_RELEASE);
  return (struct gate){word};
}

UNUSED_OK static void hold(struct gate gate, CUstream stream) {
  MUST(cuStreamWaitValue32(stream, (CUdeviceptr)gate.word, 1, CU_STREAM_WAIT_VALUE_GEQ));
}

UNUSED_OK static void open_gate(struct gate gate) {
  __atomic_store_n(gate.word, 1, __ATOMIC_RELEASE);
}

UNUSED_OK static void close_gate(struct gate gate) {
  __atomic_store_n(gate.word, 0, __ATOMIC_RELEASE);
}

/* Whether the CPU may read an address: the kernel is asked, so that nothing faults. */
UNUSED_OK static bool cpu_can_read(CUdeviceptr address) {
  int ends[2];
  if (pipe(ends) != 0)
    return false;
  long written = syscall(SYS_write, ends[1], (void *)address, 1);
  close(ends[0]);
  close(ends[1]);
  return written == 1;
}

UNUSED_OK static uint32_t device_word(CUdeviceptr address) {
  uint32_t word;
  memcpy(&word, gpusim_host_view((void *)address), sizeof word);
  return word;
}

/* Runs a check in a child, before this process has called cuInit; its exit status, or 1000 + the
 * signal. */
UNUSED_OK static int in_child(int (*check)(void)) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    if (freopen("/dev/null", "w", stderr) == NULL)
      _exit(99);
    exit(check());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* Physical memory on the device, or on the host. */
UNUSED_OK static CUmemAllocationProp device_memory(void) {
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
  return properties;
}

UNUSED_OK static CUmemAllocationProp host_memory(void) {
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = 0}};
  return properties;
}

UNUSED_OK static CUmemGenericAllocationHandle create(CUmemAllocationProp properties) {
  CUmemGenericAllocationHandle handle;
  MUST(cuMemCreate(&handle, PIECE, &properties, 0));
  return handle;
}

UNUSED_OK static CUmemAccessDesc access_of(CUmemLocationType type, int id,
                                           CUmemAccess_flags flags) {
  CUmemAccessDesc access = {.location = {.type = type, .id = id}, .flags = flags};
  return access;
}

UNUSED_OK static CUresult grant(CUdeviceptr address, size_t bytes, CUmemLocationType type) {
  CUmemAccessDesc access = access_of(type, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  return cuMemSetAccess(address, bytes, &access, 1);
}

/* st.global.u32 [address], value; one entry each for a plain pointer, a by-value list and an
 * endless wait. */
#define TEST_PTX                                                                                   \
  ".version 6.5\n.target sm_70\n.address_size 64\n"                                                \
  ".visible .entry store(.param .u64 address, .param .u32 value)\n{\n"                             \
  " .reg .b64 %rd<2>;\n .reg .b32 %r<2>;\n"                                                        \
  " ld.param.u64 %rd0, [address];\n ld.param.u32 %r0, [value];\n"                                  \
  " st.global.u32 [%rd0], %r0;\n ret;\n}\n"                                                        \
  ".visible .entry list(.param .align 8 .b8 pointers[64], .param .u32 index)\n{\n"                 \
  " .reg .b64 %rd<2>;\n .reg .b32 %r<2>;\n"                                                        \
  " ld.param.u64 %rd0, [pointers];\n mov.u32 %r0, 7;\n"                                            \
  " st.global.u32 [%rd0], %r0;\n ret;\n}\n"

UNUSED_OK static CUfunction load_kernel(CUmodule *module, const char *name) {
  CUfunction function;
  MUST(cuModuleLoadData(module, TEST_PTX));
  MUST(cuModuleGetFunction(&function, *module, name));
  return function;
}

UNUSED_OK static CUresult launch_store(CUfunction function, CUstream stream, CUdeviceptr address,
                                       uint32_t value) {
  void *parameters[] = {&address, &value};
  return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}
#endif
