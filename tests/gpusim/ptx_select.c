/* Chooses the handler of an instruction: by opcode and type the room, by this CPU's features the
   build of it. */
#include "ptx.h"

typedef ptx_handler (*selector)(const struct ptx_instruction *);
struct rooms {
  selector integer, bits, floats, half, convert, compare, access;
};
#define ROOMS(variant)                                                                             \
  extern ptx_handler ptx_select_integer_##variant(const struct ptx_instruction *);                 \
  extern ptx_handler ptx_select_bits_##variant(const struct ptx_instruction *);                    \
  extern ptx_handler ptx_select_float_##variant(const struct ptx_instruction *);                   \
  extern ptx_handler ptx_select_half_##variant(const struct ptx_instruction *);                    \
  extern ptx_handler ptx_select_convert_##variant(const struct ptx_instruction *);                 \
  extern ptx_handler ptx_select_compare_##variant(const struct ptx_instruction *);                 \
  extern ptx_handler ptx_select_access_##variant(const struct ptx_instruction *);                  \
  static const struct rooms rooms_##variant = {                                                    \
      ptx_select_integer_##variant, ptx_select_bits_##variant,    ptx_select_float_##variant,      \
      ptx_select_half_##variant,    ptx_select_convert_##variant, ptx_select_compare_##variant,    \
      ptx_select_access_##variant};
ROOMS(base)
#ifdef __x86_64__
ROOMS(avx2)
#endif

static bool plain; /* set by tests only, before they load an image */

void ptx_select_plain(bool on) {
  plain = on;
}

bool ptx_cpu_has_v3(void) {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
#else
  return false;
#endif
}

static const struct rooms *best(void) {
#ifdef __x86_64__
  if (!plain && ptx_cpu_has_v3())
    return &rooms_avx2;
#endif
  return &rooms_base;
}

ptx_handler ptx_select(const struct ptx_instruction *i) {
  const struct rooms *rooms = best();
  if (i->flags & PTX_M_NEGATE && i->opcode != PTX_OP_setp && i->opcode != PTX_OP_set)
    return NULL;
  switch (i->opcode) {
  case PTX_OP_cvt:
    return rooms->convert(i);
  case PTX_OP_setp:
  case PTX_OP_set:
  case PTX_OP_selp:
  case PTX_OP_slct:
    return rooms->compare(i);
  default:
    break;
  }
  ptx_handler handler = rooms->bits(i);
  if (handler)
    return handler;
  switch (i->type) {
  case PTX_f32:
  case PTX_f64:
    return rooms->floats(i);
  case PTX_f16:
  case PTX_bf16:
  case PTX_f16x2:
  case PTX_bf16x2:
    return rooms->half(i);
  default:
    return rooms->integer(i);
  }
}

ptx_handler ptx_select_access(const struct ptx_instruction *i) {
  return best()->access(i);
}
