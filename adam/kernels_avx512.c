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
static inline lanes lanes_larger(lanes a, lanes b) {
  return _mm512_max_ps(b, a); /* b > a ? b : a, also for NaN and zeros */
}
static inline bool lanes_any_nan(lanes a, lanes b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
}
static inline lanes lanes_replace_nan(lanes a, int bits) {
  const lanes nan = _mm512_castsi512_ps(_mm512_set1_epi32(bits));
  return _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), nan);
}
static inline bool lanes_any_bits(lanes a, uint32_t bits) {
  return _mm512_test_epi32_mask(_mm512_castps_si512(a), _mm512_set1_epi32((int)bits));
}
static inline lanes lanes_or(lanes a, lanes b) {
  return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}
static inline bool lanes_ordinary(lanes a) {
  /* As integers: from 2^-125 to the largest; negative ones are below. */
  const __m512i bits = _mm512_castps_si512(a);
  return !_mm512_cmpgt_epi32_mask(_mm512_set1_epi32(0x01000000), bits) &&
         !_mm512_cmpgt_epi32_mask(bits, _mm512_set1_epi32(0x7f7fffff));
}
static inline lanes lanes_sign_of_nonzero(lanes a) {
  const __m512i bits = _mm512_castps_si512(a);
  const __mmask16 nonzero = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x7fffffff));
  const __m512i sign = _mm512_set1_epi32((int)0x80000000);
  return _mm512_castsi512_ps(_mm512_maskz_and_epi32(nonzero, bits, sign));
}
static inline wide units_of_lanes(lanes a) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i units = _mm512_and_si512(_mm512_castps_si512(a), magnitude);
  return (wide){_mm512_cvtepi32_pd(_mm512_castsi512_si256(units)),
                _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(units, 1))};
}
static inline lanes lanes_of_units(wide units) {
  const __m256i low = _mm512_cvtpd_epi32(units.low), high = _mm512_cvtpd_epi32(units.high);
  return _mm512_castsi512_ps(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
}
static inline lanes lanes_load_float(const void *p) {
  return _mm512_loadu_ps(p);
}
static inline lanes lanes_load_half(const void *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}
static inline lanes lanes_load_bfloat16(const void *p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}
static inline void lanes_store_float(void *p, lanes x) {
  _mm512_storeu_ps(p, x);
}
static inline void lanes_stream_float(void *p, lanes x) {
  _mm512_stream_ps(p, x);
}
static inline void lanes_stream_end(void) {
  _mm_sfence();
}
static inline void lanes_store_half(void *p, lanes x) {
  _mm256_storeu_si256(p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
/* By integers: the instruction of AVX512_BF16 flushes denormals. */
static inline void lanes_store_bfloat16(void *p, lanes x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16)));
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
static inline wide wide_div(wide a, wide b) {
  return (wide){_mm512_div_pd(a.low, b.low), _mm512_div_pd(a.high, b.high)};
}
static inline wide wide_sqrt(wide a) {
  return (wide){_mm512_sqrt_pd(a.low), _mm512_sqrt_pd(a.high)};
}
static inline __m512d flip(__m512d a, uint32_t sign) {
  const __m512i bits = _mm512_set1_epi64((int64_t)((uint64_t)sign << 32));
  return _mm512_castsi512_pd(_mm512_xor_si512(_mm512_castpd_si512(a), bits));
}
static inline wide wide_flip(wide a, uint32_t sign) {
  return (wide){flip(a.low, sign), flip(a.high, sign)};
}
static inline wide wide_larger(wide a, wide b) {
  return (wide){_mm512_max_pd(b.low, a.low), _mm512_max_pd(b.high, a.high)};
}
static inline __m512d quiet(__m512d a) {
  const __m512i bit = _mm512_set1_epi64(0x0008000000000000);
  return _mm512_castsi512_pd(_mm512_or_si512(_mm512_castpd_si512(a), bit));
}
static inline __m512d canonical(__m512d x, __m512d first, __m512d second) {
  __m512d nan = _mm512_castsi512_pd(_mm512_set1_epi64((int64_t)0xfff8000000000000));
  nan = _mm512_mask_mov_pd(nan, _mm512_cmp_pd_mask(second, second, _CMP_UNORD_Q), quiet(second));
  nan = _mm512_mask_mov_pd(nan, _mm512_cmp_pd_mask(first, first, _CMP_UNORD_Q), quiet(first));
  return _mm512_mask_mov_pd(x, _mm512_cmp_pd_mask(x, x, _CMP_UNORD_Q), nan);
}
static inline wide wide_canonical(wide x, wide first, wide second) {
  return (wide){canonical(x.low, first.low, second.low),
                canonical(x.high, first.high, second.high)};
}
static inline wide wide_load_double(const void *p) {
  return (wide){_mm512_loadu_pd(p), _mm512_loadu_pd((const double *)p + 8)};
}
static inline void wide_store_double(void *p, wide x) {
  _mm512_storeu_pd(p, x.low);
  _mm512_storeu_pd((double *)p + 8, x.high);
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

#define SETTLING
#define KERNELS adam_kernels_avx512
#include "kernels.inc"
