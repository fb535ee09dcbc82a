/* GPUSIM_CONTRACT=1: products and sums without a rounding mode become fma, as PTX allows ("mul/add
   and mul/sub sequences with no rounding modifiers may be optimized to use fused-multiply-add") and
   ptxas does. Called by ptx_decode.c on a finished program, before any engine sees it. The mul stays
   for its other readers. Fused is what stands in one straight piece of code, the product's operands
   unchanged in between. */
#include "ptx_decode.h"
#include <stdlib.h>

static bool may_fuse(const struct ptx_instruction *i, enum ptx_opcode opcode) {
  return i->opcode == opcode && i->kind == PTX_PLAIN && !i->rounding &&
         (i->type == PTX_f32 || i->type == PTX_f64) && i->operand[0] != PTX_NONE;
}

/* Whether `i` may write the register; what isn't an operand list counts as if it did. */
static bool may_write(const struct ptx_instruction *i, uint32_t reg) {
  for (int k = 0; k < 6; k++)
    if (i->operand[k] == reg)
      return k == 0 || k == 5 || i->kind != PTX_PLAIN || i->opcode == PTX_OP_mov;
  return false;
}

/* The mul before `at` whose product is operand `which` of the sum there, or NULL. */
static const struct ptx_instruction *product_of(const struct ptx_program *program,
                                                const bool *begins, uint32_t at, int which) {
  const struct ptx_instruction *sum = &program->code[at];
  for (uint32_t k = at; k > 0 && !begins[k];) {
    const struct ptx_instruction *mul = &program->code[--k];
    if (!may_write(mul, sum->operand[which]))
      continue;
    if (!may_fuse(mul, PTX_OP_mul) || mul->operand[0] != sum->operand[which] ||
        mul->guard != PTX_NONE || mul->type != sum->type || mul->flags & PTX_M_SAT ||
        (mul->flags ^ sum->flags) & PTX_M_FTZ || mul->operand[0] == mul->operand[1] ||
        mul->operand[0] == mul->operand[2])
      return NULL;
    for (uint32_t between = k + 1; between < at; between++)
      if (may_write(&program->code[between], mul->operand[1]) ||
          may_write(&program->code[between], mul->operand[2]))
        return NULL;
    return mul;
  }
  return NULL;
}

void ptx_contract(struct ptx_program *program) {
  bool *begins = ptx_beginnings(program);
  for (uint32_t at = 0; begins && at < program->count; at++) {
    struct ptx_instruction *sum = &program->code[at];
    if (!may_fuse(sum, PTX_OP_add) && !may_fuse(sum, PTX_OP_sub))
      continue;
    for (int which = 1; which <= 2; which++) {
      const struct ptx_instruction *mul = product_of(program, begins, at, which);
      if (!mul)
        continue;
      struct ptx_instruction fused = *sum;
      fused.action = sum->opcode == PTX_OP_add ? 0
                     : which == 1              ? PTX_FUSED_MINUS_ADDEND
                                               : PTX_FUSED_MINUS_PRODUCT;
      fused.opcode = PTX_OP_fma;
      fused.operands = 4;
      fused.operand[1] = mul->operand[1];
      fused.operand[2] = mul->operand[2];
      fused.operand[3] = sum->operand[3 - which];
      fused.run = ptx_select(&fused);
      if (fused.run)
        *sum = fused;
      break;
    }
  }
  free(begins);
}
