/* Integer arithmetic. Called by ptx_select.c for opcodes whose type isn't a float. Wrapping is done
   in unsigned types, where C defines it. */
#include "ptx_exec.h"

/* op_u16, op_u32, ...: d = EXPRESSION of x, y, z, which have the unsigned type U and the signed
   type S of that width. */
#define DEFINE(name, suffix, T, UTYPE, STYPE, EXPRESSION)                                          \
  static void name##_##suffix(ARGS) {                                                              \
    typedef UTYPE U;                                                                               \
    typedef STYPE S;                                                                               \
    const uint32_t bits = sizeof(U) * 8;                                                           \
    T *d = CELLS(T, 0);                                                                            \
    const T *a = CELLS(T, 1), *b = i->operands > 2 ? CELLS(T, 2) : a;                              \
    const T *c = i->operands > 3 ? CELLS(T, 3) : a;                                                \
    LANES {                                                                                        \
      const T x = a[l], y = b[l], z = c[l];                                                        \
      (void)x, (void)y, (void)z, (void)bits, (void)(U)0, (void)(S)0;                               \
      d[l] = (T)(EXPRESSION);                                                                      \
    }                                                                                              \
  }
#define UNSIGNED_OPERATION(name, EXPRESSION)                                                       \
  DEFINE(name, u16, uint16_t, uint16_t, int16_t, EXPRESSION)                                       \
  DEFINE(name, u32, uint32_t, uint32_t, int32_t, EXPRESSION)                                       \
  DEFINE(name, u64, uint64_t, uint64_t, int64_t, EXPRESSION)
#define SIGNED_OPERATION(name, EXPRESSION)                                                         \
  DEFINE(name, s16, int16_t, uint16_t, int16_t, EXPRESSION)                                        \
  DEFINE(name, s32, int32_t, uint32_t, int32_t, EXPRESSION)                                        \
  DEFINE(name, s64, int64_t, uint64_t, int64_t, EXPRESSION)
#define OPERATION(name, EXPRESSION)                                                                \
  UNSIGNED_OPERATION(name, EXPRESSION)                                                             \
  SIGNED_OPERATION(name, EXPRESSION)

/* A type of 32 bits at least, so that 16-bit products don't overflow int. */
#define WIDE(v) ((uint64_t)(v))
UNSIGNED_OPERATION(add, x + y)
UNSIGNED_OPERATION(sub, x - y)
UNSIGNED_OPERATION(mul, (U)(WIDE(x) * WIDE(y)))
UNSIGNED_OPERATION(mad, (U)(WIDE(x) * WIDE(y) + WIDE(z)))
UNSIGNED_OPERATION(neg, 0 - WIDE(x))
SIGNED_OPERATION(abs, x < 0 ? (S)(0 - WIDE(x)) : x)
OPERATION(min, x < y ? x : y)
OPERATION(max, x > y ? x : y)
OPERATION(sad, (U)(WIDE(z) + (x > y ? WIDE(x) - WIDE(y) : WIDE(y) - WIDE(x))))
/* Division by zero gives all ones on the GPU, the remainder the dividend. */
UNSIGNED_OPERATION(div, y ? x / y : (U)~WIDE(0))
UNSIGNED_OPERATION(rem, y ? x % y : x)
SIGNED_OPERATION(div, !y ? (S)-1 : y == -1 ? (S)(0 - WIDE(x)) : (S)(x / y))
SIGNED_OPERATION(rem, !y ? x : y == -1 ? 0 : (S)(x % y))

#define HIGH(name, PLUS)                                                                           \
  DEFINE(name, u16, uint16_t, uint16_t, int16_t, ((uint32_t)x * y >> 16) PLUS)                     \
  DEFINE(name, u32, uint32_t, uint32_t, int32_t, ((uint64_t)x * y >> 32) PLUS)                     \
  DEFINE(name, u64, uint64_t, uint64_t, int64_t, (uint64_t)((unsigned __int128)x * y >> 64) PLUS)  \
  DEFINE(name, s16, int16_t, uint16_t, int16_t, WIDE((int32_t)x *y >> 16) PLUS)                    \
  DEFINE(name, s32, int32_t, uint32_t, int32_t, WIDE((int64_t)x *y >> 32) PLUS)                    \
  DEFINE(name, s64, int64_t, uint64_t, int64_t, (uint64_t)((__int128)x * y >> 64) PLUS)
HIGH(mul_hi, )
HIGH(mad_hi, +WIDE(z))

#define WIDENING(suffix, T, W)                                                                     \
  static void mul_wide_##suffix(ARGS) {                                                            \
    W *d = CELLS(W, 0);                                                                            \
    const T *a = CELLS(T, 1), *b = CELLS(T, 2);                                                    \
    LANES d[l] = (W)a[l] * b[l];                                                                   \
  }                                                                                                \
  static void mad_wide_##suffix(ARGS) {                                                            \
    W *d = CELLS(W, 0);                                                                            \
    const T *a = CELLS(T, 1), *b = CELLS(T, 2);                                                    \
    const W *c = CELLS(W, 3);                                                                      \
    LANES d[l] = (W)(WIDE((W)a[l] * b[l]) + WIDE(c[l]));                                           \
  }
WIDENING(u16, uint16_t, uint32_t)
WIDENING(u32, uint32_t, uint64_t)
WIDENING(s16, int16_t, int32_t)
WIDENING(s32, int32_t, int64_t)

#define CLAMPED(v) ((v) > INT32_MAX ? INT32_MAX : (v) < INT32_MIN ? INT32_MIN : (v))
DEFINE(add_sat, s32, int32_t, uint32_t, int32_t, CLAMPED((int64_t)x + y))
DEFINE(sub_sat, s32, int32_t, uint32_t, int32_t, CLAMPED((int64_t)x - y))

/* 24-bit products: of the 48 bits, the low 32 or the high 32. */
#define SIGNED24(v) ((int64_t)((uint64_t)(v) << 40) >> 40)
#define UNSIGNED24(v) (WIDE(v) & 0xffffff)
DEFINE(mul24, u32, uint32_t, uint32_t, int32_t, UNSIGNED24(x) * UNSIGNED24(y))
DEFINE(mul24, s32, int32_t, uint32_t, int32_t, (uint64_t)(SIGNED24(x) * SIGNED24(y)))
DEFINE(mul24_hi, u32, uint32_t, uint32_t, int32_t, UNSIGNED24(x) * UNSIGNED24(y) >> 16)
DEFINE(mul24_hi, s32, int32_t, uint32_t, int32_t, (uint64_t)(SIGNED24(x) * SIGNED24(y) >> 16))
DEFINE(mad24, u32, uint32_t, uint32_t, int32_t, UNSIGNED24(x) * UNSIGNED24(y) + z)
DEFINE(mad24, s32, int32_t, uint32_t, int32_t, (uint64_t)(SIGNED24(x) * SIGNED24(y)) + WIDE(z))
DEFINE(mad24_hi, u32, uint32_t, uint32_t, int32_t, (UNSIGNED24(x) * UNSIGNED24(y) >> 16) + z)
DEFINE(mad24_hi, s32, int32_t, uint32_t, int32_t,
       (uint64_t)(SIGNED24(x) * SIGNED24(y) >> 16) + WIDE(z))

/* add.cc, addc, ...: the carry is a bit per lane that lives from one instruction to the next. */
#define CARRYING(suffix, T, WIDER, S, SWIDER)                                                      \
  static void carry_##suffix(ARGS) {                                                               \
    const uint32_t bits = sizeof(T) * 8;                                                           \
    const bool takes =                                                                             \
        i->opcode == PTX_OP_addc || i->opcode == PTX_OP_subc || i->opcode == PTX_OP_madc;          \
    const bool product = i->opcode == PTX_OP_mad || i->opcode == PTX_OP_madc;                      \
    const bool minus = i->opcode == PTX_OP_sub || i->opcode == PTX_OP_subc;                        \
    T *d = CELLS(T, 0);                                                                            \
    const T *a = CELLS(T, 1), *b = CELLS(T, 2), *c = product ? CELLS(T, 3) : a;                    \
    for (uint32_t l = first; l < end; l++) {                                                       \
      WIDER sum, carry = takes ? t->carry[l] : 0;                                                  \
      if (product) {                                                                               \
        WIDER whole = ptx_type_class[i->type] == PTX_SIGNED ? (WIDER)((SWIDER)(S)a[l] * (S)b[l])   \
                                                            : (WIDER)a[l] * b[l];                  \
        sum = (WIDER)(T)(i->flags & PTX_M_HI ? whole >> bits : whole) + c[l] + carry;              \
      } else {                                                                                     \
        sum = minus ? (WIDER)a[l] - b[l] - carry : (WIDER)a[l] + b[l] + carry;                     \
      }                                                                                            \
      if (i->flags & PTX_M_CC)                                                                     \
        t->carry[l] = (uint8_t)(sum >> bits & 1);                                                  \
      d[l] = (T)sum;                                                                               \
    }                                                                                              \
  }
CARRYING(u32, uint32_t, uint64_t, int32_t, int64_t)
CARRYING(u64, uint64_t, unsigned __int128, int64_t, __int128)

#define BY_WIDTH(name)                                                                             \
  (bytes == 2 ? name##_u16 : bytes == 4 ? name##_u32 : bytes == 8 ? name##_u64 : NULL)
#define BY_SIGNED_WIDTH(name)                                                                      \
  (bytes == 2 ? name##_s16 : bytes == 4 ? name##_s32 : bytes == 8 ? name##_s64 : NULL)
#define BY_TYPE(name) (is_signed ? BY_SIGNED_WIDTH(name) : BY_WIDTH(name))
#define BY_SIGN32(name) (bytes != 4 ? NULL : is_signed ? name##_s32 : name##_u32)

static ptx_handler product(const struct ptx_instruction *i, bool is_signed, uint32_t bytes) {
  bool mad = i->opcode == PTX_OP_mad;
  uint32_t part = i->flags & (PTX_M_LO | PTX_M_HI | PTX_M_WIDE);
  if (part == PTX_M_LO)
    return mad ? BY_WIDTH(mad) : BY_WIDTH(mul);
  if (part == PTX_M_HI)
    return mad ? BY_TYPE(mad_hi) : BY_TYPE(mul_hi);
  if (part != PTX_M_WIDE || bytes == 8)
    return NULL;
  if (bytes == 2)
    return mad         ? (is_signed ? mad_wide_s16 : mad_wide_u16)
           : is_signed ? mul_wide_s16
                       : mul_wide_u16;
  return mad ? (is_signed ? mad_wide_s32 : mad_wide_u32) : is_signed ? mul_wide_s32 : mul_wide_u32;
}

ptx_handler PTX_NAME(ptx_select_integer)(const struct ptx_instruction *i) {
  uint32_t bytes = ptx_type_bytes[i->type];
  bool is_signed = ptx_type_class[i->type] == PTX_SIGNED, high = i->flags & PTX_M_HI;
  bool carries = i->flags & PTX_M_CC || i->opcode == PTX_OP_addc || i->opcode == PTX_OP_subc ||
                 i->opcode == PTX_OP_madc;
  if (bytes < 2 || i->flags & (PTX_M_FTZ | PTX_M_ROUND | PTX_M_APPROX | PTX_M_NAN_WINS))
    return NULL;
  if (i->flags & PTX_M_SAT)
    return i->type != PTX_s32 || carries ? NULL
           : i->opcode == PTX_OP_add     ? add_sat_s32
           : i->opcode == PTX_OP_sub     ? sub_sat_s32
                                         : NULL;
  if (carries)
    return i->flags & PTX_M_WIDE ? NULL : bytes == 4 ? carry_u32 : bytes == 8 ? carry_u64 : NULL;
  switch (i->opcode) {
  case PTX_OP_add:
    return BY_WIDTH(add);
  case PTX_OP_sub:
    return BY_WIDTH(sub);
  case PTX_OP_mul:
  case PTX_OP_mad:
    return product(i, is_signed, bytes);
  case PTX_OP_mul24:
    return high ? BY_SIGN32(mul24_hi) : BY_SIGN32(mul24);
  case PTX_OP_mad24:
    return high ? BY_SIGN32(mad24_hi) : BY_SIGN32(mad24);
  case PTX_OP_div:
    return BY_TYPE(div);
  case PTX_OP_rem:
    return BY_TYPE(rem);
  case PTX_OP_abs:
    return is_signed ? BY_SIGNED_WIDTH(abs) : NULL;
  case PTX_OP_neg:
    return is_signed ? BY_WIDTH(neg) : NULL;
  case PTX_OP_min:
    return BY_TYPE(min);
  case PTX_OP_max:
    return BY_TYPE(max);
  case PTX_OP_sad:
    return BY_TYPE(sad);
  default:
    return NULL;
  }
}
