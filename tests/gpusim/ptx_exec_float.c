/* f32 and f64 arithmetic to nearest, and what doesn't round. Called by ptx_select.c. Exact, div, sqrt
   and fma too; f64 NaNs are the host's. Built without -frounding-math, under which compilers don't
   make vector code of fma and sqrt: nothing here may run in another rounding mode. Directed rounding
   and .sat are in ptx_exec_round.c, approximations in ptx_exec_approximate.c. */
#include "ptx_exec.h"
#include <float.h>

/* op_f32 plain and with .ftz; d = EXPRESSION of x, y, z. */
#define F32(name, EXPRESSION)                                                                      \
  INLINE void name##_f32(ARGS, bool ftz) {                                                         \
    uint32_t *d = CELLS(uint32_t, 0);                                                              \
    const uint32_t *a = CELLS(uint32_t, 1), *b = i->operands > 2 ? CELLS(uint32_t, 2) : a;         \
    const uint32_t *c = i->operands > 3 ? CELLS(uint32_t, 3) : a;                                  \
    LANES {                                                                                        \
      const float x = f32_in(a[l], ftz), y = f32_in(b[l], ftz), z = f32_in(c[l], ftz);             \
      (void)y, (void)z;                                                                            \
      d[l] = f32_out(EXPRESSION, ftz, false);                                                      \
    }                                                                                              \
  }                                                                                                \
  static void name##_f32_plain(ARGS) {                                                             \
    name##_f32(PASS, false);                                                                       \
  }                                                                                                \
  static void name##_f32_ftz(ARGS) {                                                               \
    name##_f32(PASS, true);                                                                        \
  }
#define F64(name, EXPRESSION)                                                                      \
  static void name##_f64(ARGS) {                                                                   \
    uint64_t *d = CELLS(uint64_t, 0);                                                              \
    const uint64_t *a = CELLS(uint64_t, 1), *b = i->operands > 2 ? CELLS(uint64_t, 2) : a;         \
    const uint64_t *c = i->operands > 3 ? CELLS(uint64_t, 3) : a;                                  \
    LANES {                                                                                        \
      const double x = f64_of(a[l]), y = f64_of(b[l]), z = f64_of(c[l]);                           \
      (void)y, (void)z;                                                                            \
      d[l] = f64_out(EXPRESSION, a[l], b[l], c[l]);                                                \
    }                                                                                              \
  }
#include "ptx_float.def"
#undef F32
#undef F64

/* Minimum and maximum: a NaN loses against a number, unless .NaN is given; -0 is less than +0. */
#define EXTREME(name, LESS)                                                                        \
  static void name##_f32(ARGS) {                                                                   \
    uint32_t *d = CELLS(uint32_t, 0);                                                              \
    const uint32_t *a = CELLS(uint32_t, 1), *b = CELLS(uint32_t, 2);                               \
    const bool ftz = i->flags & PTX_M_FTZ, nan_wins = i->flags & PTX_M_NAN_WINS;                   \
    LANES {                                                                                        \
      uint32_t u = f32_flushed(a[l], ftz), v = f32_flushed(b[l], ftz);                             \
      float x = f32_of(u), y = f32_of(v);                                                          \
      bool first_wins = x LESS y || (x == y && (int32_t)u LESS(int32_t) v);                        \
      uint32_t result = first_wins ? u : v;                                                        \
      result = y != y ? u : result;                                                                \
      bool nan = nan_wins ? x != x || y != y : x != x && y != y;                                   \
      d[l] = nan ? 0x7fffffffu : x != x ? v : result;                                              \
    }                                                                                              \
  }                                                                                                \
  static void name##_f64(ARGS) {                                                                   \
    uint64_t *d = CELLS(uint64_t, 0);                                                              \
    const uint64_t *a = CELLS(uint64_t, 1), *b = CELLS(uint64_t, 2);                               \
    LANES {                                                                                        \
      uint64_t u = a[l], v = b[l];                                                                 \
      double x = f64_of(u), y = f64_of(v);                                                         \
      bool first_wins = x LESS y || (x == y && (int64_t)u LESS(int64_t) v);                        \
      uint64_t result = first_wins ? u : v;                                                        \
      d[l] = x != x ? v : y != y ? u : result;                                                     \
    }                                                                                              \
  }
EXTREME(min, <)
EXTREME(max, >)

#define SIGN(name, F32_EXPRESSION, F64_EXPRESSION)                                                 \
  static void name##_f32(ARGS) {                                                                   \
    uint32_t *d = CELLS(uint32_t, 0);                                                              \
    const uint32_t *a = CELLS(uint32_t, 1), *b = i->operands > 2 ? CELLS(uint32_t, 2) : a;         \
    const bool ftz = i->flags & PTX_M_FTZ;                                                         \
    LANES {                                                                                        \
      const uint32_t x = f32_flushed(a[l], ftz), y = b[l];                                         \
      (void)y;                                                                                     \
      d[l] = f32_out(f32_of(F32_EXPRESSION), false, false);                                        \
    }                                                                                              \
  }                                                                                                \
  static void name##_f64(ARGS) {                                                                   \
    uint64_t *d = CELLS(uint64_t, 0);                                                              \
    const uint64_t *a = CELLS(uint64_t, 1), *b = i->operands > 2 ? CELLS(uint64_t, 2) : a;         \
    LANES {                                                                                        \
      const uint64_t x = a[l], y = b[l];                                                           \
      (void)y;                                                                                     \
      d[l] = F64_EXPRESSION;                                                                       \
    }                                                                                              \
  }
#define SIGN64 (UINT64_C(1) << 63)
SIGN(abs, x & 0x7fffffffu, x & ~SIGN64)
SIGN(neg, x ^ 0x80000000u, x ^ SIGN64)
/* copysign d, a, b: the sign of a, the magnitude of b. */
SIGN(copysign, (x & 0x80000000u) | (y & 0x7fffffffu), (x & SIGN64) | (y & ~SIGN64))

static void testp(ARGS) {
  const bool wide = ptx_type_bytes[i->type] == 8;
  const uint64_t top = wide ? 0x7ff0000000000000u : 0x7f800000u;
  for (uint32_t l = first; l < end; l++) {
    uint64_t magnitude =
        wide ? CELLS(uint64_t, 1)[l] & ~SIGN64 : CELLS(uint32_t, 1)[l] & 0x7fffffffu;
    bool is_finite = magnitude<top, is_nan = magnitude> top, has_exponent = magnitude & top;
    bool result = i->action == PTX_TEST_FINITE     ? is_finite
                  : i->action == PTX_TEST_INFINITE ? magnitude == top
                  : i->action == PTX_TEST_NUMBER   ? !is_nan
                  : i->action == PTX_TEST_NAN      ? is_nan
                  : i->action == PTX_TEST_NORMAL   ? is_finite && has_exponent
                                                   : magnitude && !has_exponent;
    CELLS(uint8_t, 0)[l] = result;
  }
}

#define PICK(name) (!f32 ? name##_f64 : i->flags & PTX_M_FTZ ? name##_f32_ftz : name##_f32_plain)

ptx_handler PTX_NAME(ptx_select_float)(const struct ptx_instruction *i) {
  bool f32 = i->type == PTX_f32;
  if (!f32 && i->flags & (PTX_M_SAT | PTX_M_FTZ) && !(i->flags & PTX_M_APPROX))
    return NULL;
  if (i->flags & (PTX_M_CC | PTX_M_LO | PTX_M_HI | PTX_M_WIDE))
    return NULL;
  if (ptx_is_approximate(i))
    return PTX_NAME(ptx_select_approximate)(i);
  if (i->rounding > PTX_RN || i->flags & PTX_M_SAT)
    return PTX_NAME(ptx_select_round)(i);
  switch (i->opcode) {
  case PTX_OP_add:
    return PICK(add);
  case PTX_OP_sub:
    return PICK(sub);
  case PTX_OP_mul:
    return PICK(mul);
  case PTX_OP_mad:
  case PTX_OP_fma:
    return i->action == PTX_FUSED_MINUS_ADDEND    ? PICK(fma_minus_addend)
           : i->action == PTX_FUSED_MINUS_PRODUCT ? PICK(fma_minus_product)
                                                  : PICK(fma);
  case PTX_OP_div:
    return PICK(div);
  case PTX_OP_sqrt:
    return PICK(sqrt);
  case PTX_OP_rcp:
    return PICK(rcp);
  case PTX_OP_min:
    return f32 ? min_f32 : i->flags & PTX_M_NAN_WINS ? NULL : min_f64;
  case PTX_OP_max:
    return f32 ? max_f32 : i->flags & PTX_M_NAN_WINS ? NULL : max_f64;
  case PTX_OP_abs:
    return f32 ? abs_f32 : abs_f64;
  case PTX_OP_neg:
    return f32 ? neg_f32 : neg_f64;
  case PTX_OP_copysign:
    return f32 ? copysign_f32 : copysign_f64;
  case PTX_OP_testp:
    return i->action ? testp : NULL;
  default:
    return NULL;
  }
}
