/* The kernels. Compiled without contraction of products and sums (build.mk). No wider vectors than
   AVX2's: one source of a few instructions reaches its peak there, and CPUs that split 512-bit ones
   gain nothing. */
#include "integration/pytorch/cublas/tile.h"

#if defined(__x86_64__)
#define TILE_NAME float_avx2
#define TILE_REAL float
#define TILE_TARGET __attribute__((target("avx2")))
#define TILE_LANES 8
#include "integration/pytorch/cublas/tile_kernel.h"
#define TILE_NAME double_avx2
#define TILE_REAL double
#define TILE_TARGET __attribute__((target("avx2")))
#define TILE_LANES 4
#include "integration/pytorch/cublas/tile_kernel.h"
#endif

#define TILE_NAME float_plain
#define TILE_REAL float
#define TILE_TARGET
#define TILE_LANES 4
#include "integration/pytorch/cublas/tile_kernel.h"
#define TILE_NAME double_plain
#define TILE_REAL double
#define TILE_TARGET
#define TILE_LANES 2
#include "integration/pytorch/cublas/tile_kernel.h"

static const struct tile_set sets[] = {
#if defined(__x86_64__)
    {"avx2", 16, 8, float_avx2, double_avx2},
#endif
    {"plain", 8, 4, float_plain, double_plain},
};
enum { SETS = sizeof sets / sizeof sets[0] };

static bool can_run(int number) {
#if defined(__x86_64__)
  return number != 0 || __builtin_cpu_supports("avx2");
#else
  (void)number;
  return true;
#endif
}

const struct tile_set *tile_set(int number) {
  if (!can_run(0))
    number++;
  return number < SETS ? &sets[number] : NULL;
}
