/* From text to program: an entry and all functions it reaches. A callee is placed before its
   callers, so that the scheduler's rule "lowest instruction first" lets calls finish before the
   lanes that didn't call run on. Called by ptx_run.c. */
#include "ptx_decode.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static bool label_place(const struct ptx_body *body, const struct ptx_fixup *f, uint32_t *place) {
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
    const struct ptx_fixup *f = &body->fixups[k];
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
    ptx_parameters_place(d, false, d->frames[index].result_at);
  }
  p->at = function->text;
  p->line = function->line;
  ptx_parameters_place(d, function->entry, d->frames[index].parameters_at);
  while (!p->failed && !ptx_eat(p, '{')) { /* directives, checked by ptx_module.c */
    if (!ptx_eat(p, ',') && !ptx_word_read(p).length)
      ptx_skip_past(p, ';');
  }
  ptx_block_read(d);
  struct ptx_instruction end = {.kind = function->entry ? PTX_EXIT : PTX_RETURN,
                                .guard = PTX_NONE,
                                .line = p->line,
                                .text = "ret;",
                                .operand = {d->frames[index].return_register}};
  ptx_emit(d, &end);
  append(d);
  d->frames[index].finished = true;
  d->body = body->caller;
  body_free(body);
  saved.failed = p->failed;
  *p = saved;
}

/* The frame of a function, its body decoded. */
uint32_t ptx_function_place(struct ptx_decoder *d, struct ptx_function *function) {
  for (uint32_t k = 0; k < d->frame_count; k++)
    if (d->frames[k].function == function)
      return k;
  d->frames = ptx_grow(d->frames, d->frame_count, &d->frame_capacity, sizeof *d->frames);
  uint32_t index = d->frame_count++;
  struct ptx_frame *frame = &d->frames[index];
  memset(frame, 0, sizeof *frame);
  frame->function = function;
  frame->return_register = PTX_NONE;
  frame->registers_from = d->program->register_bytes;
  frame->local_from = d->program->local_bytes;
  if (!function->entry) {
    frame->parameters_at = ptx_local_place(d->program, function->parameter_bytes, 16);
    frame->result_at = ptx_local_place(d->program, function->result_bytes, 16);
    frame->return_register = ptx_register_new(d->program, 4);
  }
  function_body(d, index);
  d->frames[index].registers_to = d->program->register_bytes;
  d->frames[index].local_to = d->program->local_bytes;
  return index;
}

/* Calls of functions that weren't finished get their targets, and what is saved for them. */
static void recursive_calls(struct ptx_decoder *d) {
  for (uint32_t k = 0; k < d->program->count; k++) {
    struct ptx_instruction *i = &d->program->code[k];
    if (i->opcode != PTX_OP_call || i->action != PTX_CALL_RECURSIVE)
      continue;
    const struct ptx_frame *frame = &d->frames[i->target];
    i->target = frame->start;
    if (i->kind == PTX_CALL)
      continue;
    i->operand[0] = frame->registers_from;
    i->operand[1] = frame->registers_to;
    i->operand[2] = frame->local_from;
    i->operand[3] = frame->local_to;
    i->operand[4] = frame->result_at;
    i->operand[5] = frame->function->result_bytes;
  }
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
    ptx_function_place(d, entry);
  bool failed = d->parser.failed;
  if (!failed) {
    program->start = d->frames[0].start;
    recursive_calls(d);
  }
  program->local_bytes = (uint32_t)ptx_align(program->local_bytes, 16);
  free(d->frames);
  free(d->constant_next);
  free(d);
  if (!failed && gpusim_settings.contract)
    ptx_contract(program);
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

/* Where straight code begins: targets, and what follows a jump, call or wait. */
bool *ptx_beginnings(const struct ptx_program *program) {
  bool *begins = calloc(program->count + 1u, sizeof *begins);
  if (!begins)
    return NULL;
  for (uint32_t k = 0; k < program->target_count; k++)
    begins[program->targets[k]] = true;
  for (uint32_t k = 0; k < program->count; k++) {
    const struct ptx_instruction *i = &program->code[k];
    if (i->kind == PTX_BRANCH || i->kind == PTX_CALL)
      begins[i->target] = true;
    if (i->kind > PTX_ACCESS)
      begins[k + 1] = true;
  }
  return begins;
}

void ptx_program_free(struct ptx_program *program) {
  if (!program)
    return;
  ptx_native_free(program);
  for (uint32_t i = 0; i < program->message_count; i++)
    free(program->messages[i]);
  free(program->messages);
  free(program->code);
  free(program->cells);
  free(program->constants);
  free(program->specials);
  free(program->targets);
  free(program);
}
