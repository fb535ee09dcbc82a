/* The small floating-point formats, against their definition: every code, and rounding between every two
   neighbours. */
#include "integration/pytorch/nccl/number.h"
#include "tests/lib/tap.h"

static int code_bits(struct number_format f) {
  return f.exponent_bits + f.mantissa_bits;
}

/* The number of a code by the definition, in double; NAN and INFINITY where the format has them. */
static double defined(uint32_t code, struct number_format f) {
  uint32_t mantissa = code & ((1u << f.mantissa_bits) - 1);
  int exponent = (int)(code >> f.mantissa_bits) & ((1 << f.exponent_bits) - 1);
  int bias = (1 << (f.exponent_bits - 1)) - 1, most = (1 << f.exponent_bits) - 1;
  double sign = code >> code_bits(f) & 1 ? -1 : 1;
  if (exponent == most && f.has_infinity)
    return mantissa == 0 ? sign * (double)INFINITY : (double)NAN;
  if (exponent == most && mantissa == (1u << f.mantissa_bits) - 1)
    return (double)NAN;
  if (exponent == 0)
    return sign * ldexp(mantissa, 1 - bias - f.mantissa_bits);
  return sign * ldexp(mantissa + (1u << f.mantissa_bits), exponent - bias - f.mantissa_bits);
}

static bool every_code_is_read(struct number_format f) {
  for (uint32_t code = 0; code < 2u << code_bits(f); code++) {
    double is = (double)number_unpack(code, f), should = defined(code, f);
    bool negative = code >> code_bits(f) != 0;
    if (should != should ? is == is : is != should || (signbit(is) != 0) != negative)
      return false;
  }
  return true;
}

static bool every_number_is_kept(struct number_format f) {
  for (uint32_t code = 0; code < 2u << code_bits(f); code++) {
    double number = defined(code, f);
    if (isfinite(number) && number_pack((float)number, f) != code)
      return false;
  }
  return true;
}

/* Largest finite code. */
static uint32_t largest(struct number_format f) {
  uint32_t code = (1u << code_bits(f)) - 1;
  while (!isfinite(defined(code, f)))
    code--;
  return code;
}

static bool rounds_to_nearest_even(struct number_format f) {
  uint32_t sign = 1u << code_bits(f);
  for (uint32_t code = 0; code < largest(f); code++) {
    float low = (float)defined(code, f), high = (float)defined(code + 1, f);
    float middle = (float)((defined(code, f) + defined(code + 1, f)) / 2);
    uint32_t even = code % 2 == 0 ? code : code + 1;
    if (number_pack(middle, f) != even || number_pack(nextafterf(middle, low), f) != code ||
        number_pack(nextafterf(middle, high), f) != code + 1 ||
        number_pack(-middle, f) != (even | sign))
      return false;
  }
  return true;
}

static bool overflow_becomes(struct number_format f, uint32_t code) {
  uint32_t sign = 1u << code_bits(f);
  double top = defined(largest(f), f), below = defined(largest(f) - 1, f);
  float beyond = (float)(top + (top - below) / 2); /* the middle to what would come next */
  return number_pack(beyond, f) == code && number_pack(-beyond, f) == (code | sign) &&
         number_pack(nextafterf(beyond, 0), f) == largest(f) && number_pack(INFINITY, f) == code &&
         isnan(number_unpack(number_pack(NAN, f), f));
}

static void test_format(const char *name, struct number_format f, uint32_t overflow) {
  tap_ok(every_code_is_read(f), "every code of %s is read as its definition says", name);
  tap_ok(every_number_is_kept(f), "every number of %s is written as its code", name);
  tap_ok(rounds_to_nearest_even(f), "%s rounds to nearest even between any two numbers", name);
  tap_ok(overflow_becomes(f, overflow), "%s overflows to %#x, and NaN stays NaN", name, overflow);
}

int main(void) {
  test_format("float16", NUMBER_FLOAT16, 0x7c00);
  test_format("bfloat16", NUMBER_BFLOAT16, 0x7f80);
  test_format("float8_e4m3", NUMBER_FLOAT8_E4M3, 0x7e);
  test_format("float8_e5m2", NUMBER_FLOAT8_E5M2, 0x7b);
  return tap_done();
}
