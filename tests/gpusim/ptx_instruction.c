/* One instruction: its mnemonic taken apart, its operands read and lowered; calls and jumps.
   Called by ptx_body.c. What isn't known becomes an instruction that fails when it is reached. */
#include "ptx_decode.h"
#include <stdio.h>
#include <string.h>

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

struct ptx_instruction *ptx_emit(struct ptx_decoder *d, const struct ptx_instruction *like) {
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
void ptx_emit_unsupported(struct ptx_decoder *d, struct ptx_instruction *i, const char *why) {
  struct ptx_program *program = d->program;
  program->messages = ptx_grow(program->messages, program->message_count,
                               &program->message_capacity, sizeof *program->messages);
  char *message = strdup(why ? why : "the interpreter has no such instruction");
  program->messages[program->message_count++] = message;
  i->kind = PTX_ACCESS;
  i->run = unsupported_run;
  i->message = message;
  ptx_emit(d, i);
  gpusim_trace(2, "PTX line %u: %.*s: %s", i->line, (int)strcspn(i->text, ";\n"), i->text, message);
}

void ptx_jump_to(struct ptx_decoder *d, struct ptx_word label, bool table, uint32_t index) {
  struct ptx_body *body = d->body;
  body->fixups =
      ptx_grow(body->fixups, body->fixup_count, &body->fixup_capacity, sizeof *body->fixups);
  body->fixups[body->fixup_count++] =
      (struct ptx_fixup){label, body->scope, d->parser.line, table, index};
}

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
  copy.action = 0;
  copy.run = copy_run;
  copy.operand[0] = to;
  copy.operand[1] = from;
  copy.operand[2] = bytes;
  ptx_emit(d, &copy);
}

/* Saves or restores what a function in the middle of a call of itself has in registers and local
   memory. Which parts that is is known when the program is (ptx_decode.c). */
static void emit_frame(struct ptx_decoder *d, const struct ptx_instruction *like, uint32_t frame,
                       ptx_handler run) {
  struct ptx_instruction i = *like;
  i.kind = PTX_ACCESS;
  i.run = run;
  i.target = frame;
  ptx_emit(d, &i);
}

/* call (result), function, (arguments): arguments and result are copied between places in local
   memory. */
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
  uint32_t index = why ? 0 : ptx_function_place(d, callee);
  bool recursive = !why && !p->failed && !d->frames[index].finished;
  if (recursive && i->guard != PTX_NONE)
    why = "recursive call under a predicate, of";
  if (why) {
    char message[256];
    snprintf(message, sizeof message, "%s %.*s", why, name.length > 120 ? 120 : (int)name.length,
             name.text);
    ptx_skip_past(p, ';');
    ptx_emit_unsupported(d, i, message);
    return;
  }
  if (p->failed)
    return;
  struct ptx_frame frame = d->frames[index];
  int count = 0;
  if (recursive) {
    i->action = PTX_CALL_RECURSIVE;
    emit_frame(d, i, index, ptx_frame_save);
  }
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
  i->target = recursive ? index : frame.start;
  i->operand[0] = frame.return_register;
  ptx_emit(d, i);
  if (recursive)
    emit_frame(d, i, index, ptx_frame_restore);
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
      ptx_emit_unsupported(d, i, "more operands than are known for it");
      return;
    }
    ptx_operand_read(d, &operands[count], items[count]);
    count++;
    if (ptx_eat(p, '|'))
      ptx_operand_read(d, &second, NULL);
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
    ptx_emit_unsupported(d, i, why);
  else if (i->run || i->kind != PTX_PLAIN)
    ptx_emit(d, i);
}

void ptx_instruction_read(struct ptx_decoder *d, struct ptx_word word, uint32_t guard,
                          bool negated) {
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
    ptx_emit_unsupported(d, &i, why);
  } else if (i.opcode == PTX_OP_call) {
    call(d, &i);
  } else if (i.opcode == PTX_OP_bra) {
    i.kind = PTX_BRANCH;
    ptx_jump_to(d, ptx_word_read(p), false, d->body->count);
    ptx_emit(d, &i);
    if (!ptx_eat(p, ';'))
      ptx_error(p, "; is expected after a label");
  } else if (i.opcode == PTX_OP_ret) {
    const struct ptx_frame *frame = &d->frames[d->body->frame];
    i.kind = frame->function->entry ? PTX_EXIT : PTX_RETURN;
    i.operand[0] = frame->return_register;
    ptx_emit(d, &i);
    if (!ptx_eat(p, ';'))
      ptx_error(p, "; is expected after ret");
  } else {
    generic_instruction(d, &i);
  }
}
