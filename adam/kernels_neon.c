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
static inline lanes lanes_load(const float *p) {
  return vld1q_f32(p);
}
static inline void lanes_store(float *p, lanes x) {
  vst1q_f32(p, x);
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
static inline lanes lanes_canonical(lanes a) {
  return vbslq_f32(vceqq_f32(a, a), a, vreinterpretq_f32_u32(vdupq_n_u32(0x7fffffffu)));
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
static inline wide widen(lanes a) {
  return (wide){vcvt_f64_f32(vget_low_f32(a)), vcvt_high_f64_f32(a)};
}
static inline lanes narrow(wide a) {
  return vcvt_high_f32_f64(vcvt_f32_f64(a.low), a.high);
}

#define KERNELS adam_kernels_neon
#include "kernels.inc"
