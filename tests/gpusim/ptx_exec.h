/* For the exec rooms (ptx_exec_*.c) only: loops over lanes and the bits of floats. These rooms are
   compiled once per instruction set, with PTX_VARIANT naming it, and select with PTX_NAME(...) what
   ptx_select.c calls. Compiled with -frounding-math -ffp-contract=off: rounding is changed at run
   time, and nothing may be fused that PTX didn't fuse. */
#ifndef GPUSIM_PTX_EXEC_H
#define GPUSIM_PTX_EXEC_H
#include "ptx.h"
#include <fenv.h>
#include <math.h>
#include <string.h>

#define PTX_JOIN2(a, b) a##_##b
#define PTX_JOIN(a, b) PTX_JOIN2(a, b)
#define PTX_NAME(name) PTX_JOIN(name, PTX_VARIANT)

/* rsqrt, ex2, lg2, sin, cos and tanh have no exact form. */
static inline bool ptx_is_approximate(const struct ptx_instruction *i) {
  return i->flags & PTX_M_APPROX || i->opcode == PTX_OP_rsqrt || i->opcode == PTX_OP_ex2 ||
         i->opcode == PTX_OP_lg2 || i->opcode == PTX_OP_sin || i->opcode == PTX_OP_cos ||
         i->opcode == PTX_OP_tanh;
}
ptx_handler PTX_NAME(ptx_select_approximate)(const struct ptx_instruction *);
ptx_handler PTX_NAME(ptx_select_round)(const struct ptx_instruction *);

#define ARGS struct ptx_team *t, const struct ptx_instruction *i, uint32_t first, uint32_t end
#define PASS t, i, first, end
/* The array of operand n. A result may be the same array as a source, never one shifted against it:
   so the iterations of a loop over lanes don't depend on each other, which compilers can't see. */
#define CELLS(T, n) ((T *)(void *)(t->registers + i->operand[n]))
#ifdef __clang__
#pragma clang diagnostic ignored "-Wpass-failed" /* not every loop can become vector code */
#define LANES _Pragma("clang loop vectorize(assume_safety)") for (uint32_t l = first; l < end; l++)
#else
#define LANES _Pragma("GCC ivdep") for (uint32_t l = first; l < end; l++)
#endif
#define INLINE static inline __attribute__((always_inline))

/* The address that each lane names. */
INLINE void addresses(ARGS, uint64_t *out) {
  const uint64_t offset = (uint64_t)i->offset;
  const uint8_t *cells = t->registers + i->address;
  if (i->address_bytes == 8)
    LANES out[l] = ((const uint64_t *)(const void *)cells)[l] + offset;
  else
    LANES out[l] = (uint32_t)(((const uint32_t *)(const void *)cells)[l] + offset);
}

INLINE float f32_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
INLINE uint32_t bits_of_f32(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
INLINE double f64_of(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
INLINE uint64_t bits_of_f64(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
/* .ftz: a subnormal becomes a zero of its sign. */
INLINE uint32_t f32_flushed(uint32_t bits, bool ftz) {
  return ftz && !(bits & 0x7f800000u) ? bits & 0x80000000u : bits;
}
INLINE float f32_in(uint32_t bits, bool ftz) {
  return f32_of(f32_flushed(bits, ftz));
}
/* Every NaN result of the GPU is 0x7fffffff. */
INLINE uint32_t f32_out(float value, bool ftz, bool sat) {
  if (sat)
    value = value > 0 ? (value < 1 ? value : 1) : 0;
  const uint32_t bits = bits_of_f32(value); /* compared as a whole number: no branch */
  return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffffffu : f32_flushed(bits, ftz);
}
/* The first operand that is a NaN is passed on, quiet; else a NaN is x86's. Spelled out, as compilers
   are free to exchange operands. */
INLINE uint64_t f64_nan_mask(uint64_t bits) {
  return 0 - (uint64_t)((bits & ~(UINT64_C(1) << 63)) > UINT64_C(0x7ff0000000000000));
}
INLINE uint64_t f64_out(double value, uint64_t x, uint64_t y, uint64_t z) {
  const uint64_t bits = bits_of_f64(value), quiet = UINT64_C(1) << 51;
  const uint64_t nan_x = f64_nan_mask(x), nan_y = f64_nan_mask(y), nan_z = f64_nan_mask(z);
  const uint64_t none = UINT64_C(0xfff8000000000000), nan_bits = f64_nan_mask(bits);
  const uint64_t nan =
      (x & nan_x) | (~nan_x & ((y & nan_y) | (~nan_y & ((z & nan_z) | (~nan_z & none)))));
  return (bits & ~nan_bits) | ((nan | quiet) & nan_bits);
}
INLINE void round_to(uint8_t mode) {
  static const int modes[] = {FE_TONEAREST, FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
  fesetround(modes[mode]);
}

/* ---- half and bfloat16 ---- */

INLINE float f32_of_half(uint16_t bits) {
  uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) /* infinity, NaN */
    return f32_of(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x400u)
    return f32_of(sign | ((magnitude << 13) + 0x38000000u));
  float subnormal = (float)(int32_t)magnitude * 0x1p-24f;
  return f32_of(sign | bits_of_f32(subnormal));
}
INLINE float f32_of_bfloat(uint16_t bits) {
  return f32_of((uint32_t)bits << 16);
}
/* A double to 16 bits, rounded once; `mantissa` bits are stored, 10 for half and 7 for bfloat16. */
INLINE uint16_t narrow(double value, uint32_t mantissa, uint8_t mode) {
  const int32_t bias = mantissa == 10 ? 15 : 127;
  const uint64_t infinity = mantissa == 10 ? 0x7c00u : 0x7f80u;
  uint64_t bits = bits_of_f64(value), sign = bits >> 63;
  uint16_t sign16 = (uint16_t)(sign << 15);
  int32_t exponent = (int32_t)(bits >> 52 & 0x7ff) - 1023;
  if (value != value)
    return 0x7fff;
  if (exponent == 1024)
    return (uint16_t)(sign16 | infinity);
  if (!(bits << 1))
    return sign16;
  uint64_t whole = (bits & 0xfffffffffffffu) | (exponent > -1023 ? UINT64_C(1) << 52 : 0);
  uint32_t shift = 52 - mantissa;
  uint64_t result = 0;
  if (exponent < 1 - bias)
    shift += (uint32_t)(1 - bias - exponent);
  else
    result = (uint64_t)(exponent + bias - 1) << mantissa;
  if (shift > 62)
    shift = 62; /* all that is left is "not zero" */
  uint64_t rest = whole & ((UINT64_C(1) << shift) - 1), half = UINT64_C(1) << (shift - 1);
  uint64_t kept = whole >> shift;
  bool up = mode == PTX_RZ   ? false
            : mode == PTX_RM ? sign && rest
            : mode == PTX_RP ? !sign && rest
                             : rest > half || (rest == half && kept & 1);
  result += kept + up;
  if (result >= infinity) {
    bool to_infinity = mode == PTX_RZ   ? false
                       : mode == PTX_RM ? sign
                       : mode == PTX_RP ? !sign
                                        : true;
    result = to_infinity ? infinity : infinity - 1;
  }
  return (uint16_t)(sign16 | result);
}
#endif
