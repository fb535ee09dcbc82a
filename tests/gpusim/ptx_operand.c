/* Operands as written, and the places in register file and local memory that names get. Called
   by the other rooms of the decoder. A register gets its place when it is first used, so that
   those used together lie together; equal constants share one. */
#include "ptx_decode.h"
#include <stdlib.h>
#include <string.h>

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

/* ---- places in the register file ---- */

uint32_t ptx_register_new(struct ptx_program *program, uint32_t bytes) {
  uint32_t offset = program->register_bytes;
  program->register_bytes += bytes * PTX_LANES;
  program->cells = ptx_grow(program->cells, program->cell_count, &program->cell_capacity,
                            sizeof *program->cells);
  program->cells[program->cell_count++] = (struct ptx_cell){offset, bytes};
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

uint32_t ptx_local_place(struct ptx_program *program, size_t bytes, size_t alignment) {
  uint32_t at = (uint32_t)ptx_align(program->local_bytes, alignment);
  program->local_bytes = at + (uint32_t)bytes;
  return at;
}

/* ---- operands ---- */

static struct ptx_symbol *find(struct ptx_decoder *d, struct ptx_word name) {
  struct ptx_symbol *symbol = ptx_symbol_find(&d->body->symbols, name);
  return symbol ? symbol : ptx_symbol_find(&d->parser.module->symbols, name);
}

/* The register that a name like %r12 means, from the declaration %r<200> or %r12. */
bool ptx_register_named(struct ptx_decoder *d, struct ptx_word name, struct ptx_operand *o) {
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
  if (ptx_register_named(d, word, o))
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

void ptx_operand_read(struct ptx_decoder *d, struct ptx_operand *o, struct ptx_operand *items) {
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
      ptx_operand_read(d, &items[o->count++], NULL);
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
