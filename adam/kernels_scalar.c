/* Lanes of one float: plain C, with libm's fma (exact on every machine, slow without the
 * instruction). */
#include "kernels.h"
#include <math.h>
#include <string.h>

enum { LANES = 1 };
typedef float lanes;
typedef double wide;

static inline lanes lanes_set(float x) {
  return x;
}
static inline lanes lanes_load(const float *p) {
  return *p;
}
static inline void lanes_store(float *p, lanes x) {
  *p = x;
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
static inline lanes lanes_canonical(lanes a) {
  static const union {
    uint32_t bits;
    float value;
  } nan = {.bits = 0x7fffffffu};
  return a == a ? a : nan.value;
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
static inline wide wide_fma(wide a, wide b, wide c) {
  return fma(a, b, c);
}
static inline wide widen(lanes a) {
  return (double)a;
}
static inline lanes narrow(wide a) {
  return (float)a;
}

#define KERNELS adam_kernels_scalar
#include "kernels.inc"
