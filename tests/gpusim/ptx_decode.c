/* From text to program: the bodies of an entry and of all functions it reaches, statement by
   statement. A callee is placed before its callers, so that the scheduler's rule "lowest
   instruction first" lets calls finish before the lanes that didn't call run on. Called by
   ptx_run.c; operands are turned into register offsets by ptx_lower.c. */
#include "ptx.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A function's place in the program. */
struct ptx_frame {
  struct ptx_function *function;
  bool
      finished; /* false while its own body is being read: a call of it is recursion, unsupported */
  uint32_t start, parameters_at, result_at, return_register;
};
struct fixup { /* a jump to a label that may not have been met yet */
  struct ptx_word label;
  uint32_t scope, line;
  bool table; /* entry `index` of the program's targets; else the target of the body's instruction
                 `index` */
  uint32_t index;
};
struct ptx_body {
  struct ptx_body *caller;
  uint32_t frame;
  struct ptx_symbols symbols, labels; /* a label's `at` is an instruction, its `bytes` a scope */
  struct ptx_instruction *code;
  uint32_t count, capacity;
  uint32_t *scope_parents, scope_count, scope_capacity, scope;
  struct fixup *fixups;
  uint32_t fixup_count, fixup_capacity;
};

static const struct {
  const char *name;
  enum ptx_special id;
} specials[] = {
#define SPECIAL(name, identifier, bytes, kind) {name, PTX_##identifier},
#include "ptx_specials.def"
#undef SPECIAL
};
const uint8_t ptx_special_bytes[] = {
#define SPECIAL(name, identifier, bytes, kind) bytes,
#include "ptx_specials.def"
#undef SPECIAL
};
const uint8_t ptx_special_kinds[] = {
#define SPECIAL(name, identifier, bytes, kind) PTX_PER_##kind,
#include "ptx_specials.def"
#undef SPECIAL
};
_Static_assert(sizeof ptx_special_bytes <= 64, "ptx_decoder.special_offsets is too small");

static const struct {
  const char *name;
  uint32_t modifiers;
} opcodes[] = {
#define ROUND PTX_M_ROUND
#define FTZ PTX_M_FTZ
#define SAT PTX_M_SAT
#define APPROX PTX_M_APPROX
#define LO PTX_M_LO
#define HI PTX_M_HI
#define WIDE PTX_M_WIDE
#define CC PTX_M_CC
#define NAN_WINS PTX_M_NAN_WINS
#define TO PTX_M_TO
#define WRAP PTX_M_WRAP
#define CLAMP PTX_M_CLAMP
#define LEFT PTX_M_LEFT
#define RIGHT PTX_M_RIGHT
#define SHIFTAMT PTX_M_SHIFTAMT
#define ASYNC PTX_M_ASYNC
#define WARP PTX_M_WARP
#define RED PTX_M_RED
#define ARRIVE PTX_M_ARRIVE
#define TO_INTEGER PTX_M_TO_INTEGER
#define SPACE PTX_M_SPACE
#define VECTOR PTX_M_VECTOR
#define COMPARE PTX_M_COMPARE
#define COMBINE PTX_M_COMBINE
#define ATOMIC PTX_M_ATOMIC
#define SHUFFLE PTX_M_SHUFFLE
#define VOTE PTX_M_VOTE
#define TEST PTX_M_TEST
#define OPCODE(name, form, operands, modifiers) {#name, modifiers},
#include "ptx_opcodes.def"
#undef OPCODE
};
static const struct {
  const char *name;
  uint32_t group;
  uint8_t value;
} modifiers[] = {
#define MODIFIER(text, group, value) {text, PTX_M_##group, value},
#include "ptx_modifiers.def"
#undef MODIFIER
};

/* ---- places in the register file ---- */

uint32_t ptx_register_new(struct ptx_program *program, uint32_t bytes) {
  uint32_t offset = program->register_bytes;
  program->register_bytes += bytes * PTX_LANES;
  return offset;
}

uint32_t ptx_constant_place(struct ptx_decoder *d, uint32_t bytes, uint64_t value,
                            bool dynamic_shared) {
  struct ptx_program *program = d->program;
  if (bytes < 8)
    value &= (UINT64_C(1) << bytes * 8) - 1;
  uint32_t bucket = (uint32_t)((value ^ value >> 32) * 2654435761u >> 20) % PTX_BUCKETS;
  for (uint32_t i = d->constant_heads[bucket]; i; i = d->constant_next[i - 1]) {
    const struct ptx_constant *c = &program->constants[i - 1];
    if (c->value == value && c->bytes == bytes && c->dynamic_shared == dynamic_shared)
      return c->offset;
  }
  program->constants = ptx_grow(program->constants, program->constant_count,
                                &program->constant_capacity, sizeof *program->constants);
  d->constant_next = ptx_grow(d->constant_next, program->constant_count, &d->constant_next_capacity,
                              sizeof *d->constant_next);
  uint32_t offset = ptx_register_new(program, bytes);
  d->constant_next[program->constant_count] = d->constant_heads[bucket];
  program->constants[program->constant_count++] =
      (struct ptx_constant){offset, bytes, value, dynamic_shared};
  d->constant_heads[bucket] = program->constant_count;
  return offset;
}

uint32_t ptx_special_place(struct ptx_decoder *d, enum ptx_special id) {
  struct ptx_program *program = d->program;
  if (d->special_offsets[id] == PTX_NONE) {
    d->special_offsets[id] = ptx_register_new(program, ptx_special_bytes[id]);
    program->specials = ptx_grow(program->specials, program->special_count,
                                 &program->special_capacity, sizeof *program->specials);
    program->specials[program->special_count++] =
        (struct ptx_special_use){d->special_offsets[id], id};
  }
  return d->special_offsets[id];
}

static uint32_t local_place(struct ptx_program *program, size_t bytes, size_t alignment) {
  uint32_t at = (uint32_t)ptx_align(program->local_bytes, alignment);
  program->local_bytes = at + (uint32_t)bytes;
  return at;
}

/* ---- declarations in a body ---- */

static void registers(struct ptx_decoder *d) {
  struct ptx_parser *p = &d->parser;
  struct ptx_word type = ptx_word_read(p);
  if (type.length && *type.text == '.') {
    type.text++;
    type.length--;
  }
  enum ptx_type t = ptx_type_named(type);
  if (!t) {
    ptx_error(p, "registers of unknown type '%.*s'", (int)type.length, type.text);
    return;
  }
  do {
    struct ptx_word name = ptx_word_read(p);
    uint64_t count = 0;
    bool decimal;
    if (ptx_eat(p, '<')) {
      if (!ptx_number(ptx_word_read(p), &count, &decimal) || count > 1 << 20 || !ptx_eat(p, '>'))
        ptx_error(p, "a number of registers is expected after %.*s<", (int)name.length, name.text);
    }
    struct ptx_symbol *symbol = ptx_symbol_add(&d->body->symbols, name, PTX_REGISTERS);
    symbol->type = (uint8_t)t;
    symbol->count = (uint32_t)count;
    symbol->offsets = malloc((count + 1) * sizeof *symbol->offsets);
    memset(symbol->offsets, 0xff, (count + 1) * sizeof *symbol->offsets);
  } while (ptx_eat(p, ','));
  if (!ptx_eat(p, ';'))
    ptx_error(p, "; is expected after registers");
}

static void variable_in_body(struct ptx_decoder *d, enum ptx_space space) {
  struct ptx_parser *p = &d->parser;
  struct ptx_program *program = d->program;
  do {
    struct ptx_variable variable;
    uint64_t at;
    ptx_variable_read(p, &variable);
    if (p->failed)
      return;
    if (space == PTX_SHARED) {
      at = ptx_align(program->static_shared_bytes, variable.alignment);
      program->static_shared_bytes = (uint32_t)(at + variable.bytes);
    } else if (space == PTX_LOCAL || space == PTX_PARAM) {
      at = local_place(program, variable.bytes, variable.alignment);
      if (space == PTX_PARAM)
        at += PTX_LANE_PARAMETER;
    } else {
      ptx_error(p, "variable %.*s of a space that a body can't declare", (int)variable.name.length,
                variable.name.text);
      return;
    }
    struct ptx_symbol *symbol = ptx_symbol_add(&d->body->symbols, variable.name, PTX_VARIABLE);
    symbol->space = (uint8_t)space;
    symbol->at = at;
    symbol->bytes = variable.bytes;
  } while (ptx_eat(p, ','));
  if (!ptx_eat(p, ';'))
    ptx_error(p, "; is expected after a variable");
}

/* Parameters get their places: an entry's lie in the launch's buffer, others in the lane's local
 * memory. */
static void parameters(struct ptx_decoder *d, bool entry, uint32_t base) {
  struct ptx_parser *p = &d->parser;
  uint32_t offset = 0;
  if (!ptx_eat(p, '('))
    return;
  while (!ptx_eat(p, ')') && !p->failed) {
    struct ptx_variable variable;
    ptx_word_read(p); /* .param, seen by ptx_module.c */
    ptx_variable_read(p, &variable);
    offset = (uint32_t)ptx_align(offset, variable.alignment);
    struct ptx_symbol *symbol = ptx_symbol_add(&d->body->symbols, variable.name, PTX_VARIABLE);
    symbol->space = PTX_PARAM;
    symbol->at = entry ? offset : PTX_LANE_PARAMETER + base + offset;
    symbol->bytes = variable.bytes;
    offset += (uint32_t)variable.bytes;
    ptx_eat(p, ',');
  }
}

/* ---- operands ---- */

static struct ptx_symbol *find(struct ptx_decoder *d, struct ptx_word name) {
  struct ptx_symbol *symbol = ptx_symbol_find(&d->body->symbols, name);
  return symbol ? symbol : ptx_symbol_find(&d->parser.module->symbols, name);
}

/* The register that a name like %r12 means, from the declaration %r<200> or %r12. */
static bool register_named(struct ptx_decoder *d, struct ptx_word name, struct ptx_operand *o) {
  const struct ptx_symbol *symbol = ptx_symbol_find(&d->body->symbols, name);
  uint64_t number = 0;
  if (!symbol || symbol->count) {
    struct ptx_word prefix = name;
    while (prefix.length && prefix.text[prefix.length - 1] >= '0' &&
           prefix.text[prefix.length - 1] <= '9')
      prefix.length--;
    if (prefix.length == name.length || name.length - prefix.length > 9)
      return false;
    for (size_t i = prefix.length; i < name.length; i++)
      number = number * 10 + (uint64_t)(name.text[i] - '0');
    symbol = ptx_symbol_find(&d->body->symbols, prefix);
    if (!symbol || symbol->kind != PTX_REGISTERS || number >= symbol->count)
      return false;
  }
  if (symbol->kind != PTX_REGISTERS)
    return false;
  o->kind = PTX_O_REGISTER;
  o->type = (enum ptx_type)symbol->type;
  if (symbol->offsets[number] == PTX_NONE)
    symbol->offsets[number] = ptx_register_new(d->program, ptx_type_bytes[symbol->type]);
  o->reg = symbol->offsets[number];
  return true;
}

static void name_operand(struct ptx_decoder *d, struct ptx_word word, struct ptx_operand *o) {
  o->name = word;
  if (ptx_word_is(word, "_")) {
    o->kind = PTX_O_SINK;
    return;
  }
  if (ptx_number(word, &o->value, &o->decimal)) {
    o->kind = PTX_O_IMMEDIATE;
    return;
  }
  if (register_named(d, word, o))
    return;
  const struct ptx_symbol *symbol = find(d, word);
  if (symbol && symbol->kind == PTX_VARIABLE) {
    o->kind = PTX_O_SYMBOL;
    o->symbol = *symbol;
    return;
  }
  o->kind = PTX_O_NAME;
  for (size_t i = 0; i < sizeof specials / sizeof *specials; i++)
    if (ptx_word_is(word, specials[i].name)) {
      o->kind = PTX_O_SPECIAL;
      o->special = specials[i].id;
    }
}

static void operand(struct ptx_decoder *d, struct ptx_operand *o, struct ptx_operand *items) {
  struct ptx_parser *p = &d->parser;
  memset(o, 0, sizeof *o);
  if (ptx_eat(p, '{')) {
    o->kind = PTX_O_VECTOR;
    o->items = items;
    while (!ptx_eat(p, '}')) {
      if (p->failed || o->count == 4 || !items) {
        ptx_error(p, "a vector of one to four operands is expected");
        return;
      }
      operand(d, &items[o->count++], NULL);
      ptx_eat(p, ',');
    }
    return;
  }
  o->memory = ptx_eat(p, '[');
  o->negated = ptx_eat(p, '!');
  bool minus = ptx_eat(p, '-');
  struct ptx_word word = ptx_word_read(p);
  if (!word.length) {
    ptx_error(p, "an operand is expected at '%.20s'", p->at);
    return;
  }
  name_operand(d, word, o);
  if (minus && o->kind == PTX_O_IMMEDIATE)
    o->value = o->decimal ? o->value ^ UINT64_C(1) << 63 : 0 - o->value;
  else if (minus)
    ptx_error(p, "- before '%.*s'", (int)word.length, word.text);
  ptx_space_skip(p);
  if (*p->at == '+' || (o->memory && *p->at == '-')) {
    uint64_t offset = 0;
    bool decimal, down = *p->at++ == '-';
    if (ptx_eat(p, '-'))
      down = !down;
    if (!ptx_number(ptx_word_read(p), &offset, &decimal) || decimal)
      ptx_error(p, "an offset is expected");
    o->offset = (int64_t)(down ? 0 - offset : offset);
  }
  if (o->memory && !ptx_eat(p, ']'))
    ptx_error(p, "] is expected at '%.20s'", p->at);
}

/* ---- instructions ---- */

static struct ptx_instruction *emit(struct ptx_decoder *d, const struct ptx_instruction *like) {
  struct ptx_body *body = d->body;
  body->code = ptx_grow(body->code, body->count, &body->capacity, sizeof *body->code);
  body->code[body->count] = *like;
  return &body->code[body->count++];
}

static void unsupported_run(struct ptx_team *t, const struct ptx_instruction *i, uint32_t first,
                            uint32_t end) {
  (void)end;
  ptx_fail(t, i, first, 715, "unsupported instruction: %s", i->message);
}

/* `why` may be NULL. The message ends with the instruction as written, in ptx_fail. */
static void emit_unsupported(struct ptx_decoder *d, struct ptx_instruction *i, const char *why) {
  struct ptx_program *program = d->program;
  program->messages = ptx_grow(program->messages, program->message_count,
                               &program->message_capacity, sizeof *program->messages);
  char *message = strdup(why ? why : "the interpreter has no such instruction");
  program->messages[program->message_count++] = message;
  i->kind = PTX_ACCESS;
  i->run = unsupported_run;
  i->message = message;
  emit(d, i);
  gpusim_trace(2, "PTX line %u: %.*s: %s", i->line, (int)strcspn(i->text, ";\n"), i->text, message);
}

static void jump_to(struct ptx_decoder *d, struct ptx_word label, bool table, uint32_t index) {
  struct ptx_body *body = d->body;
  body->fixups =
      ptx_grow(body->fixups, body->fixup_count, &body->fixup_capacity, sizeof *body->fixups);
  body->fixups[body->fixup_count++] =
      (struct fixup){label, body->scope, d->parser.line, table, index};
}

static uint32_t function_place(struct ptx_decoder *d, struct ptx_function *function);

/* A parameter of this scope by name; its place in the lane's local memory. */
static bool lane_parameter(struct ptx_decoder *d, struct ptx_word name, uint32_t *at,
                           uint32_t *bytes) {
  const struct ptx_symbol *symbol = ptx_symbol_find(&d->body->symbols, name);
  if (!symbol || symbol->kind != PTX_VARIABLE || symbol->space != PTX_PARAM ||
      symbol->at < PTX_LANE_PARAMETER) {
    ptx_error(&d->parser, "'%.*s' isn't a parameter of this scope", (int)name.length, name.text);
    return false;
  }
  *at = (uint32_t)symbol->at - PTX_LANE_PARAMETER;
  *bytes = (uint32_t)symbol->bytes;
  return true;
}

static void copy_run(struct ptx_team *t, const struct ptx_instruction *i, uint32_t first,
                     uint32_t end) {
  ptx_copy_local(t, first, end, i->operand[0], i->operand[1], i->operand[2]);
}

static void emit_copy(struct ptx_decoder *d, const struct ptx_instruction *like, uint32_t to,
                      uint32_t from, uint32_t bytes) {
  struct ptx_instruction copy = *like;
  copy.kind = PTX_PLAIN;
  copy.run = copy_run;
  copy.operand[0] = to;
  copy.operand[1] = from;
  copy.operand[2] = bytes;
  emit(d, &copy);
}

/* call (result), function, (arguments): arguments and result are copied between places in local
 * memory. */
static void call(struct ptx_decoder *d, struct ptx_instruction *i) {
  struct ptx_parser *p = &d->parser;
  uint32_t result_at = PTX_NONE, result_bytes = 0, from, bytes;
  if (ptx_eat(p, '(')) {
    if (!lane_parameter(d, ptx_word_read(p), &result_at, &result_bytes))
      return;
    if (!ptx_eat(p, ')') || !ptx_eat(p, ','))
      ptx_error(p, "call (result), function is expected");
  }
  struct ptx_word name = ptx_word_read(p);
  struct ptx_function *callee = ptx_function_named(d->parser.module, name);
  const char *why = !callee             ? "indirect call through"
                    : !callee->has_body ? "call of a function without a body:"
                    : callee->refused   ? "call of a function with an unknown directive:"
                                        : NULL;
  uint32_t index = why ? 0 : function_place(d, callee);
  if (!why && !p->failed && !d->frames[index].finished)
    why = "call of a function that is running, recursion:";
  if (why) {
    char message[256];
    snprintf(message, sizeof message, "%s %.*s", why, name.length > 120 ? 120 : (int)name.length,
             name.text);
    ptx_skip_past(p, ';');
    emit_unsupported(d, i, message);
    return;
  }
  if (p->failed)
    return;
  struct ptx_frame frame = d->frames[index];
  int count = 0;
  if (ptx_eat(p, ',')) {
    if (!ptx_eat(p, '('))
      ptx_error(p, "( is expected before a call's arguments");
    while (!p->failed && !ptx_eat(p, ')')) {
      if (!lane_parameter(d, ptx_word_read(p), &from, &bytes))
        return;
      if (count == callee->parameter_count || bytes != callee->parameters[count].bytes) {
        ptx_error(p, "the arguments don't match the parameters of %.200s", callee->name);
        return;
      }
      emit_copy(d, i, frame.parameters_at + callee->parameters[count].offset, from, bytes);
      count++;
      ptx_eat(p, ',');
    }
  }
  if (count != callee->parameter_count || result_bytes > callee->result_bytes)
    ptx_error(p, "the arguments don't match the parameters of %.200s", callee->name);
  if (!ptx_eat(p, ';'))
    ptx_error(p, "; is expected after a call");
  i->kind = PTX_CALL;
  i->target = frame.start;
  i->operand[0] = frame.return_register;
  emit(d, i);
  if (result_at != PTX_NONE)
    emit_copy(d, i, result_at, frame.result_at, result_bytes);
}

static const char *read_modifiers(struct ptx_instruction *i, struct ptx_word word) {
  const char *at = word.text, *end = word.text + word.length;
  while (at < end) {
    struct ptx_word part = {at + 1, 0};
    while (part.text + part.length < end && part.text[part.length] != '.')
      part.length++;
    at = part.text + part.length;
    enum ptx_type type = ptx_type_named(part);
    if (type) {
      if (!i->type)
        i->type = (uint8_t)type;
      else if (!i->type2)
        i->type2 = (uint8_t)type;
      else if (i->opcode != PTX_OP_vshl && i->opcode != PTX_OP_vshr)
        return "more types than are known for it";
      continue;
    }
    size_t m = 0, known = sizeof modifiers / sizeof *modifiers;
    while (m < known && !(ptx_word_is(part, modifiers[m].name) &&
                          modifiers[m].group & (opcodes[i->opcode].modifiers | PTX_M_HINT)))
      m++;
    if (m == known)
      return "a modifier that isn't known for it";
    i->flags |= modifiers[m].group;
    switch (modifiers[m].group) {
    case PTX_M_ROUND:
    case PTX_M_TO_INTEGER:
      i->rounding = modifiers[m].value;
      break;
    case PTX_M_SPACE:
      if (i->opcode != PTX_OP_cp) /* names both, always the same */
        i->space = modifiers[m].value;
      break;
    case PTX_M_VECTOR:
      i->vector = modifiers[m].value;
      break;
    case PTX_M_COMPARE:
      i->compare = modifiers[m].value;
      break;
    case PTX_M_COMBINE:
      i->combine = modifiers[m].value;
      break;
    case PTX_M_ATOMIC:
    case PTX_M_SHUFFLE:
    case PTX_M_VOTE:
    case PTX_M_TEST:
      i->action = modifiers[m].value;
      break;
    default:
      break;
    }
  }
  return NULL;
}

static void generic_instruction(struct ptx_decoder *d, struct ptx_instruction *i) {
  struct ptx_parser *p = &d->parser;
  struct ptx_operand operands[8], items[8][4], second = {0};
  uint32_t count = 0;
  while (!ptx_eat(p, ';') && !p->failed) {
    if (count == 8) {
      ptx_skip_past(p, ';');
      emit_unsupported(d, i, "more operands than are known for it");
      return;
    }
    operand(d, &operands[count], items[count]);
    count++;
    if (ptx_eat(p, '|'))
      operand(d, &second, NULL);
    if (!ptx_eat(p, ',')) {
      if (!ptx_eat(p, ';'))
        ptx_error(p, "; is expected at '%.20s'", p->at);
      break;
    }
  }
  if (p->failed)
    return;
  const char *why = ptx_lower(d, i, operands, count, &second);
  if (why)
    emit_unsupported(d, i, why);
  else if (i->run || i->kind != PTX_PLAIN)
    emit(d, i);
}

static void instruction(struct ptx_decoder *d, struct ptx_word word, uint32_t guard, bool negated) {
  struct ptx_parser *p = &d->parser;
  struct ptx_instruction i = {
      .guard = guard,
      .guard_negated = negated,
      .line = p->line,
      .text = word.text,
      .vector = 1,
      .opcode = PTX_OPCODES,
      .address = PTX_NONE,
      .operand = {PTX_NONE, PTX_NONE, PTX_NONE, PTX_NONE, PTX_NONE, PTX_NONE}};
  struct ptx_word name = {word.text, 0};
  while (name.length < word.length && name.text[name.length] != '.')
    name.length++;
  for (size_t k = 0; k < PTX_OPCODES; k++)
    if (ptx_word_is(name, opcodes[k].name))
      i.opcode = (uint8_t)k;
  const char *why = "the interpreter has no such instruction";
  if (i.opcode != PTX_OPCODES)
    why = read_modifiers(&i, (struct ptx_word){word.text + name.length, word.length - name.length});
  if (why) {
    ptx_skip_past(p, ';');
    emit_unsupported(d, &i, why);
  } else if (i.opcode == PTX_OP_call) {
    call(d, &i);
  } else if (i.opcode == PTX_OP_bra) {
    i.kind = PTX_BRANCH;
    jump_to(d, ptx_word_read(p), false, d->body->count);
    emit(d, &i);
    if (!ptx_eat(p, ';'))
      ptx_error(p, "; is expected after a label");
  } else if (i.opcode == PTX_OP_ret) {
    const struct ptx_frame *frame = &d->frames[d->body->frame];
    i.kind = frame->function->entry ? PTX_EXIT : PTX_RETURN;
    i.operand[0] = frame->return_register;
    emit(d, &i);
    if (!ptx_eat(p, ';'))
      ptx_error(p, "; is expected after ret");
  } else {
    generic_instruction(d, &i);
  }
}

/* label: .branchtargets a, b, c; */
static void branch_targets(struct ptx_decoder *d, struct ptx_word label) {
  struct ptx_parser *p = &d->parser;
  struct ptx_program *program = d->program;
  struct ptx_symbol *symbol = ptx_symbol_add(&d->body->symbols, label, PTX_TARGETS);
  symbol->first_target = program->target_count;
  do {
    program->targets = ptx_grow(program->targets, program->target_count, &program->target_capacity,
                                sizeof *program->targets);
    jump_to(d, ptx_word_read(p), true, program->target_count++);
    symbol->count++;
  } while (ptx_eat(p, ','));
  if (!ptx_eat(p, ';'))
    ptx_error(p, "; is expected after .branchtargets");
}

const struct ptx_symbol *ptx_decode_targets(struct ptx_decoder *d, struct ptx_word name) {
  const struct ptx_symbol *symbol = ptx_symbol_find(&d->body->symbols, name);
  return symbol && symbol->kind == PTX_TARGETS ? symbol : NULL;
}

static void directive(struct ptx_decoder *d, struct ptx_word word) {
  struct ptx_parser *p = &d->parser;
  if (ptx_word_is(word, ".reg"))
    registers(d);
  else if (ptx_word_is(word, ".shared"))
    variable_in_body(d, PTX_SHARED);
  else if (ptx_word_is(word, ".local"))
    variable_in_body(d, PTX_LOCAL);
  else if (ptx_word_is(word, ".param"))
    variable_in_body(d, PTX_PARAM);
  else if (ptx_word_is(word, ".loc"))
    p->at += strcspn(p->at, "\n");
  else if (ptx_word_is(word, ".pragma"))
    ptx_skip_past(p, ';');
  else
    ptx_error(p, "unknown directive '%.*s'", (int)word.length, word.text);
}

static void label(struct ptx_decoder *d, struct ptx_word name) {
  struct ptx_parser *p = &d->parser;
  ptx_space_skip(p);
  if (*p->at == '.') {
    struct ptx_parser after = *p;
    struct ptx_word word = ptx_word_read(&after);
    if (ptx_word_is(word, ".branchtargets")) {
      *p = after;
      branch_targets(d, name);
      return;
    }
    if (ptx_word_is(word, ".callprototype") || ptx_word_is(word, ".calltargets")) {
      ptx_skip_past(p, ';'); /* the indirect calls that use it are unsupported */
      return;
    }
  }
  struct ptx_symbol *symbol = ptx_symbol_add(&d->body->labels, name, PTX_TARGETS);
  symbol->at = d->body->count;
  symbol->bytes = d->body->scope;
}

/* What a block declares is known inside it only. */
static void block(struct ptx_decoder *d) {
  struct ptx_parser *p = &d->parser;
  struct ptx_body *body = d->body;
  uint32_t outer = body->scope, keep = body->symbols.count;
  body->scope_parents = ptx_grow(body->scope_parents, body->scope_count, &body->scope_capacity,
                                 sizeof *body->scope_parents);
  body->scope_parents[body->scope_count] = outer;
  body->scope = body->scope_count++;
  while (!p->failed && !ptx_eat(p, '}')) {
    if (ptx_eat(p, ';'))
      continue;
    if (ptx_eat(p, '{')) {
      block(d);
      continue;
    }
    struct ptx_operand guard = {0};
    bool guarded = ptx_eat(p, '@');
    bool negated = guarded && ptx_eat(p, '!');
    struct ptx_word word = ptx_word_read(p);
    if (guarded) {
      if (!register_named(d, word, &guard) || guard.type != PTX_pred)
        ptx_error(p, "'%.*s' isn't a predicate", (int)word.length, word.text);
      word = ptx_word_read(p);
    }
    if (!word.length)
      ptx_error(p, "a statement is expected at '%.20s'", p->at);
    else if (*word.text == '.' && !guarded)
      directive(d, word);
    else if (!guarded && ptx_eat(p, ':'))
      label(d, word);
    else
      instruction(d, word, guarded ? guard.reg : PTX_NONE, negated);
  }
  ptx_symbols_drop(&body->symbols, keep);
  body->scope = outer;
}

static bool label_place(const struct ptx_body *body, const struct fixup *f, uint32_t *place) {
  for (uint32_t scope = f->scope;; scope = body->scope_parents[scope]) {
    const struct ptx_symbol *symbol = ptx_symbol_find(&body->labels, f->label);
    while (symbol && !(symbol->bytes == scope && symbol->name.length == f->label.length &&
                       !memcmp(symbol->name.text, f->label.text, f->label.length)))
      symbol = symbol->hash_next ? &body->labels.items[symbol->hash_next - 1] : NULL;
    if (symbol) {
      *place = (uint32_t)symbol->at;
      return true;
    }
    if (body->scope_parents[scope] == scope)
      return false;
  }
}

/* Appends the body to the program: indices in the body become indices in the program. */
static void append(struct ptx_decoder *d) {
  struct ptx_body *body = d->body;
  struct ptx_program *program = d->program;
  uint32_t start = program->count;
  for (uint32_t k = 0; k < body->fixup_count && !d->parser.failed; k++) {
    const struct fixup *f = &body->fixups[k];
    uint32_t place = 0;
    d->parser.line = f->line;
    if (!label_place(body, f, &place))
      ptx_error(&d->parser, "no label '%.*s'", (int)f->label.length, f->label.text);
    else if (f->table)
      program->targets[f->index] = start + place;
    else
      body->code[f->index].target = start + place;
  }
  for (uint32_t k = 0; k < body->count; k++) {
    program->code =
        ptx_grow(program->code, program->count, &program->capacity, sizeof *program->code);
    program->code[program->count++] = body->code[k];
  }
  d->frames[body->frame].start = start;
}

static void body_free(struct ptx_body *body) {
  ptx_symbols_drop(&body->symbols, 0);
  ptx_symbols_drop(&body->labels, 0);
  free(body->symbols.items);
  free(body->labels.items);
  free(body->code);
  free(body->scope_parents);
  free(body->fixups);
  free(body);
}

static void function_body(struct ptx_decoder *d, uint32_t index) {
  struct ptx_function *function = d->frames[index].function;
  struct ptx_parser *p = &d->parser, saved = d->parser;
  struct ptx_body *body = calloc(1, sizeof *body);
  body->caller = d->body;
  body->frame = index;
  d->body = body;
  if (function->result_text.length) {
    p->at = function->result_text.text;
    parameters(d, false, d->frames[index].result_at);
  }
  p->at = function->text;
  p->line = function->line;
  parameters(d, function->entry, d->frames[index].parameters_at);
  while (!p->failed && !ptx_eat(p, '{')) { /* directives, checked by ptx_module.c */
    if (!ptx_eat(p, ',') && !ptx_word_read(p).length)
      ptx_skip_past(p, ';');
  }
  block(d);
  struct ptx_instruction end = {.kind = function->entry ? PTX_EXIT : PTX_RETURN,
                                .guard = PTX_NONE,
                                .line = p->line,
                                .text = "ret;",
                                .operand = {d->frames[index].return_register}};
  emit(d, &end);
  append(d);
  d->frames[index].finished = true;
  d->body = body->caller;
  body_free(body);
  saved.failed = p->failed;
  *p = saved;
}

/* The frame of a function, its body decoded. */
static uint32_t function_place(struct ptx_decoder *d, struct ptx_function *function) {
  for (uint32_t k = 0; k < d->frame_count; k++)
    if (d->frames[k].function == function)
      return k;
  d->frames = ptx_grow(d->frames, d->frame_count, &d->frame_capacity, sizeof *d->frames);
  uint32_t index = d->frame_count++;
  struct ptx_frame *frame = &d->frames[index];
  memset(frame, 0, sizeof *frame);
  frame->function = function;
  frame->return_register = PTX_NONE;
  if (!function->entry) {
    frame->parameters_at = local_place(d->program, function->parameter_bytes, 16);
    frame->result_at = local_place(d->program, function->result_bytes, 16);
    frame->return_register = ptx_register_new(d->program, 4);
  }
  function_body(d, index);
  return index;
}

static struct ptx_program *decode(struct ptx_function *entry, char *error, size_t error_bytes) {
  struct ptx_module *module = entry->module;
  struct ptx_program *program = calloc(1, sizeof *program);
  struct ptx_decoder *d = calloc(1, sizeof *d);
  d->program = program;
  d->parser = (struct ptx_parser){module, entry->text, entry->line, error, error_bytes, false};
  memset(d->special_offsets, 0xff, sizeof d->special_offsets);
  program->static_shared_bytes = (uint32_t)ptx_align(module->shared_bytes, 16);
  program->dynamic_alignment = module->dynamic_alignment;
  if (entry->refused)
    ptx_error(&d->parser, "unknown directive %s", entry->refused);
  else
    function_place(d, entry);
  bool failed = d->parser.failed;
  if (!failed)
    program->start = d->frames[0].start;
  program->local_bytes = (uint32_t)ptx_align(program->local_bytes, 16);
  free(d->frames);
  free(d->constant_next);
  free(d);
  if (!failed)
    return program;
  ptx_program_free(program);
  return NULL;
}

struct ptx_program *ptx_program_of(struct ptx_function *entry, char *error, size_t error_bytes) {
  static pthread_mutex_t decoding = PTHREAD_MUTEX_INITIALIZER; /* protects entry->program */
  pthread_mutex_lock(&decoding);
  if (!entry->program)
    entry->program = decode(entry, error, error_bytes);
  struct ptx_program *program = entry->program;
  pthread_mutex_unlock(&decoding);
  return program;
}

void ptx_program_free(struct ptx_program *program) {
  if (!program)
    return;
  for (uint32_t i = 0; i < program->message_count; i++)
    free(program->messages[i]);
  free(program->messages);
  free(program->code);
  free(program->constants);
  free(program->specials);
  free(program->targets);
  free(program);
}
