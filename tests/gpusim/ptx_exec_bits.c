/* Logic, shifts, bit fields, moves and packing. Called by ptx_select.c. */
#include "ptx_exec.h"

#define DEFINE(name, T, EXPRESSION)                                                                \
  static void name(ARGS) {                                                                         \
    const uint32_t bits = sizeof(T) * 8;                                                           \
    T *d = CELLS(T, 0);                                                                            \
    const T *a = CELLS(T, 1), *b = i->operands > 2 ? CELLS(T, 2) : a;                              \
    LANES {                                                                                        \
      const T x = a[l], y = b[l];                                                                  \
      (void)bits, (void)y;                                                                         \
      d[l] = (T)(EXPRESSION);                                                                      \
    }                                                                                              \
  }
#define WIDTHS(name, EXPRESSION)                                                                   \
  DEFINE(name##_2, uint16_t, EXPRESSION)                                                           \
  DEFINE(name##_4, uint32_t, EXPRESSION)                                                           \
  DEFINE(name##_8, uint64_t, EXPRESSION)
WIDTHS(and, x &y)
WIDTHS(or, x | y)
WIDTHS(xor, x ^ y)
WIDTHS(not, ~x)
WIDTHS(cnot, !x)
DEFINE(and_1, uint8_t, x &y)
DEFINE(or_1, uint8_t, x | y)
DEFINE(xor_1, uint8_t, x ^ y)
DEFINE(not_1, uint8_t, x ^ 1)

/* The amount of a shift is 32 bits wide, whatever the type; too large an amount shifts
   everything out. */
#define SHIFT(name, T, EXPRESSION)                                                                 \
  static void name(ARGS) {                                                                         \
    const uint32_t bits = sizeof(T) * 8;                                                           \
    T *d = CELLS(T, 0);                                                                            \
    const T *a = CELLS(T, 1);                                                                      \
    const uint32_t *b = CELLS(uint32_t, 2);                                                        \
    LANES {                                                                                        \
      const T x = a[l];                                                                            \
      const uint32_t n = b[l];                                                                     \
      d[l] = (T)(EXPRESSION);                                                                      \
    }                                                                                              \
  }
SHIFT(shl_2, uint16_t, n < bits ? (uint32_t)x << n : 0)
SHIFT(shl_4, uint32_t, n < bits ? x << (n & 31) : 0)
SHIFT(shl_8, uint64_t, n < bits ? x << (n & 63) : 0)
SHIFT(shr_2, uint16_t, n < bits ? x >> n : 0)
SHIFT(shr_4, uint32_t, n < bits ? x >> (n & 31) : 0)
SHIFT(shr_8, uint64_t, n < bits ? x >> (n & 63) : 0)
SHIFT(sar_2, int16_t, x >> (n < bits ? n : bits - 1))
SHIFT(sar_4, int32_t, x >> (n < bits ? n : bits - 1))
SHIFT(sar_8, int64_t, x >> (n < bits ? n : bits - 1))

/* Funnel shift of the pair b:a. */
static void shf_4(ARGS) {
  uint32_t *d = CELLS(uint32_t, 0);
  const uint32_t *a = CELLS(uint32_t, 1), *b = CELLS(uint32_t, 2), *c = CELLS(uint32_t, 3);
  const bool wrap = i->flags & PTX_M_WRAP, left = i->flags & PTX_M_LEFT;
  LANES {
    uint32_t n = wrap ? c[l] & 31 : c[l] > 32 ? 32 : c[l];
    uint64_t pair = (uint64_t)b[l] << 32 | a[l];
    d[l] = (uint32_t)(left ? pair << n >> 32 : pair >> n);
  }
}
/* n = 32 to the left gives a: pair << 32 >> 32 in 64 bits. */

#define TO_COUNT(name, T, EXPRESSION)                                                              \
  static void name(ARGS) {                                                                         \
    uint32_t *d = CELLS(uint32_t, 0);                                                              \
    const T *a = CELLS(T, 1);                                                                      \
    for (uint32_t l = first; l < end; l++) {                                                       \
      const T x = a[l];                                                                            \
      d[l] = (uint32_t)(EXPRESSION);                                                               \
    }                                                                                              \
  }
TO_COUNT(popc_4, uint32_t, __builtin_popcount(x))
TO_COUNT(popc_8, uint64_t, __builtin_popcountll(x))
TO_COUNT(clz_4, uint32_t, x ? __builtin_clz(x) : 32)
TO_COUNT(clz_8, uint64_t, x ? __builtin_clzll(x) : 64)

/* The highest bit that differs from the sign (signed) or is set (unsigned), 0xffffffff if none. */
static void bfind(ARGS) {
  uint32_t *d = CELLS(uint32_t, 0);
  const uint32_t bytes = ptx_type_bytes[i->type], bits = bytes * 8;
  const bool is_signed = ptx_type_class[i->type] == PTX_SIGNED;
  const uint64_t mask = bytes == 8 ? UINT64_MAX : UINT32_MAX;
  for (uint32_t l = first; l < end; l++) {
    uint64_t x = bytes == 8 ? CELLS(uint64_t, 1)[l] : CELLS(uint32_t, 1)[l];
    if (is_signed && x >> (bits - 1) & 1)
      x = ~x & mask;
    uint32_t place = x ? 63 - (uint32_t)__builtin_clzll(x) : 0;
    d[l] = !x ? UINT32_MAX : i->flags & PTX_M_SHIFTAMT ? bits - 1 - place : place;
  }
}

static uint64_t reversed(uint64_t x) {
  x = (x & 0x5555555555555555u) << 1 | (x >> 1 & 0x5555555555555555u);
  x = (x & 0x3333333333333333u) << 2 | (x >> 2 & 0x3333333333333333u);
  x = (x & 0x0f0f0f0f0f0f0f0fu) << 4 | (x >> 4 & 0x0f0f0f0f0f0f0f0fu);
  return __builtin_bswap64(x);
}
static void brev_4(ARGS) {
  for (uint32_t l = first; l < end; l++)
    CELLS(uint32_t, 0)[l] = (uint32_t)(reversed(CELLS(uint32_t, 1)[l]) >> 32);
}
static void brev_8(ARGS) {
  for (uint32_t l = first; l < end; l++)
    CELLS(uint64_t, 0)[l] = reversed(CELLS(uint64_t, 1)[l]);
}

INLINE uint64_t low_bits(uint32_t count) {
  return count >= 64 ? UINT64_MAX : (UINT64_C(1) << count) - 1;
}
/* `length` bits from `place` on; above the field zeros, or copies of its highest bit (of the
   word's, if it reaches beyond) for signed types. */
INLINE uint64_t field(uint64_t x, uint32_t place, uint32_t length, uint32_t bits, bool is_signed) {
  place &= 255;
  length &= 255;
  if (!length)
    return 0;
  uint32_t top = place + length - 1 < bits - 1 ? place + length - 1 : bits - 1;
  uint64_t sign = is_signed && x >> top & 1 ? UINT64_MAX : 0;
  uint64_t inside = place < bits ? x >> place : 0;
  uint32_t valid = place >= bits ? 0 : length < bits - place ? length : bits - place;
  return (inside & low_bits(valid)) | (sign & ~low_bits(valid));
}
#define FIELDS(suffix, T)                                                                          \
  static void bfe_##suffix(ARGS) {                                                                 \
    T *d = CELLS(T, 0);                                                                            \
    const T *a = CELLS(T, 1);                                                                      \
    const uint32_t *place = CELLS(uint32_t, 2), *length = CELLS(uint32_t, 3);                      \
    const bool is_signed = ptx_type_class[i->type] == PTX_SIGNED;                                  \
    for (uint32_t l = first; l < end; l++)                                                         \
      d[l] = (T)field(a[l], place[l], length[l], sizeof(T) * 8, is_signed);                        \
  }                                                                                                \
  static void bfi_##suffix(ARGS) {                                                                 \
    T *d = CELLS(T, 0);                                                                            \
    const T *a = CELLS(T, 1), *b = CELLS(T, 2);                                                    \
    const uint32_t *place = CELLS(uint32_t, 3), *length = CELLS(uint32_t, 4);                      \
    for (uint32_t l = first; l < end; l++) {                                                       \
      uint32_t p = place[l] & 255;                                                                 \
      uint64_t mask = p < sizeof(T) * 8 ? low_bits(length[l] & 255) << p : 0;                      \
      d[l] = (T)((b[l] & ~mask) | (p < 64 ? (uint64_t)a[l] << p & mask : 0));                      \
    }                                                                                              \
  }
FIELDS(4, uint32_t)
FIELDS(8, uint64_t)

static void bmsk(ARGS) {
  for (uint32_t l = first; l < end; l++) {
    uint32_t place = CELLS(uint32_t, 1)[l], count = CELLS(uint32_t, 2)[l];
    if (i->flags & PTX_M_WRAP) {
      place &= 31;
      count &= 31;
    } else {
      place = place > 32 ? 32 : place;
      count = count > 32 ? 32 : count;
    }
    CELLS(uint32_t, 0)[l] = (uint32_t)(low_bits(count) << place);
  }
}

/* Each nibble of c picks a byte of b:a; its high bit copies that byte's sign instead. */
static void prmt(ARGS) {
  for (uint32_t l = first; l < end; l++) {
    uint64_t pair = (uint64_t)CELLS(uint32_t, 2)[l] << 32 | CELLS(uint32_t, 1)[l];
    uint32_t picks = CELLS(uint32_t, 3)[l], result = 0;
    for (uint32_t k = 0; k < 4; k++) {
      uint32_t pick = picks >> 4 * k & 15;
      uint32_t byte = (uint32_t)(pair >> 8 * (pick & 7) & 255);
      if (pick & 8)
        byte = byte & 128 ? 255 : 0;
      result |= byte << 8 * k;
    }
    CELLS(uint32_t, 0)[l] = result;
  }
}

static void lop3(ARGS) {
  uint32_t *d = CELLS(uint32_t, 0);
  const uint32_t *a = CELLS(uint32_t, 1), *b = CELLS(uint32_t, 2), *c = CELLS(uint32_t, 3);
  const uint32_t table = *CELLS(uint32_t, 4); /* an immediate: the same in all lanes */
  uint32_t use[8];
  for (uint32_t k = 0; k < 8; k++)
    use[k] = table >> k & 1 ? UINT32_MAX : 0;
  LANES {
    uint32_t x = a[l], y = b[l], z = c[l];
    d[l] = (~x & ~y & ~z & use[0]) | (~x & ~y & z & use[1]) | (~x & y & ~z & use[2]) |
           (~x & y & z & use[3]) | (x & ~y & ~z & use[4]) | (x & ~y & z & use[5]) |
           (x & y & ~z & use[6]) | (x & y & z & use[7]);
  }
}

static void dp4a(ARGS) {
  const bool signed_a = ptx_type_class[i->type] == PTX_SIGNED;
  const bool signed_b = ptx_type_class[i->type2] == PTX_SIGNED;
  for (uint32_t l = first; l < end; l++) {
    uint32_t a = CELLS(uint32_t, 1)[l], b = CELLS(uint32_t, 2)[l], sum = CELLS(uint32_t, 3)[l];
    for (uint32_t k = 0; k < 32; k += 8) {
      int32_t x = signed_a ? (int8_t)(a >> k) : (uint8_t)(a >> k);
      int32_t y = signed_b ? (int8_t)(b >> k) : (uint8_t)(b >> k);
      sum += (uint32_t)(x * y);
    }
    CELLS(uint32_t, 0)[l] = sum;
  }
}

static void vshift(ARGS) {
  for (uint32_t l = first; l < end; l++) {
    uint32_t a = CELLS(uint32_t, 1)[l], n = CELLS(uint32_t, 2)[l];
    n = i->flags & PTX_M_WRAP ? n & 31 : n > 32 ? 32 : n;
    uint32_t shifted = n == 32 ? 0 : i->opcode == PTX_OP_vshr ? a >> n : a << n;
    CELLS(uint32_t, 0)[l] = shifted + (i->operands > 3 ? CELLS(uint32_t, 3)[l] : 0);
  }
}

/* ---- moves ---- */

static void mov(ARGS) {
  size_t bytes = i->bytes;
  memmove(t->registers + i->operand[0] + first * bytes,
          t->registers + i->operand[1] + first * bytes, (end - first) * bytes);
}

/* {a, b} = c and c = {a, b}: parts of equal size, the first lowest. */
static void unpack(ARGS) {
  uint32_t part = i->address_bytes, whole = i->bytes;
  for (uint32_t l = first; l < end; l++) {
    uint64_t value = 0;
    memcpy(&value, t->registers + i->operand[5] + (size_t)l * whole, whole);
    for (uint32_t k = 0; k < i->vector; k++, value >>= part * 8)
      if (i->operand[k] != PTX_NONE)
        memcpy(t->registers + i->operand[k] + (size_t)l * part, &value, part);
  }
}
static void pack(ARGS) {
  uint32_t part = i->address_bytes, whole = i->bytes;
  for (uint32_t l = first; l < end; l++) {
    uint64_t value = 0;
    for (uint32_t k = 0; k < i->vector; k++) {
      uint64_t one = 0;
      memcpy(&one, t->registers + i->operand[k] + (size_t)l * part, part);
      value |= one << part * 8 * k;
    }
    memcpy(t->registers + i->operand[5] + (size_t)l * whole, &value, whole);
  }
}

#define BY_WIDTH(name)                                                                             \
  (bytes == 2 ? name##_2 : bytes == 4 ? name##_4 : bytes == 8 ? name##_8 : NULL)
#define BY_WIDTH_OR_PREDICATE(name) (i->type == PTX_pred ? name##_1 : BY_WIDTH(name))
#define BY_WIDE(name) (bytes == 4 ? name##_4 : bytes == 8 ? name##_8 : NULL)

ptx_handler PTX_NAME(ptx_select_bits)(const struct ptx_instruction *i) {
  uint32_t bytes = ptx_type_bytes[i->type];
  switch (i->opcode) {
  case PTX_OP_and:
    return BY_WIDTH_OR_PREDICATE(and);
  case PTX_OP_or:
    return BY_WIDTH_OR_PREDICATE(or);
  case PTX_OP_xor:
    return BY_WIDTH_OR_PREDICATE(xor);
  case PTX_OP_not:
    return BY_WIDTH_OR_PREDICATE(not );
  case PTX_OP_cnot:
    return BY_WIDTH(cnot);
  case PTX_OP_shl:
    return BY_WIDTH(shl);
  case PTX_OP_shr:
    return ptx_type_class[i->type] == PTX_SIGNED ? BY_WIDTH(sar) : BY_WIDTH(shr);
  case PTX_OP_shf:
    return bytes == 4 && !(i->flags & PTX_M_LEFT) != !(i->flags & PTX_M_RIGHT) ? shf_4 : NULL;
  case PTX_OP_popc:
    return BY_WIDE(popc);
  case PTX_OP_clz:
    return BY_WIDE(clz);
  case PTX_OP_brev:
    return BY_WIDE(brev);
  case PTX_OP_bfind:
    return bytes >= 4 ? bfind : NULL;
  case PTX_OP_bfe:
    return BY_WIDE(bfe);
  case PTX_OP_bfi:
    return BY_WIDE(bfi);
  case PTX_OP_bmsk:
    return bytes == 4 ? bmsk : NULL;
  case PTX_OP_prmt:
    return bytes == 4 ? prmt : NULL;
  case PTX_OP_lop3:
    return bytes == 4 ? lop3 : NULL;
  case PTX_OP_dp4a:
    return bytes == 4 && i->type2 ? dp4a : NULL;
  case PTX_OP_vshl:
  case PTX_OP_vshr:
    return i->type == PTX_u32 && i->type2 == PTX_u32 && (i->operands == 4) == (i->action == PTX_ADD)
               ? vshift
               : NULL;
  case PTX_OP_mov:
    return i->action == 1 ? pack : i->action == 2 ? unpack : mov;
  default:
    return NULL;
  }
}
