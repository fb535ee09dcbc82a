/* Lanes of eight floats, AVX2, FMA and F16C. Compiled with -mavx2 -mfma -mf16c. */
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
static inline lanes lanes_larger(lanes a, lanes b) {
  return _mm256_max_ps(b, a); /* b > a ? b : a, also for NaN and zeros */
}
static inline bool lanes_any_nan(lanes a, lanes b) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q));
}
static inline lanes lanes_replace_nan(lanes a, int bits) {
  const lanes nan = _mm256_castsi256_ps(_mm256_set1_epi32(bits));
  return _mm256_blendv_ps(a, nan, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}
static inline bool lanes_any_bits(lanes a, uint32_t bits) {
  return !_mm256_testz_si256(_mm256_castps_si256(a), _mm256_set1_epi32((int)bits));
}
static inline lanes lanes_or(lanes a, lanes b) {
  return _mm256_or_ps(a, b);
}
static inline bool lanes_ordinary(lanes a) {
  /* As integers: from 2^-125 to the largest; negative ones are below. */
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x01000000), bits);
  const __m256i large = _mm256_cmpgt_epi32(bits, _mm256_set1_epi32(0x7f7fffff));
  return !_mm256_movemask_epi8(_mm256_or_si256(small, large));
}
static inline lanes lanes_sign_of_nonzero(lanes a) {
  const __m256i bits = _mm256_castps_si256(a), sign = _mm256_set1_epi32((int)0x80000000);
  const __m256i zero = _mm256_cmpeq_epi32(_mm256_andnot_si256(sign, bits), _mm256_setzero_si256());
  return _mm256_castsi256_ps(_mm256_andnot_si256(zero, _mm256_and_si256(bits, sign)));
}
static inline wide units_of_lanes(lanes a) {
  const __m256i units = _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7fffffff));
  return (wide){_mm256_cvtepi32_pd(_mm256_castsi256_si128(units)),
                _mm256_cvtepi32_pd(_mm256_extracti128_si256(units, 1))};
}
static inline lanes lanes_of_units(wide units) {
  const __m128i low = _mm256_cvtpd_epi32(units.low), high = _mm256_cvtpd_epi32(units.high);
  return _mm256_castsi256_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1));
}
static inline lanes lanes_load_float(const void *p) {
  return _mm256_loadu_ps(p);
}
static inline lanes lanes_load_half(const void *p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(p));
}
static inline lanes lanes_load_bfloat16(const void *p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
static inline void lanes_store_float(void *p, lanes x) {
  _mm256_storeu_ps(p, x);
}
static inline void lanes_stream_float(void *p, lanes x) {
  _mm256_stream_ps(p, x);
}
static inline void lanes_stream_end(void) {
  _mm_sfence();
}
static inline void lanes_store_half(void *p, lanes x) {
  _mm_storeu_si128(p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
/* The bits, rounded to the upper half. By integers: the instruction of AVX512_BF16 flushes denormals. */
static inline __m256i rounded_to_bfloat16(lanes x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}
static inline void lanes_store_bfloat16(void *p, lanes x) {
  const __m256i high = _mm256_srli_epi32(rounded_to_bfloat16(x), 16);
  const __m128i low_half = _mm256_castsi256_si128(high);
  _mm_storeu_si128(p, _mm_packus_epi32(low_half, _mm256_extracti128_si256(high, 1)));
}
/* Two vectors are brought into place together. */
static inline void lanes_store_two_bfloat16(void *p, lanes x, void *q, lanes y) {
  const __m256i first = _mm256_srli_epi32(rounded_to_bfloat16(x), 16);
  const __m256i both = _mm256_blend_epi16(first, rounded_to_bfloat16(y), 0xaa);
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1,
                                         4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
  const __m256i placed = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(both, order), 0xd8);
  _mm_storeu_si128(p, _mm256_castsi256_si128(placed));
  _mm_storeu_si128(q, _mm256_extracti128_si256(placed, 1));
}
#define lanes_store_two_bfloat16 lanes_store_two_bfloat16
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
static inline wide wide_div(wide a, wide b) {
  return (wide){_mm256_div_pd(a.low, b.low), _mm256_div_pd(a.high, b.high)};
}
static inline wide wide_sqrt(wide a) {
  return (wide){_mm256_sqrt_pd(a.low), _mm256_sqrt_pd(a.high)};
}
static inline wide wide_flip(wide a, uint32_t sign) {
  const __m256d bits = _mm256_castsi256_pd(_mm256_set1_epi64x((int64_t)((uint64_t)sign << 32)));
  return (wide){_mm256_xor_pd(a.low, bits), _mm256_xor_pd(a.high, bits)};
}
static inline wide wide_larger(wide a, wide b) {
  return (wide){_mm256_max_pd(b.low, a.low), _mm256_max_pd(b.high, a.high)};
}
static inline __m256d canonical(__m256d x, __m256d first, __m256d second) {
  const __m256d quiet = _mm256_castsi256_pd(_mm256_set1_epi64x(0x0008000000000000));
  __m256d nan = _mm256_castsi256_pd(_mm256_set1_epi64x((int64_t)0xfff8000000000000));
  nan = _mm256_blendv_pd(nan, _mm256_or_pd(second, quiet),
                         _mm256_cmp_pd(second, second, _CMP_UNORD_Q));
  nan =
      _mm256_blendv_pd(nan, _mm256_or_pd(first, quiet), _mm256_cmp_pd(first, first, _CMP_UNORD_Q));
  return _mm256_blendv_pd(x, nan, _mm256_cmp_pd(x, x, _CMP_UNORD_Q));
}
static inline wide wide_canonical(wide x, wide first, wide second) {
  return (wide){canonical(x.low, first.low, second.low),
                canonical(x.high, first.high, second.high)};
}
static inline wide wide_load_double(const void *p) {
  return (wide){_mm256_loadu_pd(p), _mm256_loadu_pd((const double *)p + 4)};
}
static inline void wide_store_double(void *p, wide x) {
  _mm256_storeu_pd(p, x.low);
  _mm256_storeu_pd((double *)p + 4, x.high);
}
static inline wide widen(lanes a) {
  return (wide){_mm256_cvtps_pd(_mm256_castps256_ps128(a)),
                _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1))};
}
static inline lanes narrow(wide a) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(a.low)),
                              _mm256_cvtpd_ps(a.high), 1);
}

#define SETTLING
#define KERNELS adam_kernels_avx2
#include "kernels.inc"
