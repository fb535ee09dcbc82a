/* Division by a number that is known beforehand, exact, in two operations. */
#ifndef OFFLOAD_ADAM_RECIPROCAL_H
#define OFFLOAD_ADAM_RECIPROCAL_H
#include <stdbool.h>

struct reciprocal {
  float high, low; /* their sum is 1/divisor to 47 bits */
};

/* True where fmaf(x, high, x*low) is x/divisor, rounded to nearest, for every x that is zero or from
   2^-80 to 2^65. Takes some hundred nanoseconds; the divisor must be from 2^-60 to 2. */
bool reciprocal_exact(float divisor, struct reciprocal *);
#endif
