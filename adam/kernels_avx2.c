/* Lanes of eight floats, AVX2 and FMA. Compiled with -mavx2 -mfma. */
#include "kernels.h"
#include <immintrin.h>
#include <string.h>

enum { LANES = 8 };
typedef __m256 lanes;
typedef struct {
  __m256d low, high;
} wide;

static inline lanes lanes_set(float x) {
  return _mm256_set1_ps(x);
}
static inline lanes lanes_load(const float *p) {
  return _mm256_loadu_ps(p);
}
static inline void lanes_store(float *p, lanes x) {
  _mm256_storeu_ps(p, x);
}
static inline lanes lanes_mul(lanes a, lanes b) {
  return _mm256_mul_ps(a, b);
}
static inline lanes lanes_add(lanes a, lanes b) {
  return _mm256_add_ps(a, b);
}
static inline lanes lanes_div(lanes a, lanes b) {
  return _mm256_div_ps(a, b);
}
static inline lanes lanes_sqrt(lanes a) {
  return _mm256_sqrt_ps(a);
}
static inline lanes lanes_fma(lanes a, lanes b, lanes c) {
  return _mm256_fmadd_ps(a, b, c);
}
static inline lanes lanes_flip(lanes a, uint32_t sign) {
  return _mm256_xor_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32((int)sign)));
}
static inline lanes lanes_canonical(lanes a) {
  const lanes nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  return _mm256_blendv_ps(a, nan, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}
static inline wide wide_set(double x) {
  return (wide){_mm256_set1_pd(x), _mm256_set1_pd(x)};
}
static inline wide wide_mul(wide a, wide b) {
  return (wide){_mm256_mul_pd(a.low, b.low), _mm256_mul_pd(a.high, b.high)};
}
static inline wide wide_add(wide a, wide b) {
  return (wide){_mm256_add_pd(a.low, b.low), _mm256_add_pd(a.high, b.high)};
}
static inline wide wide_fma(wide a, wide b, wide c) {
  return (wide){_mm256_fmadd_pd(a.low, b.low, c.low), _mm256_fmadd_pd(a.high, b.high, c.high)};
}
static inline wide widen(lanes a) {
  return (wide){_mm256_cvtps_pd(_mm256_castps256_ps128(a)),
                _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1))};
}
static inline lanes narrow(wide a) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(a.low)),
                              _mm256_cvtpd_ps(a.high), 1);
}

#define KERNELS adam_kernels_avx2
#include "kernels.inc"
