/* GELU by tanh, and its slope: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel,
   arXiv:1606.08415). Without a mathematical library, whose last digits are its own business. */
#ifndef OFFLOAD_CUBLAS_GELU_H
#define OFFLOAD_CUBLAS_GELU_H
#include <math.h>
#include <stdint.h>
#include <string.h>

/* e^x for x from -60 to 0: 2^n times the series at the rest, which is at most ln(2)/2. */
static inline double gelu_exp(double x) {
  double n = (double)(int)(x * 1.4426950408889634 - 0.5), power, sum = 1;
  double rest = x - n * 0.693147180369123816490 - n * 1.90821492927058770002e-10;
  for (int term = 14; term > 0; term--)
    sum = 1 + sum * rest / term;
  uint64_t bits = (uint64_t)(1023 + (int)n) << 52;
  memcpy(&power, &bits, sizeof power);
  return sum * power;
}

static inline double gelu_tanh(double x) {
  double small = gelu_exp(-2 * fmin(fabs(x), 30));
  double result = (1 - small) / (1 + small);
  return x != x ? x : copysign(result, x);
}

static const double gelu_scale = 0.7978845608028654, gelu_cubic = 0.044715;

static inline double gelu(double x) {
  if (isinf(x))
    return x > 0 ? x : 0;
  return 0.5 * x * (1 + gelu_tanh(gelu_scale * (x + gelu_cubic * x * x * x)));
}

static inline double gelu_slope(double x) {
  if (isinf(x))
    return x > 0;
  double t = gelu_tanh(gelu_scale * (x + gelu_cubic * x * x * x));
  /* 1 - t^2 is 0 long before x^2 overflows. */
  double inner = fabs(t) < 1 ? (1 - t * t) * gelu_scale * (1 + 3 * gelu_cubic * x * x) : 0;
  return 0.5 * (1 + t) + 0.5 * x * inner;
}
#endif
