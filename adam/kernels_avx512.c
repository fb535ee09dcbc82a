/* Lanes of sixteen floats, AVX-512F. Compiled with -mavx512f. */
#include "kernels.h"
#include <immintrin.h>
#include <string.h>

enum { LANES = 16 };
typedef __m512 lanes;
typedef struct {
  __m512d low, high;
} wide;

static inline lanes lanes_set(float x) {
  return _mm512_set1_ps(x);
}
static inline lanes lanes_load(const float *p) {
  return _mm512_loadu_ps(p);
}
static inline void lanes_store(float *p, lanes x) {
  _mm512_storeu_ps(p, x);
}
static inline lanes lanes_mul(lanes a, lanes b) {
  return _mm512_mul_ps(a, b);
}
static inline lanes lanes_add(lanes a, lanes b) {
  return _mm512_add_ps(a, b);
}
static inline lanes lanes_div(lanes a, lanes b) {
  return _mm512_div_ps(a, b);
}
static inline lanes lanes_sqrt(lanes a) {
  return _mm512_sqrt_ps(a);
}
static inline lanes lanes_fma(lanes a, lanes b, lanes c) {
  return _mm512_fmadd_ps(a, b, c);
}
static inline lanes lanes_flip(lanes a, uint32_t sign) {
  return _mm512_castsi512_ps(
      _mm512_xor_si512(_mm512_castps_si512(a), _mm512_set1_epi32((int)sign)));
}
static inline lanes lanes_canonical(lanes a) {
  const lanes nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fffffff));
  return _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), nan);
}
static inline wide wide_set(double x) {
  return (wide){_mm512_set1_pd(x), _mm512_set1_pd(x)};
}
static inline wide wide_mul(wide a, wide b) {
  return (wide){_mm512_mul_pd(a.low, b.low), _mm512_mul_pd(a.high, b.high)};
}
static inline wide wide_add(wide a, wide b) {
  return (wide){_mm512_add_pd(a.low, b.low), _mm512_add_pd(a.high, b.high)};
}
static inline wide wide_fma(wide a, wide b, wide c) {
  return (wide){_mm512_fmadd_pd(a.low, b.low, c.low), _mm512_fmadd_pd(a.high, b.high, c.high)};
}
static inline wide widen(lanes a) {
  /* The upper half as four doubles' worth of bits: extractf32x8 would need AVX512DQ. */
  const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1));
  return (wide){_mm512_cvtps_pd(_mm512_castps512_ps256(a)), _mm512_cvtps_pd(high)};
}
static inline lanes narrow(wide a) {
  const __m512d low = _mm512_castps_pd(_mm512_castps256_ps512(_mm512_cvtpd_ps(a.low)));
  return _mm512_castpd_ps(_mm512_insertf64x4(low, _mm256_castps_pd(_mm512_cvtpd_ps(a.high)), 1));
}

#define KERNELS adam_kernels_avx512
#include "kernels.inc"
