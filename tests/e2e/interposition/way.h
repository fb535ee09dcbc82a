/* What the programs of ways_in.bats do with a driver, whichever way they met it: a context, an
   allocation large enough to become a range, a copy there and back, the questions an allocator asks.
   Every answer is a line, so that two runs can be compared. */
#ifndef WAY_H
#define WAY_H
#include <cuda.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#undef cuGetProcAddress

/* DRIVER(exported name, name of cuda.h, CUDA version in which this form came). */
#define DRIVER_FUNCTIONS                                                                           \
  DRIVER(cuInit, cuInit, 2000)                                                                     \
  DRIVER(cuDeviceGet, cuDeviceGet, 2000)                                                           \
  DRIVER(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000)                                 \
  DRIVER(cuCtxSetCurrent, cuCtxSetCurrent, 4000)                                                   \
  DRIVER(cuMemAlloc_v2, cuMemAlloc, 3020)                                                          \
  DRIVER(cuMemcpyHtoD_v2, cuMemcpyHtoD, 3020)                                                      \
  DRIVER(cuMemcpyDtoH_v2, cuMemcpyDtoH, 3020)                                                      \
  DRIVER(cuMemGetAddressRange_v2, cuMemGetAddressRange, 3020)                                      \
  DRIVER(cuMemFree_v2, cuMemFree, 3020)

struct way {
#define DRIVER(symbol, function, version) __typeof__(&function) symbol;
  DRIVER_FUNCTIONS
#undef DRIVER
};

static const struct way_name {
  const char *symbol, *base;
  int version;
} way_names[] = {
#define DRIVER(symbol, function, version) {#symbol, #function, version},
    DRIVER_FUNCTIONS
#undef DRIVER
};
enum { WAY_NAMES = sizeof way_names / sizeof *way_names, WAY_BYTES = 256 << 10 };

static bool way_quiet; /* nothing is printed but what failed */

/* 0 when everything succeeded. */
__attribute__((unused)) static int way_use(const struct way *way) {
  CUdevice device = 0;
  CUcontext context = NULL;
  CUdeviceptr pointer = 0, base = 0;
  size_t bytes = 0;
  char *in = malloc(WAY_BYTES), *out = calloc(1, WAY_BYTES);
  int failed = !in || !out;
  if (failed) {
    free(in);
    free(out);
    return failed;
  }
  memset(in, 0x5a, WAY_BYTES);
#define STEP(symbol, arguments)                                                                    \
  do {                                                                                             \
    CUresult result = way->symbol arguments;                                                       \
    failed |= result != CUDA_SUCCESS;                                                              \
    if (!way_quiet || result != CUDA_SUCCESS)                                                      \
      printf(#symbol " %d\n", (int)result);                                                        \
  } while (0)
  STEP(cuInit, (0));
  STEP(cuDeviceGet, (&device, 0));
  STEP(cuDevicePrimaryCtxRetain, (&context, device));
  STEP(cuCtxSetCurrent, (context));
  STEP(cuMemAlloc_v2, (&pointer, WAY_BYTES));
  STEP(cuMemcpyHtoD_v2, (pointer, in, WAY_BYTES));
  STEP(cuMemcpyDtoH_v2, (out, pointer, WAY_BYTES));
  STEP(cuMemGetAddressRange_v2, (&base, &bytes, pointer + 12345));
  STEP(cuMemFree_v2, (pointer));
#undef STEP
  bool equal = memcmp(in, out, WAY_BYTES) == 0, right = base == pointer && bytes == WAY_BYTES;
  failed |= !equal || !right;
  if (!way_quiet || !equal || !right)
    printf("contents %s, bounds %s\n", equal ? "equal" : "differ", right ? "right" : "wrong");
  free(in);
  free(out);
  return failed;
}

/* The same in what is linked against the driver, by the names of cuda.h. `inline`, so that a program
   which isn't linked and doesn't call this has no references to them. */
static inline int way_use_linked(void) {
#define DRIVER(symbol, function, version) .symbol = function,
  const struct way way = {DRIVER_FUNCTIONS};
#undef DRIVER
  return way_use(&way);
}
#endif
