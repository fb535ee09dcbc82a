/* Lanes of one float: plain C, with libm's fma (exact on every machine, slow without the
 * instruction). */
#include "convert.h"
#include "kernels.h"

enum { LANES = 1 };
typedef float lanes;
typedef double wide;

static inline lanes lanes_set(float x) {
  return x;
}
static inline lanes lanes_mul(lanes a, lanes b) {
  return a * b;
}
static inline lanes lanes_add(lanes a, lanes b) {
  return a + b;
}
static inline lanes lanes_div(lanes a, lanes b) {
  return a / b;
}
static inline lanes lanes_sqrt(lanes a) {
  return sqrtf(a);
}
static inline lanes lanes_fma(lanes a, lanes b, lanes c) {
  return fmaf(a, b, c);
}
static inline lanes lanes_flip(lanes a, uint32_t sign) {
  return sign ? -a : a;
}
static inline lanes lanes_larger(lanes a, lanes b) {
  return a < b ? b : a;
}
static inline bool lanes_any_nan(lanes a, lanes b) {
  return a != a || b != b;
}
static inline lanes lanes_replace_nan(lanes a, uint32_t bits) {
  return a == a ? a : float_of_bits(bits);
}
static inline lanes lanes_load_float(const void *p) {
  return *(const float *)p;
}
static inline lanes lanes_load_half(const void *p) {
  return float_of_half(*(const uint16_t *)p);
}
static inline lanes lanes_load_bfloat16(const void *p) {
  return float_of_bfloat16(*(const uint16_t *)p);
}
static inline void lanes_store_float(void *p, lanes x) {
  *(float *)p = x;
}
static inline void lanes_stream_float(void *p, lanes x) {
  *(float *)p = x;
}
static inline void lanes_stream_end(void) {}
static inline void lanes_store_half(void *p, lanes x) {
  *(uint16_t *)p = half_of_float(x);
}
static inline void lanes_store_bfloat16(void *p, lanes x) {
  *(uint16_t *)p = bfloat16_of_float(x);
}
static inline wide wide_set(double x) {
  return x;
}
static inline wide wide_mul(wide a, wide b) {
  return a * b;
}
static inline wide wide_add(wide a, wide b) {
  return a + b;
}
static inline wide wide_div(wide a, wide b) {
  return a / b;
}
static inline wide wide_sqrt(wide a) {
  return sqrt(a);
}
static inline wide wide_fma(wide a, wide b, wide c) {
  return fma(a, b, c);
}
static inline wide wide_flip(wide a, uint32_t sign) {
  return sign ? -a : a;
}
static inline wide wide_larger(wide a, wide b) {
  return a < b ? b : a;
}
static inline wide wide_canonical(wide x, wide first, wide second) {
  return canonical_double(x, first, second);
}
static inline wide wide_load_double(const void *p) {
  return *(const double *)p;
}
static inline void wide_store_double(void *p, wide x) {
  *(double *)p = x;
}
static inline wide widen(lanes a) {
  return (double)a;
}
static inline lanes narrow(wide a) {
  return (float)a;
}

#define KERNELS adam_kernels_scalar
#include "kernels.inc"
