/* cvt: between all integer and float types, in every rounding mode. Called by ptx_select.c. Common
   conversions have loops of their own; the others go through 64-bit integers or, exactly, through
   double. */
#include "ptx_exec.h"

/* The value of a source cell, as the 64 bits of an integer extended by its type. */
INLINE uint64_t extended(uint64_t value, uint8_t type) {
  switch (type) {
  case PTX_s8:
    return (uint64_t)(int64_t)(int8_t)value;
  case PTX_s16:
    return (uint64_t)(int64_t)(int16_t)value;
  case PTX_s32:
    return (uint64_t)(int64_t)(int32_t)value;
  default:
    switch (ptx_type_bytes[type]) {
    case 1:
      return value & 0xff;
    case 2:
      return value & 0xffff;
    case 4:
      return value & 0xffffffffu;
    default:
      return value;
    }
  }
}

static void read_cells(const uint8_t *cells, uint32_t bytes, uint64_t *out, uint32_t first,
                       uint32_t end) {
  if (bytes == 2)
    LANES out[l] = ((const uint16_t *)(const void *)cells)[l];
  else if (bytes == 4)
    LANES out[l] = ((const uint32_t *)(const void *)cells)[l];
  else
    LANES out[l] = ((const uint64_t *)(const void *)cells)[l];
}
static void write_cells(uint8_t *cells, uint32_t bytes, const uint64_t *in, uint32_t first,
                        uint32_t end) {
  if (bytes == 2)
    LANES((uint16_t *)(void *)cells)[l] = (uint16_t)in[l];
  else if (bytes == 4)
    LANES((uint32_t *)(void *)cells)[l] = (uint32_t)in[l];
  else
    LANES((uint64_t *)(void *)cells)[l] = in[l];
}

INLINE double float_value(uint64_t bits, uint8_t type, bool ftz) {
  switch (type) {
  case PTX_f64:
    return f64_of(bits);
  case PTX_f32:
    return f32_in((uint32_t)bits, ftz);
  case PTX_f16:
    return f32_of_half((uint16_t)bits);
  default:
    return f32_of_bfloat((uint16_t)bits);
  }
}

INLINE double to_whole(double x, uint8_t mode) {
  switch (mode) {
  case PTX_RZ:
    return __builtin_trunc(x);
  case PTX_RM:
    return __builtin_floor(x);
  case PTX_RP:
    return __builtin_ceil(x);
  default:
    return __builtin_rint(x); /* the mode is to nearest outside round_to */
  }
}

/* Out of range: the nearest value. NaN: zero, or, from f64 or to 64 bits, the highest bit alone. */
INLINE uint64_t to_integer(double x, uint8_t to, uint8_t from) {
  uint32_t bits = ptx_type_bytes[to] * 8u;
  if (x != x)
    return from == PTX_f64 || bits == 64 ? extended(UINT64_C(1) << (bits - 1), to) : 0;
  if (ptx_type_class[to] == PTX_SIGNED) {
    double limit = (double)(UINT64_C(1) << (bits - 1));
    if (x >= limit)
      return (UINT64_C(1) << (bits - 1)) - 1;
    return x < -limit ? extended(UINT64_C(1) << (bits - 1), to) : (uint64_t)(int64_t)x;
  }
  double limit = 2 * (double)(UINT64_C(1) << (bits - 1));
  if (x >= limit)
    return UINT64_MAX >> (64 - bits);
  return x <= 0 ? 0 : (uint64_t)x;
}

static void float_to_integer(ARGS) {
  uint64_t cells[PTX_LANES];
  const bool ftz = i->flags & PTX_M_FTZ;
  read_cells(t->registers + i->operand[1], i->address_bytes, cells, first, end);
  for (uint32_t l = first; l < end; l++)
    cells[l] =
        to_integer(to_whole(float_value(cells[l], i->type2, ftz), i->rounding), i->type, i->type2);
  write_cells(t->registers + i->operand[0], i->bytes, cells, first, end);
}

INLINE uint64_t float_bits(double x, const struct ptx_instruction *i) {
  if (i->flags & PTX_M_SAT)
    x = x > 0 ? (x < 1 ? x : 1) : 0;
  switch (i->type) {
  case PTX_f64:
    return bits_of_f64(x);
  case PTX_f32:
    return f32_out((float)x, i->flags & PTX_M_FTZ, false);
  case PTX_f16:
    return narrow(x, 10, i->rounding);
  default:
    return narrow(x, 7, i->rounding);
  }
}

static void float_to_float(ARGS) {
  uint64_t cells[PTX_LANES];
  const bool ftz = i->flags & PTX_M_FTZ, whole = i->flags & PTX_M_TO_INTEGER;
  read_cells(t->registers + i->operand[1], i->address_bytes, cells, first, end);
  if (!whole)
    round_to(i->rounding);
  for (uint32_t l = first; l < end; l++) {
    double x = float_value(cells[l], i->type2, ftz);
    cells[l] = float_bits(whole ? to_whole(x, i->rounding) : x, i);
  }
  fesetround(FE_TONEAREST);
  write_cells(t->registers + i->operand[0], i->bytes, cells, first, end);
}

/* Integers of up to 64 bits to 16-bit floats go through an odd-rounded double, lest they be
   rounded twice. */
INLINE double to_odd(uint64_t magnitude, bool negative) {
  if (magnitude >> 53) {
    uint32_t shift = 11 - (uint32_t)__builtin_clzll(magnitude);
    uint64_t lost = magnitude & ((UINT64_C(1) << shift) - 1);
    magnitude = ((magnitude >> shift) | (lost != 0)) << shift;
  }
  double x = (double)magnitude;
  return negative ? -x : x;
}

static void integer_to_float(ARGS) {
  uint64_t cells[PTX_LANES];
  const bool is_signed = ptx_type_class[i->type2] == PTX_SIGNED;
  read_cells(t->registers + i->operand[1], i->address_bytes, cells, first, end);
  round_to(i->rounding);
  for (uint32_t l = first; l < end; l++) {
    uint64_t value = extended(cells[l], i->type2);
    bool negative = is_signed && value >> 63;
    if (i->type == PTX_f64)
      cells[l] = bits_of_f64(negative ? (double)(int64_t)value : (double)value);
    else if (i->type == PTX_f32)
      cells[l] = bits_of_f32(negative ? (float)(int64_t)value : (float)value);
    else
      cells[l] = narrow(to_odd(negative ? 0 - value : value, negative), i->type == PTX_f16 ? 10 : 7,
                        i->rounding);
    if (i->flags & PTX_M_SAT)
      cells[l] = float_bits(float_value(cells[l], i->type, false), i);
  }
  fesetround(FE_TONEAREST);
  write_cells(t->registers + i->operand[0], i->bytes, cells, first, end);
}

INLINE uint64_t saturated(uint64_t value, bool from_signed, uint8_t to) {
  uint32_t bits = ptx_type_bytes[to] * 8u;
  bool negative = from_signed && value >> 63;
  if (ptx_type_class[to] != PTX_SIGNED)
    return negative ? 0 : value > UINT64_MAX >> (64 - bits) ? UINT64_MAX >> (64 - bits) : value;
  uint64_t most = UINT64_MAX >> (65 - bits);
  if (negative)
    return (int64_t)value < -(int64_t)most - 1 ? ~most : value;
  return value > most ? most : value;
}

static void integer_to_integer(ARGS) {
  uint64_t cells[PTX_LANES];
  const uint8_t to = i->type, from = i->type2;
  read_cells(t->registers + i->operand[1], i->address_bytes, cells, first, end);
  LANES cells[l] = extended(cells[l], from);
  if (i->flags & PTX_M_SAT)
    for (uint32_t l = first; l < end; l++)
      cells[l] = saturated(cells[l], ptx_type_class[from] == PTX_SIGNED, to);
  LANES cells[l] = extended(cells[l], to);
  write_cells(t->registers + i->operand[0], i->bytes, cells, first, end);
}

/* cvt d, a, b: two f32 to a packed pair, a in the upper half. */
static void pair(ARGS) {
  const uint32_t mantissa = i->type == PTX_f16x2 ? 10 : 7;
  for (uint32_t l = first; l < end; l++) {
    uint32_t high = narrow(f32_of(CELLS(uint32_t, 1)[l]), mantissa, i->rounding);
    uint32_t low = narrow(f32_of(CELLS(uint32_t, 2)[l]), mantissa, i->rounding);
    CELLS(uint32_t, 0)[l] = high << 16 | low;
  }
}

/* ---- loops of their own for what programs do most, registers as wide as the types ---- */
#define DIRECT(name, D, S, EXPRESSION)                                                             \
  static void name(ARGS) {                                                                         \
    D *d = CELLS(D, 0);                                                                            \
    const S *a = CELLS(S, 1);                                                                      \
    LANES d[l] = EXPRESSION;                                                                       \
  }
DIRECT(f64_f32, uint64_t, uint32_t, bits_of_f64((double)f32_of(a[l])))
DIRECT(f32_f64, uint32_t, uint64_t, f32_out((float)f64_of(a[l]), false, false))
DIRECT(f32_s32, uint32_t, int32_t, bits_of_f32((float)a[l]))
DIRECT(f32_f16, uint32_t, uint16_t, f32_out(f32_of_half(a[l]), false, false))
DIRECT(f32_bf16, uint32_t, uint16_t, f32_out(f32_of_bfloat(a[l]), false, false))
DIRECT(s64_s32, int64_t, int32_t, a[l])
DIRECT(u64_u32, uint64_t, uint32_t, a[l])
DIRECT(u32_u64, uint32_t, uint64_t, (uint32_t)a[l])
INLINE uint16_t bfloat_nearest(uint32_t bits) {
  uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
  return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fff : (uint16_t)(rounded >> 16);
}
DIRECT(bf16_f32, uint16_t, uint32_t, bfloat_nearest(a[l]))

static ptx_handler direct(const struct ptx_instruction *i) {
  uint32_t to = i->type, from = i->type2;
  if (i->bytes != ptx_type_bytes[to] || i->address_bytes != ptx_type_bytes[from] ||
      i->rounding > PTX_RN || i->flags & (PTX_M_FTZ | PTX_M_SAT | PTX_M_TO_INTEGER))
    return NULL;
  if (to == PTX_f64 && from == PTX_f32)
    return f64_f32;
  if (to == PTX_f32)
    return from == PTX_f64    ? f32_f64
           : from == PTX_s32  ? f32_s32
           : from == PTX_f16  ? f32_f16
           : from == PTX_bf16 ? f32_bf16
                              : NULL;
  if (to == PTX_bf16 && from == PTX_f32)
    return bf16_f32;
  if (ptx_type_bytes[to] == 8 && ptx_type_class[to] != PTX_FLOAT)
    return from == PTX_s32 ? s64_s32 : from == PTX_u32 || from == PTX_b32 ? u64_u32 : NULL;
  if (ptx_type_bytes[to] == 4 && ptx_type_class[to] != PTX_FLOAT && ptx_type_bytes[from] == 8 &&
      ptx_type_class[from] != PTX_FLOAT)
    return u32_u64;
  return NULL;
}

ptx_handler PTX_NAME(ptx_select_convert)(const struct ptx_instruction *i) {
  bool to_float = ptx_type_class[i->type] == PTX_FLOAT;
  bool from_float = ptx_type_class[i->type2] == PTX_FLOAT;
  bool ftz_fits = i->type == PTX_f32 || i->type2 == PTX_f32;
  if ((i->flags & PTX_M_FTZ && !ftz_fits) || i->type2 == PTX_f16x2 || i->type2 == PTX_bf16x2 ||
      i->bytes < 2 || i->address_bytes < 2)
    return NULL;
  if (i->type == PTX_f16x2 || i->type == PTX_bf16x2)
    return i->operands == 3 && !(i->flags & (PTX_M_FTZ | PTX_M_SAT)) ? pair : NULL;
  ptx_handler handler = direct(i);
  if (handler)
    return handler;
  if (from_float && !to_float)
    return i->rounding ? float_to_integer : NULL;
  if (from_float)
    return float_to_float;
  return to_float ? integer_to_float : integer_to_integer;
}
