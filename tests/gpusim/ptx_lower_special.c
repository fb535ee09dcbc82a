/* Lowering of what isn't a plain function of its operands: memory accesses, atomics, barriers,
   warp-wide instructions, indexed branches. Called by ptx_lower.c; each returns NULL or the
   reason why the instruction isn't supported. */
#include "ptx_decode.h"
#include <string.h>

/* ---- control ---- */

const char *ptx_lower_indexed_branch(struct ptx_decoder *d, struct ptx_instruction *i,
                                     const struct ptx_operand *o, uint32_t count) {
  if (count != 2 || i->action != PTX_INDEX || o[1].kind != PTX_O_NAME)
    return "another form of brx than is known";
  const struct ptx_symbol *targets = ptx_decode_targets(d, o[1].name);
  if (!targets)
    return "an unknown list of targets";
  i->kind = PTX_BRANCH_INDEXED;
  i->target = targets->first_target;
  i->target_count = targets->count;
  return ptx_source_place(d, &o[0], 4, PTX_u32, &i->operand[0]);
}

const char *ptx_lower_barrier(struct ptx_decoder *d, struct ptx_instruction *i,
                              const struct ptx_operand *o, uint32_t count) {
  const char *why = NULL;
  uint32_t k = 0;
  if (i->flags & PTX_M_WARP) {
    i->kind = PTX_WARPWIDE;
    return count == 1 ? ptx_source_place(d, &o[0], 4, PTX_b32, &i->member)
                      : "another number of operands";
  }
  i->kind = PTX_BARRIER;
  if (i->flags & PTX_M_RED) { /* bar.red.op d, a {, b}, {!}c */
    if (count < 3 || count > 4 || !i->combine || i->combine == PTX_XOR)
      return "another form of bar.red than is known";
    bool popc = i->combine == PTX_POPC;
    why = ptx_result_place(&o[0], popc ? 4 : 1, !popc, &i->operand[3]);
    if (!why)
      why = ptx_source_place(d, &o[count - 1], 1, PTX_pred, &i->operand[2]);
    if (o[count - 1].negated)
      i->flags |= PTX_M_NEGATE;
    k = 1;
    count--;
  }
  if (count - k < 1 || count - k > 2 || (i->flags & PTX_M_ARRIVE && count - k != 2))
    return "another number of operands than is known for it";
  if (!why)
    why = ptx_source_place(d, &o[k], 4, PTX_u32, &i->operand[0]);
  if (!why && count - k == 2)
    why = ptx_source_place(d, &o[k + 1], 4, PTX_u32, &i->operand[1]);
  return why;
}

const char *ptx_lower_warpwide(struct ptx_decoder *d, struct ptx_instruction *i,
                               const struct ptx_operand *o, uint32_t count,
                               const struct ptx_operand *second) {
  uint32_t type_bytes = ptx_type_bytes[i->type], result_bytes = 4, member = 2;
  bool predicate_result = false, known = false;
  const char *why = NULL;
  i->kind = PTX_WARPWIDE;
  if (second->kind)
    why = ptx_result_place(second, 1, true, &i->operand[5]);
  switch (i->opcode) {
  case PTX_OP_shfl:
    known = count == 5 && i->action && type_bytes == 4;
    for (uint32_t k = 1; k < 4 && known && !why; k++)
      why = ptx_source_place(d, &o[k], 4, PTX_b32, &i->operand[k]);
    member = 4;
    break;
  case PTX_OP_vote:
    known = count == 3 && i->action;
    if (!known)
      break;
    predicate_result = i->action != PTX_VOTE_BALLOT;
    if (!why)
      why = ptx_source_place(d, &o[1], 1, PTX_pred, &i->operand[1]);
    if (o[1].negated)
      i->flags |= PTX_M_NEGATE;
    break;
  case PTX_OP_match:
    known =
        count == 3 && (i->action == PTX_VOTE_ANY || i->action == PTX_VOTE_ALL) && type_bytes >= 4;
    i->bytes = (uint8_t)type_bytes;
    if (known && !why)
      why = ptx_source_place(d, &o[1], type_bytes, (enum ptx_type)i->type, &i->operand[1]);
    break;
  case PTX_OP_redux:
    known = count == 3 && type_bytes == 4 && ptx_type_class[i->type] != PTX_FLOAT && i->action &&
            i->action != PTX_INC && i->action != PTX_DEC && i->action != PTX_CAS &&
            i->action != PTX_EXCH;
    if (known && !why)
      why = ptx_source_place(d, &o[1], 4, PTX_b32, &i->operand[1]);
    break;
  default: /* elect d|p, members */
    known = count == 2;
    member = 1;
    break;
  }
  if (!known)
    return "another form than is known";
  if (!why)
    why = ptx_result_place(&o[0], predicate_result ? 1 : result_bytes, predicate_result,
                           &i->operand[0]);
  return why ? why : ptx_source_place(d, &o[member], 4, PTX_b32, &i->member);
}

/* ---- memory ---- */

static const char *lower_address(struct ptx_decoder *d, struct ptx_instruction *i,
                                 const struct ptx_operand *o) {
  if (!o->memory)
    return "an address in brackets is expected";
  i->offset = o->offset;
  switch (o->kind) {
  case PTX_O_REGISTER:
    i->address = o->reg;
    i->address_bytes = ptx_type_bytes[o->type];
    return i->address_bytes >= 4 ? NULL : "an address of less than 32 bits";
  case PTX_O_IMMEDIATE:
    i->offset += (int64_t)o->value;
    return o->decimal ? "a fraction for an address" : NULL;
  case PTX_O_SYMBOL:
    if (o->symbol.dynamic) {
      i->address = ptx_constant_place(d, 4, ptx_symbol_address(o), true);
      i->address_bytes = 4;
      i->offset = 0;
    } else {
      i->offset = (int64_t)ptx_symbol_address(o);
    }
    if (i->space == PTX_PARAM && o->symbol.space == PTX_PARAM &&
        o->symbol.at >= PTX_LANE_PARAMETER) {
      i->space = PTX_LOCAL;
      i->offset -= PTX_LANE_PARAMETER;
    }
    if (i->space == PTX_GENERIC && o->symbol.space != PTX_GLOBAL && o->symbol.space != PTX_CONST)
      return "a generic access by the name of a variable that isn't global";
    return NULL;
  default:
    return "an unknown name for an address";
  }
}

const char *ptx_lower_access(struct ptx_decoder *d, struct ptx_instruction *i,
                             const struct ptx_operand *operands, uint32_t count, bool store) {
  const struct ptx_operand *values = &operands[store], *one = values;
  uint32_t elements = 1;
  if (count != 2)
    return "another number of operands than is known for it";
  if (values->kind == PTX_O_VECTOR) {
    one = values->items;
    elements = values->count;
  }
  if (elements != i->vector)
    return "a vector of another length";
  if (!i->type || i->type == PTX_pred)
    return "a type that can't be in memory";
  uint32_t bytes = 0, least = ptx_type_bytes[i->type];
  for (uint32_t k = 0; k < elements; k++)
    if (one[k].kind == PTX_O_REGISTER)
      bytes = ptx_type_bytes[one[k].type];
  if (!bytes)
    bytes = least;
  if (bytes < least)
    return "a register that is too small";
  i->bytes = (uint8_t)bytes;
  for (uint32_t k = 0; k < elements; k++) {
    const char *why =
        store ? ptx_source_place(d, &one[k], bytes, (enum ptx_type)i->type, &i->operand[k])
              : ptx_result_place(&one[k], bytes, false, &i->operand[k]);
    if (why)
      return why;
  }
  const char *why = lower_address(d, i, &operands[!store]);
  if (why)
    return why;
  if (store && (i->space == PTX_CONST || i->space == PTX_PARAM))
    return "a store to a space that can't be written";
  i->kind = PTX_ACCESS;
  i->run = ptx_select_memory(i);
  return i->run ? NULL : "types that aren't known for it";
}

const char *ptx_lower_atomic(struct ptx_decoder *d, struct ptx_instruction *i,
                             const struct ptx_operand *operands, uint32_t count, bool result) {
  enum ptx_type type = (enum ptx_type)i->type;
  uint32_t bytes = ptx_type_bytes[type], values = i->action == PTX_CAS ? 2 : 1;
  if (!i->action || !bytes || count != values + 1 + result)
    return "another form of atomic than is known";
  if (result) {
    const char *why = ptx_result_place(&operands[0], bytes, false, &i->operand[0]);
    if (why)
      return why;
  }
  for (uint32_t k = 0; k < values; k++) {
    const char *why =
        ptx_source_place(d, &operands[k + 1 + result], bytes, type, &i->operand[k + 1]);
    if (why)
      return why;
  }
  const char *why = lower_address(d, i, &operands[result]);
  if (why)
    return why;
  i->bytes = (uint8_t)bytes;
  i->kind = PTX_ACCESS;
  i->run = ptx_select_memory(i);
  return i->run ? NULL : "types that aren't known for it";
}

/* cp.async [shared], [global], bytes {, bytes to read}: done at once, so that waiting has
   nothing to do. */
const char *ptx_lower_copy(struct ptx_decoder *d, struct ptx_instruction *i,
                           const struct ptx_operand *operands, uint32_t count) {
  if (!(i->flags & PTX_M_ASYNC))
    return "another form of cp than is known";
  if (!(i->flags & PTX_M_SPACE))
    return count <= 1 ? NULL
                      : "another form of cp.async than is known"; /* commit_group, wait_group */
  if (count < 3 || count > 4 || operands[1].kind != PTX_O_REGISTER || !operands[1].memory ||
      operands[1].type == PTX_pred || ptx_type_bytes[operands[1].type] != 8 ||
      operands[2].kind != PTX_O_IMMEDIATE)
    return "another form of cp.async than is known";
  i->space = PTX_SHARED;
  const char *why = lower_address(d, i, &operands[0]);
  if (why)
    return why;
  i->operand[0] = operands[1].reg;
  i->operand[1] = ptx_constant_place(d, 8, (uint64_t)operands[1].offset, false);
  i->bytes = (uint8_t)operands[2].value;
  if (i->bytes != 4 && i->bytes != 8 && i->bytes != 16)
    return "cp.async of another size than 4, 8 or 16 bytes";
  if (count == 4 && operands[3].kind != PTX_O_SINK) {
    if (operands[3].kind == PTX_O_REGISTER && operands[3].type == PTX_pred)
      return "cp.async with a predicate";
    why = ptx_source_place(d, &operands[3], 4, PTX_b32, &i->operand[2]);
    if (why)
      return why;
  }
  i->kind = PTX_ACCESS;
  i->run = ptx_select_memory(i);
  return NULL;
}

const char *ptx_lower_address_test(struct ptx_decoder *d, struct ptx_instruction *i,
                                   const struct ptx_operand *o, uint32_t count) {
  bool test = i->opcode == PTX_OP_isspacep;
  if (count != 2 || !i->space || (!test && ptx_type_bytes[i->type] != 8))
    return "another form than is known";
  const char *why = ptx_result_place(&o[0], test ? 1 : 8, test, &i->operand[0]);
  if (!why)
    why = ptx_source_place(d, &o[1], 8, PTX_u64, &i->operand[1]);
  i->run = ptx_select_memory(i);
  return why ? why : i->operand[0] == PTX_NONE ? "_ as the only result" : NULL;
}
