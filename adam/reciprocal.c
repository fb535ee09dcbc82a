/* Whether two operations divide exactly by a given number (reciprocal.h). After Brisebarre, Muller and
   Raina, "Accelerating correctly rounded floating-point division when the divisor is known in
   advance", IEEE Transactions on Computers 53 (2004).

   With 1/b = high + low to a relative 2^-48, low*x rounded to another 2^-48, and one rounding at the
   end, the sum before that rounding is off by less than 2^-22 of the quotient's last place. So only a
   quotient that lies so near to the middle between two floats can come out wrong. With B and X the
   significands as integers of 24 bits, n the odd integer of 25 bits that is such a middle,

     X*2^s - n*B = t   with s = 24 where X >= B, else 25, and |t| < 2B * 2^-22 < 8,

   has few solutions: modulo 2^s, n = -t/B. They are all tried. */
#include "reciprocal.h"
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { NEAR = 8 };

/* 1/odd modulo 2^32: each step doubles the number of right bits. */
static uint32_t inverse(uint32_t odd) {
  uint32_t x = odd; /* right in 3 bits */
  for (int i = 0; i < 4; i++)
    x *= 2 - odd * x;
  return x;
}

static bool right(uint32_t significand, float divisor, const struct reciprocal *r) {
  const float x = (float)significand * 0x1p-23f;
  return fmaf(x, r->high, x * r->low) == x / divisor;
}

bool reciprocal_exact(float divisor, struct reciprocal *r) {
  if (!(divisor >= 0x1p-60f && divisor <= 2))
    return false;
  const double whole = 1.0 / (double)divisor;
  r->high = (float)whole;
  r->low = (float)(whole - (double)r->high);
  uint32_t bits;
  memcpy(&bits, &divisor, sizeof bits);
  const uint32_t b = (bits & 0x7fffff) | 0x800000;
  const unsigned even = (unsigned)__builtin_ctz(b);
  if (1u << even >= NEAR) /* t is a multiple of it */
    return true;
  const uint32_t odd = b >> even, inverted = inverse(odd);
  for (unsigned s = 24; s <= 25; s++)
    for (int32_t t = -NEAR + 1; t < NEAR; t += 2) {
      /* t here without its power of two */
      const uint32_t step = 1u << (s - even);
      if ((t < 0 ? -t : t) << even >= NEAR)
        continue;
      uint32_t n = (uint32_t)-t * inverted & (step - 1);
      for (; n < 1u << 25; n += step) {
        const int64_t product = (int64_t)n * b + (int64_t)t * (1 << even);
        const uint64_t x = (uint64_t)product >> s;
        if (n < 1u << 24 || x < 1u << 23 || x >= 1u << 24 || (x >= b) != (s == 24))
          continue;
        if (!right((uint32_t)x, divisor, r))
          return false;
      }
    }
  return true;
}
