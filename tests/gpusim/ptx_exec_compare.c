/* setp, set, selp, slct: comparisons of all types, and choices. Called by ptx_select.c. */
#include "ptx_exec.h"

#define COMPARE_INTEGERS(T)                                                                        \
  do {                                                                                             \
    const T *a = CELLS(T, 1), *b = CELLS(T, 2);                                                    \
    switch (i->compare) {                                                                          \
    case PTX_EQ:                                                                                   \
      LANES r[l] = a[l] == b[l];                                                                   \
      break;                                                                                       \
    case PTX_NE:                                                                                   \
      LANES r[l] = a[l] != b[l];                                                                   \
      break;                                                                                       \
    case PTX_LT:                                                                                   \
      LANES r[l] = a[l] < b[l];                                                                    \
      break;                                                                                       \
    case PTX_LE:                                                                                   \
      LANES r[l] = a[l] <= b[l];                                                                   \
      break;                                                                                       \
    case PTX_GT:                                                                                   \
      LANES r[l] = a[l] > b[l];                                                                    \
      break;                                                                                       \
    default:                                                                                       \
      LANES r[l] = a[l] >= b[l];                                                                   \
      break;                                                                                       \
    }                                                                                              \
  } while (0)

/* X and Y: the two values in lane l. The u-forms are true when either is NaN, the others false. */
#define COMPARE_FLOATS(X, Y)                                                                       \
  switch (i->compare) {                                                                            \
  case PTX_EQ:                                                                                     \
    LANES r[l] = X == Y;                                                                           \
    break;                                                                                         \
  case PTX_NE:                                                                                     \
    LANES r[l] = X == X && Y == Y && X != Y;                                                       \
    break;                                                                                         \
  case PTX_LT:                                                                                     \
    LANES r[l] = X < Y;                                                                            \
    break;                                                                                         \
  case PTX_LE:                                                                                     \
    LANES r[l] = X <= Y;                                                                           \
    break;                                                                                         \
  case PTX_GT:                                                                                     \
    LANES r[l] = X > Y;                                                                            \
    break;                                                                                         \
  case PTX_GE:                                                                                     \
    LANES r[l] = X >= Y;                                                                           \
    break;                                                                                         \
  case PTX_EQU:                                                                                    \
    LANES r[l] = X == Y || X != X || Y != Y;                                                       \
    break;                                                                                         \
  case PTX_NEU:                                                                                    \
    LANES r[l] = X != Y;                                                                           \
    break;                                                                                         \
  case PTX_LTU:                                                                                    \
    LANES r[l] = (uint8_t) !(X >= Y);                                                              \
    break;                                                                                         \
  case PTX_LEU:                                                                                    \
    LANES r[l] = (uint8_t) !(X > Y);                                                               \
    break;                                                                                         \
  case PTX_GTU:                                                                                    \
    LANES r[l] = (uint8_t) !(X <= Y);                                                              \
    break;                                                                                         \
  case PTX_GEU:                                                                                    \
    LANES r[l] = (uint8_t) !(X < Y);                                                               \
    break;                                                                                         \
  case PTX_NUM:                                                                                    \
    LANES r[l] = X == X && Y == Y;                                                                 \
    break;                                                                                         \
  default:                                                                                         \
    LANES r[l] = X != X || Y != Y;                                                                 \
    break;                                                                                         \
  }

static void compare(ARGS, uint8_t type, uint8_t *r) {
  const bool ftz = i->flags & PTX_M_FTZ;
  const bool is_signed = ptx_type_class[type] == PTX_SIGNED;
  const uint16_t *a2 = CELLS(uint16_t, 1), *b2 = CELLS(uint16_t, 2);
  const uint32_t *a4 = CELLS(uint32_t, 1), *b4 = CELLS(uint32_t, 2);
  const uint64_t *a8 = CELLS(uint64_t, 1), *b8 = CELLS(uint64_t, 2);
  switch (type) {
  case PTX_f16:
    COMPARE_FLOATS(f32_of_half(a2[l]), f32_of_half(b2[l]))
    return;
  case PTX_bf16:
    COMPARE_FLOATS(f32_of_bfloat(a2[l]), f32_of_bfloat(b2[l]))
    return;
  case PTX_f32:
    if (ftz)
      COMPARE_FLOATS(f32_in(a4[l], true), f32_in(b4[l], true))
    else
      COMPARE_FLOATS(f32_of(a4[l]), f32_of(b4[l]))
    return;
  case PTX_f64:
    COMPARE_FLOATS(f64_of(a8[l]), f64_of(b8[l]))
    return;
  default:
    break;
  }
  switch (ptx_type_bytes[type]) {
  case 2:
    if (is_signed)
      COMPARE_INTEGERS(int16_t);
    else
      COMPARE_INTEGERS(uint16_t);
    return;
  case 4:
    if (is_signed)
      COMPARE_INTEGERS(int32_t);
    else
      COMPARE_INTEGERS(uint32_t);
    return;
  default:
    if (is_signed)
      COMPARE_INTEGERS(int64_t);
    else
      COMPARE_INTEGERS(uint64_t);
  }
}

/* `with` is flipped where !c is written: `flip` is 1 then. */
INLINE uint8_t combined(uint8_t result, uint8_t c, uint8_t flip, uint8_t how) {
  uint8_t with = c ^ flip;
  if (how == PTX_AND)
    return result & with;
  return how == PTX_OR ? result | with : result ^ with;
}

static void setp_plain(ARGS) {
  compare(PASS, i->type, CELLS(uint8_t, 0));
}
static void setp(ARGS) {
  uint8_t r[PTX_LANES], q[PTX_LANES];
  compare(PASS, i->type, r);
  LANES q[l] = r[l] ^ 1;
  if (i->combine) {
    const uint8_t *c = CELLS(uint8_t, 3), flip = i->flags & PTX_M_NEGATE ? 1 : 0;
    for (uint32_t l = first; l < end; l++) {
      r[l] = combined(r[l], c[l], flip, i->combine);
      q[l] = combined(q[l], c[l], flip, i->combine);
    }
  }
  if (i->operand[0] != PTX_NONE)
    memcpy(CELLS(uint8_t, 0) + first, r + first, end - first);
  if (i->operand[5] != PTX_NONE)
    memcpy(CELLS(uint8_t, 5) + first, q + first, end - first);
}

static void set(ARGS) {
  uint8_t r[PTX_LANES];
  uint32_t *d = CELLS(uint32_t, 0);
  const uint32_t yes = i->type == PTX_f32 ? 0x3f800000u : UINT32_MAX;
  compare(PASS, i->type2 ? i->type2 : i->type, r);
  if (i->combine) {
    const uint8_t *c = CELLS(uint8_t, 3), flip = i->flags & PTX_M_NEGATE ? 1 : 0;
    for (uint32_t l = first; l < end; l++)
      r[l] = combined(r[l], c[l], flip, i->combine);
  }
  LANES d[l] = r[l] ? yes : 0;
}

#define CHOICE(suffix, T)                                                                          \
  static void selp_##suffix(ARGS) {                                                                \
    T *d = CELLS(T, 0);                                                                            \
    const T *a = CELLS(T, 1), *b = CELLS(T, 2);                                                    \
    const uint8_t *p = CELLS(uint8_t, 3);                                                          \
    LANES d[l] = p[l] ? a[l] : b[l];                                                               \
  }                                                                                                \
  static void slct_##suffix(ARGS) { /* a if c >= 0, else b, which a NaN gets too */                \
    T *d = CELLS(T, 0);                                                                            \
    const T *a = CELLS(T, 1), *b = CELLS(T, 2);                                                    \
    const uint32_t *c = CELLS(uint32_t, 3);                                                        \
    const bool ftz = i->flags & PTX_M_FTZ;                                                         \
    if (i->type2 == PTX_f32)                                                                       \
      LANES d[l] = f32_in(c[l], ftz) >= 0 ? a[l] : b[l];                                           \
    else                                                                                           \
      LANES d[l] = (int32_t)c[l] >= 0 ? a[l] : b[l];                                               \
  }
CHOICE(2, uint16_t)
CHOICE(4, uint32_t)
CHOICE(8, uint64_t)

static bool comparable(const struct ptx_instruction *i, uint8_t type) {
  bool is_float = ptx_type_class[type] == PTX_FLOAT;
  if (ptx_type_bytes[type] < 2 || type == PTX_f16x2 || type == PTX_bf16x2 || !i->compare)
    return false;
  if (i->combine == PTX_POPC || (i->flags & PTX_M_FTZ && type != PTX_f32))
    return false;
  return is_float || i->compare <= PTX_GE;
}

#define BY_WIDTH(name)                                                                             \
  (bytes == 2 ? name##_2 : bytes == 4 ? name##_4 : bytes == 8 ? name##_8 : NULL)

ptx_handler PTX_NAME(ptx_select_compare)(const struct ptx_instruction *i) {
  uint32_t bytes = ptx_type_bytes[i->type];
  switch (i->opcode) {
  case PTX_OP_setp:
    if (!comparable(i, i->type))
      return NULL;
    return i->combine || i->operand[5] != PTX_NONE || i->operand[0] == PTX_NONE ? setp : setp_plain;
  case PTX_OP_set:
    return comparable(i, i->type2 ? i->type2 : i->type) && bytes == 4 &&
                   (i->operands == 4) == (i->combine != 0)
               ? set
               : NULL;
  case PTX_OP_selp:
    return BY_WIDTH(selp);
  case PTX_OP_slct:
    return i->type2 == PTX_s32 || i->type2 == PTX_f32 ? BY_WIDTH(slct) : NULL;
  default:
    return NULL;
  }
}
