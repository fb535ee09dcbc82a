/* f32 and f64 arithmetic in every rounding mode, and .sat. Called by ptx_exec_float.c. Built with
   -frounding-math: the mode is changed around each instruction. */
#include "ptx_exec.h"

#define F32(name, EXPRESSION)                                                                      \
  static void name##_f32(ARGS) {                                                                   \
    const bool ftz = i->flags & PTX_M_FTZ, sat = i->flags & PTX_M_SAT;                             \
    uint32_t *d = CELLS(uint32_t, 0);                                                              \
    const uint32_t *a = CELLS(uint32_t, 1), *b = i->operands > 2 ? CELLS(uint32_t, 2) : a;         \
    const uint32_t *c = i->operands > 3 ? CELLS(uint32_t, 3) : a;                                  \
    round_to(i->rounding);                                                                         \
    LANES {                                                                                        \
      const float x = f32_in(a[l], ftz), y = f32_in(b[l], ftz), z = f32_in(c[l], ftz);             \
      (void)y, (void)z;                                                                            \
      d[l] = f32_out(EXPRESSION, ftz, sat);                                                        \
    }                                                                                              \
    fesetround(FE_TONEAREST);                                                                      \
  }
#define F64(name, EXPRESSION)                                                                      \
  static void name##_f64(ARGS) {                                                                   \
    uint64_t *d = CELLS(uint64_t, 0);                                                              \
    const uint64_t *a = CELLS(uint64_t, 1), *b = i->operands > 2 ? CELLS(uint64_t, 2) : a;         \
    const uint64_t *c = i->operands > 3 ? CELLS(uint64_t, 3) : a;                                  \
    round_to(i->rounding);                                                                         \
    LANES {                                                                                        \
      const double x = f64_of(a[l]), y = f64_of(b[l]), z = f64_of(c[l]);                           \
      (void)y, (void)z;                                                                            \
      d[l] = f64_out(EXPRESSION, a[l], b[l], c[l]);                                                \
    }                                                                                              \
    fesetround(FE_TONEAREST);                                                                      \
  }
#include "ptx_float.def"
#undef F32
#undef F64

ptx_handler PTX_NAME(ptx_select_round)(const struct ptx_instruction *i) {
  bool f32 = i->type == PTX_f32;
  if (!f32 && i->flags & PTX_M_SAT)
    return NULL;
  switch (i->opcode) {
  case PTX_OP_add:
    return f32 ? add_f32 : add_f64;
  case PTX_OP_sub:
    return f32 ? sub_f32 : sub_f64;
  case PTX_OP_mul:
    return f32 ? mul_f32 : mul_f64;
  case PTX_OP_mad:
  case PTX_OP_fma:
    if (i->action == PTX_FUSED_MINUS_ADDEND)
      return f32 ? fma_minus_addend_f32 : fma_minus_addend_f64;
    if (i->action == PTX_FUSED_MINUS_PRODUCT)
      return f32 ? fma_minus_product_f32 : fma_minus_product_f64;
    return f32 ? fma_f32 : fma_f64;
  case PTX_OP_div:
    return f32 ? div_f32 : div_f64;
  case PTX_OP_sqrt:
    return f32 ? sqrt_f32 : sqrt_f64;
  case PTX_OP_rcp:
    return f32 ? rcp_f32 : rcp_f64;
  default:
    return NULL;
  }
}
