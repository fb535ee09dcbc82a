/* f16 and bf16 arithmetic, and their packed forms: two values a register, so twice as many lanes.
   Called by ptx_select.c. Sums and products of 11-bit values rounded to 24 bits and then to 11 or 8
   are as if rounded once; fma goes through round-to-odd in double. */
#include "ptx_exec.h"

/* x*y + z rounded to odd: the product is exact in double, the sum's error is known exactly, and an
   odd last bit keeps "a little more" for the rounding that follows. */
INLINE double fma_to_odd(double x, double y, double z) {
  double product = x * y, sum = product + z;
  double part = sum - product, error = (product - (sum - part)) + (z - part);
  uint64_t bits = bits_of_f64(sum);
  if (error != 0 && error == error && !(bits & 1))
    bits += (error > 0) == (sum > 0) ? 1 : UINT64_MAX;
  return f64_of(bits);
}

INLINE double widen(uint16_t bits, bool half, bool ftz) {
  if (ftz && half && !(bits & 0x7c00u))
    bits &= 0x8000u;
  return half ? (double)f32_of_half(bits) : (double)f32_of_bfloat(bits);
}

INLINE double extreme(double x, double y, bool least, bool nan_wins) {
  if (x != x || y != y)
    return nan_wins || (x != x && y != y) ? NAN : x != x ? y : x;
  if (x == y)
    return (signbit(x) != 0) == least ? x : y;
  return (x < y) == least ? x : y;
}

INLINE double compute(const struct ptx_instruction *i, double x, double y, double z) {
  switch (i->opcode) {
  case PTX_OP_add:
    return (float)x + (float)y;
  case PTX_OP_sub:
    return (float)x - (float)y;
  case PTX_OP_mul:
    return (float)x * (float)y;
  case PTX_OP_fma:
    return fma_to_odd(x, y, z);
  case PTX_OP_min:
  case PTX_OP_max:
    return extreme(x, y, i->opcode == PTX_OP_min, i->flags & PTX_M_NAN_WINS);
  case PTX_OP_neg:
    return -x;
  case PTX_OP_abs:
    return fabs(x);
  case PTX_OP_ex2:
    return exp2(x);
  default:
    return tanh(x);
  }
}

INLINE void lanes16(ARGS, bool half) {
  uint16_t *d = CELLS(uint16_t, 0);
  const uint16_t *a = CELLS(uint16_t, 1), *b = i->operands > 2 ? CELLS(uint16_t, 2) : a;
  const uint16_t *c = i->operands > 3 ? CELLS(uint16_t, 3) : a;
  const bool ftz = i->flags & PTX_M_FTZ, sat = i->flags & PTX_M_SAT;
  for (uint32_t l = first; l < end; l++) {
    double r = compute(i, widen(a[l], half, ftz), widen(b[l], half, ftz), widen(c[l], half, ftz));
    if (sat)
      r = r > 0 ? (r < 1 ? r : 1) : 0;
    uint16_t bits = narrow(r, half ? 10 : 7, PTX_RN);
    d[l] = ftz && half && !(bits & 0x7c00u) ? bits & 0x8000u : bits;
  }
  (void)t;
}
static void half_lanes(ARGS) {
  lanes16(PASS, true);
}
static void bfloat_lanes(ARGS) {
  lanes16(PASS, false);
}
static void half_pairs(ARGS) {
  lanes16(t, i, first * 2, end * 2, true);
}
static void bfloat_pairs(ARGS) {
  lanes16(t, i, first * 2, end * 2, false);
}

ptx_handler PTX_NAME(ptx_select_half)(const struct ptx_instruction *i) {
  bool half = i->type == PTX_f16 || i->type == PTX_f16x2;
  bool bfloat = i->type == PTX_bf16 || i->type == PTX_bf16x2;
  bool sum = i->opcode == PTX_OP_add || i->opcode == PTX_OP_sub || i->opcode == PTX_OP_mul ||
             i->opcode == PTX_OP_fma;
  bool function = i->opcode == PTX_OP_ex2 || i->opcode == PTX_OP_tanh;
  bool other = i->opcode == PTX_OP_min || i->opcode == PTX_OP_max || i->opcode == PTX_OP_neg ||
               i->opcode == PTX_OP_abs;
  if (i->rounding > PTX_RN || !(sum || function || other))
    return NULL;
  if (i->flags & (PTX_M_CC | PTX_M_LO | PTX_M_HI | PTX_M_WIDE) || (function && !half && !bfloat))
    return NULL;
  if (bfloat && i->flags & (PTX_M_FTZ | PTX_M_SAT))
    return NULL;
  switch (i->type) {
  case PTX_f16:
    return half_lanes;
  case PTX_bf16:
    return bfloat_lanes;
  case PTX_f16x2:
    return half_pairs;
  case PTX_bf16x2:
    return bfloat_pairs;
  default:
    return NULL;
  }
}
