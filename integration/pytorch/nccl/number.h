/* Small floating-point formats to float and back, round to nearest even. Overflow becomes infinity in
   float16 and bfloat16 and the largest finite number in the 8-bit formats, as CUDA's conversions do. */
#ifndef OFFLOAD_NCCL_NUMBER_H
#define OFFLOAD_NCCL_NUMBER_H
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct number_format {
  int exponent_bits, mantissa_bits;
  bool has_infinity; /* else the largest exponent holds numbers, and one NaN */
  bool saturates;
};
#define NUMBER_FLOAT16 ((struct number_format){5, 10, true, false})
#define NUMBER_BFLOAT16 ((struct number_format){8, 7, true, false})
#define NUMBER_FLOAT8_E4M3 ((struct number_format){4, 3, false, true})
#define NUMBER_FLOAT8_E5M2 ((struct number_format){5, 2, true, true})

static inline int number_bias(struct number_format format) {
  return (1 << (format.exponent_bits - 1)) - 1;
}

static inline float number_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint32_t number_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float number_unpack(uint32_t packed, struct number_format format) {
  uint32_t mantissa_mask = (1u << format.mantissa_bits) - 1;
  uint32_t exponent_mask = (1u << format.exponent_bits) - 1;
  uint32_t mantissa = packed & mantissa_mask;
  uint32_t exponent = packed >> format.mantissa_bits & exponent_mask;
  uint32_t sign = packed >> (format.exponent_bits + format.mantissa_bits) & 1;
  uint32_t magnitude;
  if (exponent == exponent_mask && (format.has_infinity || mantissa == mantissa_mask))
    magnitude =
        0x7f800000u | (format.has_infinity ? mantissa << (23 - format.mantissa_bits) : 0x7fffffu);
  else if (exponent == 0 && format.exponent_bits < 8)
    magnitude = number_bits(
        (float)mantissa *
        number_float((uint32_t)(128 - number_bias(format) - format.mantissa_bits) << 23));
  else
    magnitude = (exponent + (uint32_t)(127 - number_bias(format))) << 23 |
                mantissa << (23 - format.mantissa_bits);
  return number_float(sign << 31 | magnitude);
}

static inline uint32_t number_pack(float value, struct number_format format) {
  int shift = 23 - format.mantissa_bits, bias = number_bias(format);
  uint32_t all = (1u << (format.exponent_bits + format.mantissa_bits)) - 1;
  uint32_t infinity = all & ~((1u << format.mantissa_bits) - 1);
  uint32_t overflow = !format.has_infinity ? all - 1 : format.saturates ? infinity - 1 : infinity;
  uint32_t bits = number_bits(value) & 0x7fffffffu, magnitude;
  if (bits > 0x7f800000u)
    return all;
  if (format.exponent_bits < 8 && bits < (uint32_t)(128 - bias) << 23) /* subnormal there */
    magnitude = (uint32_t)nearbyintf(
        number_float(bits) * number_float((uint32_t)(126 + bias + format.mantissa_bits) << 23));
  else
    magnitude = ((bits + (1u << (shift - 1)) - 1 + (bits >> shift & 1)) >> shift) -
                ((uint32_t)(127 - bias) << format.mantissa_bits);
  if (magnitude > overflow)
    magnitude = overflow;
  return number_bits(value) >> 31 << (format.exponent_bits + format.mantissa_bits) | magnitude;
}
#endif
