/* The statements of a body: declarations, labels, blocks, and instructions, which go to
   ptx_instruction.c. Called by ptx_decode.c for each function. */
#include "ptx_decode.h"
#include <stdlib.h>
#include <string.h>

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
      at = ptx_local_place(program, variable.bytes, variable.alignment);
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
   memory. */
void ptx_parameters_place(struct ptx_decoder *d, bool entry, uint32_t base) {
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

/* label: .branchtargets a, b, c; */
static void branch_targets(struct ptx_decoder *d, struct ptx_word label) {
  struct ptx_parser *p = &d->parser;
  struct ptx_program *program = d->program;
  struct ptx_symbol *symbol = ptx_symbol_add(&d->body->symbols, label, PTX_TARGETS);
  symbol->first_target = program->target_count;
  do {
    program->targets = ptx_grow(program->targets, program->target_count, &program->target_capacity,
                                sizeof *program->targets);
    ptx_jump_to(d, ptx_word_read(p), true, program->target_count++);
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
void ptx_block_read(struct ptx_decoder *d) {
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
      ptx_block_read(d);
      continue;
    }
    struct ptx_operand guard = {0};
    bool guarded = ptx_eat(p, '@');
    bool negated = guarded && ptx_eat(p, '!');
    struct ptx_word word = ptx_word_read(p);
    if (guarded) {
      if (!ptx_register_named(d, word, &guard) || guard.type != PTX_pred)
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
      ptx_instruction_read(d, word, guarded ? guard.reg : PTX_NONE, negated);
  }
  ptx_symbols_drop(&body->symbols, keep);
  body->scope = outer;
}
