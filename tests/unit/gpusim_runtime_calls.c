/* How the simulated GPU's runtime reaches the driver: held against a driver that records it. A
   preloaded library depends on each of these. */
#define _GNU_SOURCE
#include "gpusim_fake_driver.h"
#include "tests/lib/tap.h"
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <string.h>

static const char *const names[] = {
#define ENTRY(name, version) #name,
#include "tests/gpusim/runtime/driver.def"
#undef ENTRY
};
enum { NAMES = sizeof names / sizeof *names };

cudaError_t cudaStreamSynchronize_ptsz(cudaStream_t stream);

/* A caller whose frame can be told: it is not inlined and returns after the call. */
__attribute__((noinline)) static cudaError_t allocate(void **pointer) {
  cudaError_t error = cudaMalloc(pointer, 4096);
  __asm__ volatile("");
  return error;
}

static int count_lookups(const struct fake_driver_log *log, const char *name, unsigned flags) {
  int count = 0;
  for (int i = 0; i < log->lookup_count; i++)
    if (strcmp(log->lookups[i].name, name) == 0 && log->lookups[i].flags == flags)
      count++;
  return count;
}

int main(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  tap_ok(library == NULL, "linking the runtime does not load the driver");

  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  tap_ok(error == cudaSuccess && count == 1, "the first call initialises the driver");

  library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  const struct fake_driver_log *log = NULL;
  if (library != NULL)
    *(void **)&log = dlsym(library, "fake_driver_log");
  if (!tap_ok(log != NULL, "the driver was loaded by its soname"))
    return tap_done();

  tap_ok(log->lookup_count == 2 * NAMES && log->lookups_before_init == log->lookup_count,
         "all names are looked up, before cuInit");
  bool each_once = true, versioned = true;
  for (int i = 0; i < NAMES; i++)
    if (count_lookups(log, names[i], CU_GET_PROC_ADDRESS_DEFAULT) != 1 ||
        count_lookups(log, names[i], CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 1)
      each_once = false;
  for (int i = 0; i < log->lookup_count; i++)
    if (log->lookups[i].version < 2000 || log->lookups[i].version > CUDA_VERSION ||
        log->lookups[i].status_wanted)
      versioned = false;
  tap_ok(each_once, "each once for legacy and once for per-thread streams");
  tap_ok(versioned,
         "each with a version and without asking for a status, as NVIDIA's runtime does");

  void *pointer = NULL;
  error = allocate(&pointer);
  tap_ok(error == cudaSuccess && pointer == (void *)0x1000, "cudaMalloc is cuMemAlloc");
  bool found = false;
  for (int i = 0; i < log->frame_count; i++) {
    /* The return address lies in `allocate`, which is shorter than this. */
    const char *frame = log->frames[i], *start = (const char *)(void *)allocate;
    if (frame > start && frame < start + 256)
      found = true;
  }
  tap_ok(found, "a backtrace from inside the driver reaches the program's frame");

  error = cudaStreamSynchronize(NULL);
  tap_ok(error == cudaSuccess && log->legacy_calls == 1 && log->per_thread_calls == 0,
         "a plain function calls the driver's plain form");
  error = cudaStreamSynchronize_ptsz(NULL);
  tap_ok(error == cudaSuccess && log->legacy_calls == 1 && log->per_thread_calls == 1,
         "a _ptsz function calls the driver's per-thread form");

  tap_ok(cudaGetLastError() == cudaSuccess, "no error has been recorded so far");
  error = cudaFree(pointer);
  tap_ok(error == cudaErrorNotSupported && cudaPeekAtLastError() == cudaErrorNotSupported,
         "what an older driver lacks is NOT_SUPPORTED, not a crash");
  error = cudaGetLastError();
  tap_ok(error == cudaErrorNotSupported && cudaGetLastError() == cudaSuccess,
         "and the last error is taken once");
  return tap_done();
}
