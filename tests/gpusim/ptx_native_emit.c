/* A program's pieces as C functions. Called by ptx_native.c. A piece is a straight run of
   instructions that have an expression (ptx_native_expression.c); accesses stay between the pieces,
   with the interpreter, so that memory sees the same order in both engines and every check is the
   same code. A piece is one loop over lanes: registers are read once, at the first use, and written
   once, unless nothing else in the program names them. */
#include "ptx_native.h"
#include <stdlib.h>
#include <string.h>

enum { LEAST = 2, MOST = 400 }; /* instructions of a piece; larger loops aren't vectorised well */
#define MANY (UINT32_MAX - 1)

uint32_t *ptx_native_pieces(const struct ptx_program *program) {
  bool *begins = ptx_beginnings(program);
  uint32_t *lengths = calloc(program->count + 1u, sizeof *lengths);
  char *code = NULL;
  size_t size;
  FILE *sink = open_memstream(&code, &size);
  for (uint32_t k = 0, start = 0; begins && lengths && sink && k < program->count; k++) {
    bool has = ptx_native_expression(&program->code[k], sink);
    rewind(sink);
    if (begins[k] || k - start == MOST)
      start = k;
    if (has)
      lengths[start]++;
    else
      start = k + 1;
  }
  for (uint32_t k = 0; lengths && k < program->count; k++)
    if (lengths[k] < LEAST)
      lengths[k] = 0;
  bool whole = begins && sink;
  if (sink)
    fclose(sink);
  free(code);
  free(begins);
  if (whole)
    return lengths;
  free(lengths);
  return NULL;
}

/* What is known of registers, by cell: an index into program->cells. */
struct names {
  const struct ptx_program *program;
  uint32_t *piece; /* that alone names the register, MANY, or PTX_NONE */
  uint8_t *state;  /* in the piece at hand */
};
enum { DECLARED = 1, WRITTEN = 2, LOADED = 4 };

/* Cells lie in the order of their offsets. */
static uint32_t cell_of(const struct ptx_program *program, uint32_t offset) {
  uint32_t low = 0, high = program->cell_count;
  while (low < high) {
    uint32_t middle = (low + high) / 2;
    if (program->cells[middle].offset < offset)
      low = middle + 1;
    else
      high = middle;
  }
  return low < program->cell_count && program->cells[low].offset == offset ? low : PTX_NONE;
}

static void name(struct names *n, uint32_t offset, uint32_t piece) {
  uint32_t cell = cell_of(n->program, offset);
  if (cell != PTX_NONE)
    n->piece[cell] = n->piece[cell] == PTX_NONE || n->piece[cell] == piece ? piece : MANY;
}

/* Operands that aren't registers may be taken for some: then these are written needlessly. */
static void name_all(struct names *n, const uint32_t *lengths) {
  const struct ptx_program *program = n->program;
  uint32_t piece = MANY, left = 0;
  for (uint32_t k = 0; k < program->count; k++) {
    const struct ptx_instruction *i = &program->code[k];
    if (lengths[k]) {
      piece = k;
      left = lengths[k];
    }
    uint32_t here = left ? piece : MANY;
    left -= left > 0;
    for (int o = 0; o < 6; o++)
      name(n, i->operand[o], here);
    name(n, i->guard, here);
    name(n, i->address, here);
    name(n, i->member, here);
  }
}

static const struct ptx_constant *constant_at(const struct ptx_program *program, uint32_t offset) {
  for (uint32_t k = 0; k < program->constant_count; k++)
    if (program->constants[k].offset == offset && !program->constants[k].dynamic_shared)
      return &program->constants[k];
  return NULL;
}

static void declare(struct names *n, uint32_t offset, bool read, FILE *out) {
  uint32_t cell = cell_of(n->program, offset), bits = n->program->cells[cell].bytes * 8;
  const struct ptx_constant *c = constant_at(n->program, offset);
  if (n->state[cell])
    return;
  n->state[cell] = (uint8_t)(DECLARED | (read && !c ? LOADED : 0));
  fprintf(out, "    uint%u_t v%u", bits, offset);
  if (c)
    fprintf(out, " = UINT64_C(%llu);\n", (unsigned long long)c->value);
  else if (read)
    fprintf(out, " = ((const uint%u_t *)(R + %u))[l];\n", bits, offset);
  else
    fputs(";\n", out);
}

static void emit_instruction(struct names *n, const struct ptx_instruction *i, FILE *out) {
  static const char operand_names[] = "dxyz";
  const uint32_t result = cell_of(n->program, i->operand[0]);
  const bool guarded = i->guard != PTX_NONE;
  for (int o = 1; o < 4; o++)
    if (i->operand[o] != PTX_NONE)
      declare(n, i->operand[o], true, out);
  if (guarded)
    declare(n, i->guard, true, out);
  declare(n, i->operand[0], guarded, out);
  fputs("    {", out);
  for (int o = 1; o < 4; o++)
    if (i->operand[o] != PTX_NONE)
      fprintf(out, " const uint%u_t %c = v%u;",
              n->program->cells[cell_of(n->program, i->operand[o])].bytes * 8, operand_names[o],
              i->operand[o]);
  fprintf(out, " const uint%u_t d = (uint%u_t)(", n->program->cells[result].bytes * 8,
          n->program->cells[result].bytes * 8);
  ptx_native_expression(i, out);
  if (guarded)
    fprintf(out, "); v%u = v%u == %d ? d : v%u; }\n", i->operand[0], i->guard, !i->guard_negated,
            i->operand[0]);
  else
    fprintf(out, "); v%u = d; }\n", i->operand[0]);
  n->state[result] |= WRITTEN;
}

static void emit_piece(struct names *n, uint32_t start, uint32_t length, FILE *out) {
  const struct ptx_program *program = n->program;
  memset(n->state, 0, program->cell_count);
  fprintf(out, "void s%u(uint8_t *R, uint32_t first, uint32_t end) {\n  EACH_LANE {\n", start);
  for (uint32_t k = 0; k < length; k++)
    emit_instruction(n, &program->code[start + k], out);
  for (uint32_t k = 0; k < length; k++) {
    const struct ptx_instruction *i = &program->code[start + k];
    uint32_t cell = cell_of(program, i->operand[0]);
    if (!(n->state[cell] & WRITTEN))
      continue;
    n->state[cell] &= (uint8_t)~WRITTEN;
    /* Named here only, and not read before it is written: nobody will ask for it. */
    bool unread = n->piece[cell] == start && !(n->state[cell] & LOADED);
    if (!unread)
      fprintf(out, "    ((uint%u_t *)(R + %u))[l] = v%u;\n", program->cells[cell].bytes * 8,
              i->operand[0], i->operand[0]);
  }
  fputs("  }\n}\n", out);
}

uint32_t ptx_native_emit(const struct ptx_program *program, const uint32_t *lengths, FILE *out) {
  uint32_t pieces = 0;
  struct names n = {.program = program,
                    .piece = malloc((program->cell_count + 1u) * sizeof *n.piece),
                    .state = calloc(program->cell_count + 1u, 1)};
  fputs(ptx_native_prelude, out);
  fputs("#ifdef __clang__\n#define EACH_LANE _Pragma(\"clang loop vectorize(assume_safety)\") "
        "for (uint32_t l = first; l < end; l++)\n#else\n#define EACH_LANE _Pragma(\"GCC ivdep\") "
        "for (uint32_t l = first; l < end; l++)\n#endif\n",
        out);
  if (n.piece && n.state) {
    memset(n.piece, 0xff, program->cell_count * sizeof *n.piece);
    name_all(&n, lengths);
    for (uint32_t k = 0; k < program->count; k++) {
      if (!lengths[k])
        continue;
      emit_piece(&n, k, lengths[k], out);
      pieces++;
    }
  }
  free(n.piece);
  free(n.state);
  return pieces;
}
