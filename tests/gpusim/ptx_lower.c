/* From operands as written to register offsets: checks sizes, gives constants and special registers
   their arrays, finds the handler. Called by ptx_decode.c for every instruction but jumps and
   calls. Each function returns NULL or the reason why the instruction isn't supported. */
#include "ptx_decode.h"
#include <stdatomic.h>
#include <string.h>
#include <time.h>

static const char *const forms[] = {
#define PLAIN(operands) operands
#define CUSTOM(operands) NULL
#define OPCODE(name, form, operands, modifiers) form(operands),
#include "ptx_opcodes.def"
#undef OPCODE
#undef PLAIN
#undef CUSTOM
};

/* The register array that holds operand `o`, `bytes` a lane. `type` says how to read a decimal
   fraction. */
const char *ptx_source_place(struct ptx_decoder *d, const struct ptx_operand *o, uint32_t bytes,
                             enum ptx_type type, uint32_t *offset) {
  uint64_t value = o->value;
  if (o->memory)
    return "an operand in brackets";
  switch (o->kind) {
  case PTX_O_REGISTER:
    if (o->offset)
      return "a register with an offset";
    if (ptx_type_bytes[o->type] != bytes || (o->type == PTX_pred) != (type == PTX_pred))
      return "a register of another size";
    *offset = o->reg;
    return NULL;
  case PTX_O_IMMEDIATE:
    if (o->decimal) {
      double wide;
      memcpy(&wide, &value, sizeof wide);
      if (type == PTX_f32) {
        float narrow = (float)wide;
        value = 0;
        memcpy(&value, &narrow, sizeof narrow);
      } else if (type != PTX_f64) {
        return "a fraction for an integer";
      }
    }
    if (type == PTX_pred)
      value = value != 0;
    *offset = ptx_constant_place(d, bytes, value, false);
    return NULL;
  case PTX_O_SPECIAL:
    if (ptx_special_bytes[o->special] != bytes)
      return "a special register of another size";
    if (ptx_special_kinds[o->special] == PTX_PER_CLOCK)
      return "a clock outside mov";
    *offset = ptx_special_place(d, o->special);
    return NULL;
  case PTX_O_SYMBOL:
    if (bytes != 8 &&
        !(bytes == 4 && o->symbol.space != PTX_GLOBAL && o->symbol.space != PTX_CONST))
      return "an address of another size";
    *offset = ptx_constant_place(d, bytes, ptx_symbol_address(o), o->symbol.dynamic);
    return NULL;
  case PTX_O_SINK:
    return "_ where a value is needed";
  case PTX_O_VECTOR:
    return "a vector where one value is needed";
  default:
    return "an unknown name";
  }
}

const char *ptx_result_place(const struct ptx_operand *o, uint32_t bytes, bool predicate,
                             uint32_t *offset) {
  *offset = PTX_NONE;
  if (o->kind == PTX_O_SINK)
    return NULL;
  if (o->kind != PTX_O_REGISTER)
    return "a result that isn't a register";
  if (ptx_type_bytes[o->type] != bytes || (o->type == PTX_pred) != predicate)
    return "a register of another size";
  *offset = o->reg;
  return NULL;
}

static const char *lower_plain(struct ptx_decoder *d, struct ptx_instruction *i, const char *form,
                               const struct ptx_operand *operands, uint32_t count) {
  enum ptx_type type = (enum ptx_type)i->type,
                type2 = (enum ptx_type)(i->type2 ? i->type2 : i->type);
  uint32_t k = 0;
  bool optional = false;
  for (; *form; form++) {
    if (*form == '?') {
      optional = true;
      continue;
    }
    if (k == count)
      break;
    enum ptx_type of = type;
    uint32_t bytes = ptx_type_bytes[type];
    if (*form == 'U') {
      of = type2;
      bytes = ptx_type_bytes[type2];
    } else if (*form == '4') {
      of = PTX_b32;
      bytes = 4;
    } else if (*form == 'P') {
      of = PTX_pred;
      bytes = 1;
    } else if (*form == 'W' && i->flags & PTX_M_WIDE) {
      bytes *= 2;
    }
    const struct ptx_operand *o = &operands[k];
    if (o->negated) {
      if (of != PTX_pred || !k)
        return "! before something that isn't a predicate";
      i->flags |= PTX_M_NEGATE;
    }
    const char *why = k ? ptx_source_place(d, o, bytes, of, &i->operand[k])
                        : ptx_result_place(o, bytes, of == PTX_pred, &i->operand[0]);
    if (why)
      return why;
    if (!k && i->operand[0] == PTX_NONE)
      return "_ as the only result";
    k++;
  }
  if (k < count || (*form && !optional))
    return "another number of operands than is known for it";
  i->operands = (uint8_t)count;
  i->run = ptx_select(i);
  return i->run ? NULL : "types or modifiers that aren't known for it";
}

/* ---- moves, conversions, comparisons ---- */

static void clock_run(struct ptx_team *t, const struct ptx_instruction *i, uint32_t first,
                      uint32_t end) {
  uint64_t value = t->block->instructions;
  if (i->action == PTX_GLOBALTIMER || i->action == PTX_GLOBALTIMER_LO ||
      i->action == PTX_GLOBALTIMER_HI) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    value = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
  }
  if (i->action == PTX_CLOCK_HI || i->action == PTX_GLOBALTIMER_HI)
    value >>= 32;
  for (uint32_t l = first; l < end; l++)
    memcpy(t->registers + i->operand[0] + (size_t)l * i->bytes, &value, i->bytes);
}

static const char *lower_move(struct ptx_decoder *d, struct ptx_instruction *i,
                              const struct ptx_operand *o, uint32_t count) {
  enum ptx_type type = (enum ptx_type)i->type;
  uint32_t bytes = ptx_type_bytes[type];
  if (count != 2 || !bytes)
    return "another form of mov than is known";
  i->bytes = (uint8_t)bytes;
  if (o[1].kind == PTX_O_SPECIAL && ptx_special_kinds[o[1].special] == PTX_PER_CLOCK) {
    i->action = (uint8_t)o[1].special;
    i->run = clock_run;
    return bytes != ptx_special_bytes[o[1].special] || o[0].kind != PTX_O_REGISTER
               ? "a special register of another size"
               : ptx_result_place(&o[0], bytes, false, &i->operand[0]);
  }
  for (int side = 0; side < 2; side++) { /* {a, b} = c or c = {a, b} */
    if (o[side].kind != PTX_O_VECTOR)
      continue;
    uint32_t part = bytes / (o[side].count ? o[side].count : 1);
    if (part * o[side].count != bytes || !part || part > 4 || type == PTX_pred)
      return "a vector of another size";
    i->vector = (uint8_t)o[side].count;
    i->address_bytes = (uint8_t)part;
    for (uint32_t k = 0; k < o[side].count; k++) {
      const char *why = side ? ptx_source_place(d, &o[1].items[k], part, PTX_b32, &i->operand[k])
                             : ptx_result_place(&o[0].items[k], part, false, &i->operand[k]);
      if (why)
        return why;
    }
    i->action = (uint8_t)(side ? 1 : 2);
    const char *why = side ? ptx_result_place(&o[0], bytes, false, &i->operand[5])
                           : ptx_source_place(d, &o[1], bytes, type, &i->operand[5]);
    i->run = ptx_select(i);
    return why ? why : i->operand[5] == PTX_NONE ? "_ as the only result" : NULL;
  }
  const char *why = ptx_result_place(&o[0], bytes, type == PTX_pred, &i->operand[0]);
  if (!why)
    why = o[1].negated ? "mov of !p" : ptx_source_place(d, &o[1], bytes, type, &i->operand[1]);
  if (why || i->operand[0] == PTX_NONE)
    return why ? why : "_ as the only result";
  i->run = ptx_select(i);
  return i->run ? NULL : "a type that isn't known for it";
}

/* Registers of a conversion may be wider than its types. */
static const char *lower_convert(struct ptx_decoder *d, struct ptx_instruction *i,
                                 const struct ptx_operand *o, uint32_t count) {
  enum ptx_type to = (enum ptx_type)i->type, from = (enum ptx_type)i->type2;
  if (!to || !from || to == PTX_pred || from == PTX_pred || o[0].kind != PTX_O_REGISTER)
    return "another form of cvt than is known";
  i->operands = (uint8_t)count;
  i->bytes = ptx_type_bytes[o[0].type];
  if (i->bytes < ptx_type_bytes[to] || o[0].type == PTX_pred)
    return "a register that is too small";
  i->operand[0] = o[0].reg;
  if (count != 2 && !(count == 3 && (to == PTX_f16x2 || to == PTX_bf16x2) && from == PTX_f32))
    return "another number of operands than is known for it";
  for (uint32_t k = 1; k < count; k++) {
    uint32_t bytes = o[k].kind == PTX_O_REGISTER ? ptx_type_bytes[o[k].type] : ptx_type_bytes[from];
    if (bytes < ptx_type_bytes[from] || (k == 2 && bytes != i->address_bytes))
      return "a register that is too small";
    i->address_bytes = (uint8_t)bytes;
    const char *why = ptx_source_place(d, &o[k], bytes, from, &i->operand[k]);
    if (why)
      return why;
  }
  i->run = ptx_select(i);
  return i->run ? NULL : "types or modifiers that aren't known for it";
}

/* setp p|q, a, b, c: p = (a ? b) combined with c, q = the opposite comparison combined with c. */
static const char *lower_setp(struct ptx_decoder *d, struct ptx_instruction *i,
                              const struct ptx_operand *o, uint32_t count,
                              const struct ptx_operand *second) {
  enum ptx_type type = (enum ptx_type)i->type;
  if (count != (i->combine ? 4u : 3u) || !i->compare || !type)
    return "another form of setp than is known";
  const char *why = ptx_result_place(&o[0], 1, true, &i->operand[0]);
  if (!why && second->kind)
    why = ptx_result_place(second, 1, true, &i->operand[5]);
  for (uint32_t k = 1; k < 3 && !why; k++)
    why = ptx_source_place(d, &o[k], ptx_type_bytes[type], type, &i->operand[k]);
  if (!why && i->combine) {
    why = ptx_source_place(d, &o[3], 1, PTX_pred, &i->operand[3]);
    if (o[3].negated)
      i->flags |= PTX_M_NEGATE;
  }
  if (why)
    return why;
  i->run = ptx_select(i);
  return i->run ? NULL : "types or modifiers that aren't known for it";
}

static void trap_run(struct ptx_team *t, const struct ptx_instruction *i, uint32_t first,
                     uint32_t end) {
  (void)end;
  ptx_fail(t, i, first, 719, i->opcode == PTX_OP_trap ? "trap" : "breakpoint");
}

static void fence_run(struct ptx_team *t, const struct ptx_instruction *i, uint32_t first,
                      uint32_t end) {
  (void)t, (void)i, (void)first, (void)end;
  /* Other blocks may run in other threads. A read-modify-write of one word orders them as a fence
     would, and race checkers understand it. */
  static _Atomic uint32_t word;
  atomic_fetch_add_explicit(&word, 0, memory_order_seq_cst);
}

const char *ptx_lower(struct ptx_decoder *d, struct ptx_instruction *i, struct ptx_operand *o,
                      uint32_t count, struct ptx_operand *second) {
  bool two_results = second->kind != PTX_O_SINK;
  if (two_results && i->opcode != PTX_OP_setp && i->opcode != PTX_OP_shfl &&
      i->opcode != PTX_OP_match && i->opcode != PTX_OP_elect)
    return "two results";
  if (forms[i->opcode])
    return lower_plain(d, i, forms[i->opcode], o, count);
  switch (i->opcode) {
  case PTX_OP_ld:
  case PTX_OP_ldu:
    return ptx_lower_access(d, i, o, count, false);
  case PTX_OP_st:
    return ptx_lower_access(d, i, o, count, true);
  case PTX_OP_atom:
    return ptx_lower_atomic(d, i, o, count, true);
  case PTX_OP_red:
    return ptx_lower_atomic(d, i, o, count, false);
  case PTX_OP_cp:
    return ptx_lower_copy(d, i, o, count);
  case PTX_OP_mov:
    return lower_move(d, i, o, count);
  case PTX_OP_cvt:
    return lower_convert(d, i, o, count);
  case PTX_OP_setp:
    return lower_setp(d, i, o, count, second);
  case PTX_OP_cvta:
  case PTX_OP_isspacep:
    return ptx_lower_address_test(d, i, o, count);
  case PTX_OP_bar:
  case PTX_OP_barrier:
    return ptx_lower_barrier(d, i, o, count);
  case PTX_OP_shfl:
  case PTX_OP_vote:
  case PTX_OP_match:
  case PTX_OP_redux:
  case PTX_OP_elect:
    return ptx_lower_warpwide(d, i, o, count, second);
  case PTX_OP_activemask:
    i->kind = PTX_WARPWIDE;
    i->member = PTX_NONE;
    return count == 1 ? ptx_result_place(&o[0], 4, false, &i->operand[0])
                      : "another number of operands";
  case PTX_OP_brx:
    return ptx_lower_indexed_branch(d, i, o, count);
  case PTX_OP_exit:
    i->kind = PTX_EXIT;
    return NULL;
  case PTX_OP_trap:
  case PTX_OP_brkpt:
    i->kind = PTX_ACCESS;
    i->run = trap_run;
    return NULL;
  case PTX_OP_membar:
  case PTX_OP_fence:
    i->run = fence_run;
    return NULL;
  default: /* hints to caches and schedulers: nothing to do, nothing emitted */
    return NULL;
  }
}
