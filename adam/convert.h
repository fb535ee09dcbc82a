/* Numbers in their storage types, one at a time, by integers: exact loads, stores rounded to
   nearest even with the GPU's NaN. For the reference and the scalar kernels; the vector kernels
   have their own. */
#ifndef OFFLOAD_ADAM_CONVERT_H
#define OFFLOAD_ADAM_CONVERT_H
#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float float_of_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static inline uint32_t bits_of_float(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline double double_of_bits(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static inline uint64_t bits_of_double(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline float canonical_float(float x) {
  return x == x ? x : float_of_bits(0x7fffffffu);
}

/* A NaN result takes the first of two operands that is NaN, made quiet. */
static inline double canonical_double(double x, double first, double second) {
  const uint64_t quiet = UINT64_C(0x0008000000000000);
  if (x == x)
    return x;
  if (first != first)
    return double_of_bits(bits_of_double(first) | quiet);
  if (second != second)
    return double_of_bits(bits_of_double(second) | quiet);
  return double_of_bits(UINT64_C(0xfff8000000000000));
}

static inline float float_of_bfloat16(uint16_t bits) {
  return float_of_bits((uint32_t)bits << 16);
}

static inline uint16_t bfloat16_of_float(float x) {
  const uint32_t bits = bits_of_float(x);
  return x == x ? (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16) : 0x7fffu;
}

static inline float float_of_half(uint16_t bits) {
  const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
  const uint32_t exponent = bits >> 10 & 31u, mantissa = bits & 0x3ffu;
  if (exponent == 31)
    return float_of_bits(mantissa ? 0x7fffffffu : sign | 0x7f800000u);
  if (exponent == 0) /* mantissa units of 2^-24 */
    return float_of_bits(sign | bits_of_float((float)mantissa * 0x1p-24f));
  return float_of_bits(sign | (exponent + 112u) << 23 | mantissa << 13);
}

static inline uint16_t half_of_float(float x) {
  const uint32_t bits = bits_of_float(x), magnitude = bits & 0x7fffffffu;
  const uint32_t sign = bits >> 16 & 0x8000u;
  if (x != x)
    return 0x7fffu;
  if (magnitude >= 0x477ff000u) /* 65520, halfway to what would be the next half */
    return (uint16_t)(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    /* Below 2^-14: adding 1/2 leaves units of 2^-24 as the low bits, rounded to even. */
    const float shifted = float_of_bits(magnitude) + 0.5f;
    return (uint16_t)(sign | (bits_of_float(shifted) - 0x3f000000u));
  }
  return (uint16_t)(sign | (((magnitude + 0xfffu + (magnitude >> 13 & 1u)) >> 13) - (112u << 10)));
}
#endif
