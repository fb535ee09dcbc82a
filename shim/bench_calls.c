/* What one call costs: a program of the driver's API over a driver that does nothing (bench_driver.c). Run by
   bench_preload.c with the library preloaded and without, in turns; a line for each call with its
   nanoseconds. The fastest of several turns counts, since everything that disturbs only adds. */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* A process's first launches are looked at more closely (shim/unknown.h). */
enum {
  CALLS = 4000,
  TURNS = 15,
  FIRST_LAUNCHES = 300000,
  SMALL = 1 << 20,
  LARGE = 64 << 20,
  COPY = 4096
};

static void *driver;
static CUdeviceptr native, large;
static char host[COPY];
static void *parameters[12];

static void check(int failed) {
  if (failed)
    abort();
}

static void look_up_ours(void) {
  check(!dlsym(driver, "cuLaunchKernel"));
}
static void look_up_theirs(void) {
  check(!dlsym(driver, "cuDriverGetVersion"));
}
static void look_up_other(void) {
  check(!dlsym(RTLD_DEFAULT, "malloc"));
}
static void resolve_ours(void) {
  void *function;
  check(cuGetProcAddress("cuLaunchKernel", &function, 12000, 0, NULL) || !function);
}
static void launch(void) {
  check(cuLaunchKernel((CUfunction)(uintptr_t)1, 1, 1, 1, 128, 1, 1, 0, NULL, parameters, NULL) !=
        CUDA_SUCCESS);
}
static void load_module(void) {
  CUmodule module;
  check(cuModuleLoadData(&module, host) != CUDA_SUCCESS);
}
static void copy_up(void) {
  check(cuMemcpyHtoDAsync(native, host, COPY, NULL) != CUDA_SUCCESS);
}
static void copy_down(void) {
  check(cuMemcpyDtoHAsync(host, native, COPY, NULL) != CUDA_SUCCESS);
}
static void ask(void) {
  unsigned type = 0;
  check(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, native) != CUDA_SUCCESS);
}
static void allocate_small(void) {
  CUdeviceptr address;
  check(cuMemAlloc(&address, SMALL) || cuMemFree(address));
}
static void allocate_large(void) {
  CUdeviceptr address;
  check(cuMemAlloc(&address, LARGE) || cuMemFree(address));
}

static const struct call {
  const char *name;
  void (*once)(void);
  int share; /* of CALLS */
} calls[] = {
    {"cuLaunchKernel, 96 bytes, of the first", launch, 1},
    {"dlsym of a hooked function", look_up_ours, 1},
    {"dlsym of another driver function", look_up_theirs, 1},
    {"dlsym of malloc", look_up_other, 1},
    {"cuGetProcAddress", resolve_ours, 1},
    {"cuLaunchKernel, 96 bytes", launch, 1},
    {"cuModuleLoadData", load_module, 1},
    {"cuMemcpyHtoDAsync", copy_up, 1},
    {"cuMemcpyDtoHAsync", copy_down, 1},
    {"cuPointerGetAttribute", ask, 1},
    {"cuMemAlloc and cuMemFree, 1 MiB", allocate_small, 1},
    {"cuMemAlloc and cuMemFree, 64 MiB", allocate_large, 40},
};

static double now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

int main(void) {
  static unsigned long long values[12];
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  for (int i = 0; i < 12; i++)
    parameters[i] = &values[i];
  check(!driver || cuInit(0) || cuMemAlloc(&native, SMALL) || cuMemAlloc(&large, LARGE));
  for (unsigned i = 0; i < 4; i++)
    values[i] = large + i * LARGE / 4;
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    const int count = CALLS / calls[i].share;
    double best = 0;
    for (int turn = 0; turn < TURNS; turn++) {
      const double start = now_ns();
      for (int j = 0; j < count; j++)
        calls[i].once();
      const double each = (now_ns() - start) / count;
      best = !turn || each < best ? each : best;
    }
    printf("%.2f %s\n", best, calls[i].name);
    for (int j = 0; i == 0 && j < FIRST_LAUNCHES; j++)
      launch();
  }
  check(cuMemFree(large) || cuMemFree(native));
  return EXIT_SUCCESS;
}
