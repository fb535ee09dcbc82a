/* Lanes of four floats, Advanced SIMD of aarch64 (always there). */
#include "kernels.h"
#include <arm_neon.h>
#include <string.h>

enum { LANES = 4 };
typedef float32x4_t lanes;
typedef struct {
  float64x2_t low, high;
} wide;

static inline lanes lanes_set(float x) {
  return vdupq_n_f32(x);
}
static inline lanes lanes_mul(lanes a, lanes b) {
  return vmulq_f32(a, b);
}
static inline lanes lanes_add(lanes a, lanes b) {
  return vaddq_f32(a, b);
}
static inline lanes lanes_div(lanes a, lanes b) {
  return vdivq_f32(a, b);
}
static inline lanes lanes_sqrt(lanes a) {
  return vsqrtq_f32(a);
}
static inline lanes lanes_fma(lanes a, lanes b, lanes c) {
  return vfmaq_f32(c, a, b);
}
static inline lanes lanes_flip(lanes a, uint32_t sign) {
  return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(a), vdupq_n_u32(sign)));
}
static inline lanes lanes_larger(lanes a, lanes b) {
  return vbslq_f32(vcltq_f32(a, b), b, a);
}
static inline bool lanes_any_nan(lanes a, lanes b) {
  return vminvq_u32(vandq_u32(vceqq_f32(a, a), vceqq_f32(b, b))) == 0;
}
static inline lanes lanes_replace_nan(lanes a, uint32_t bits) {
  return vbslq_f32(vceqq_f32(a, a), a, vreinterpretq_f32_u32(vdupq_n_u32(bits)));
}
static inline lanes lanes_load_float(const void *p) {
  return vld1q_f32(p);
}
static inline lanes lanes_load_half(const void *p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
static inline lanes lanes_load_bfloat16(const void *p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
static inline void lanes_store_float(void *p, lanes x) {
  vst1q_f32(p, x);
}
static inline void lanes_stream_float(void *p, lanes x) {
  vst1q_f32(p, x);
}
static inline void lanes_stream_end(void) {}
static inline void lanes_store_half(void *p, lanes x) {
  vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x)));
}
static inline void lanes_store_bfloat16(void *p, lanes x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t sum = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
  vst1_u16(p, vshrn_n_u32(sum, 16));
}
static inline wide wide_set(double x) {
  return (wide){vdupq_n_f64(x), vdupq_n_f64(x)};
}
static inline wide wide_mul(wide a, wide b) {
  return (wide){vmulq_f64(a.low, b.low), vmulq_f64(a.high, b.high)};
}
static inline wide wide_add(wide a, wide b) {
  return (wide){vaddq_f64(a.low, b.low), vaddq_f64(a.high, b.high)};
}
static inline wide wide_fma(wide a, wide b, wide c) {
  return (wide){vfmaq_f64(c.low, a.low, b.low), vfmaq_f64(c.high, a.high, b.high)};
}
static inline wide wide_div(wide a, wide b) {
  return (wide){vdivq_f64(a.low, b.low), vdivq_f64(a.high, b.high)};
}
static inline wide wide_sqrt(wide a) {
  return (wide){vsqrtq_f64(a.low), vsqrtq_f64(a.high)};
}
static inline float64x2_t flip(float64x2_t a, uint32_t sign) {
  const uint64x2_t bits = vdupq_n_u64((uint64_t)sign << 32);
  return vreinterpretq_f64_u64(veorq_u64(vreinterpretq_u64_f64(a), bits));
}
static inline wide wide_flip(wide a, uint32_t sign) {
  return (wide){flip(a.low, sign), flip(a.high, sign)};
}
static inline float64x2_t larger(float64x2_t a, float64x2_t b) {
  return vbslq_f64(vcltq_f64(a, b), b, a);
}
static inline wide wide_larger(wide a, wide b) {
  return (wide){larger(a.low, b.low), larger(a.high, b.high)};
}
static inline float64x2_t quiet(float64x2_t a) {
  const uint64x2_t bit = vdupq_n_u64(0x0008000000000000u);
  return vreinterpretq_f64_u64(vorrq_u64(vreinterpretq_u64_f64(a), bit));
}
static inline float64x2_t canonical(float64x2_t x, float64x2_t first, float64x2_t second) {
  float64x2_t nan = vreinterpretq_f64_u64(vdupq_n_u64(0xfff8000000000000u));
  nan = vbslq_f64(vceqq_f64(second, second), nan, quiet(second));
  nan = vbslq_f64(vceqq_f64(first, first), nan, quiet(first));
  return vbslq_f64(vceqq_f64(x, x), x, nan);
}
static inline wide wide_canonical(wide x, wide first, wide second) {
  return (wide){canonical(x.low, first.low, second.low),
                canonical(x.high, first.high, second.high)};
}
static inline wide wide_load_double(const void *p) {
  return (wide){vld1q_f64(p), vld1q_f64((const double *)p + 2)};
}
static inline void wide_store_double(void *p, wide x) {
  vst1q_f64(p, x.low);
  vst1q_f64((double *)p + 2, x.high);
}
static inline wide widen(lanes a) {
  return (wide){vcvt_f64_f32(vget_low_f32(a)), vcvt_high_f64_f32(a)};
}
static inline lanes narrow(wide a) {
  return vcvt_high_f32_f64(vcvt_f32_f64(a.low), a.high);
}

#define KERNELS adam_kernels_neon
#include "kernels.inc"
