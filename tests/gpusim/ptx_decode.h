/* What the rooms of the decoder share: ptx_decode.c (functions to a program), ptx_body.c
   (statements), ptx_instruction.c (mnemonics, calls), ptx_operand.c (operands and their places),
   ptx_lower.c and ptx_lower_special.c (operands to register offsets, handlers). They work on one
   ptx_decoder, under the lock of ptx_program_of. */
#ifndef GPUSIM_PTX_DECODE_H
#define GPUSIM_PTX_DECODE_H
#include "ptx.h"

/* A function's place in the program. */
struct ptx_frame {
  struct ptx_function *function;
  bool finished; /* false while its own body is being read: a call of it is recursion */
  uint32_t start, parameters_at, result_at, return_register;
  /* What it and all that it reaches for the first time use: parts of the register file and of local
     memory, `_to` known once it is finished. */
  uint32_t registers_from, registers_to, local_from, local_to;
};
struct ptx_fixup { /* a jump to a label that may not have been met yet */
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
  struct ptx_fixup *fixups;
  uint32_t fixup_count, fixup_capacity;
};

/* An operand as written. */
enum ptx_operand_kind {
  PTX_O_SINK,
  PTX_O_REGISTER,
  PTX_O_IMMEDIATE,
  PTX_O_SPECIAL,
  PTX_O_SYMBOL,
  PTX_O_VECTOR,
  PTX_O_NAME
};
struct ptx_operand {
  enum ptx_operand_kind kind;
  bool memory;  /* in square brackets: `offset` is added */
  bool negated; /* !%p */
  bool decimal; /* immediate written as a decimal float: `value` holds a double */
  enum ptx_type type;
  uint32_t reg;   /* offset in the register file */
  uint64_t value; /* immediate, or a symbol's address */
  int64_t offset;
  struct ptx_symbol symbol; /* a copy */
  enum ptx_special special;
  struct ptx_word name;
  uint32_t count; /* vector */
  struct ptx_operand *items;
};
struct ptx_decoder {
  struct ptx_parser parser;
  struct ptx_program *program;
  struct ptx_body *body; /* of the function at hand (ptx_decode.c) */
  struct ptx_frame *frames;
  uint32_t frame_count, frame_capacity;
  uint32_t constant_heads[PTX_BUCKETS]; /* from one */
  uint32_t *constant_next;
  uint32_t constant_next_capacity;
  uint32_t special_offsets[64];
};
/* Fills `i` from the operands as written, or returns why that isn't supported. */
const char *ptx_lower(struct ptx_decoder *, struct ptx_instruction *i, struct ptx_operand *,
                      uint32_t count, struct ptx_operand *second_result);
/* The list that .branchtargets declared under this name, or NULL. */
const struct ptx_symbol *ptx_decode_targets(struct ptx_decoder *, struct ptx_word name);
uint32_t ptx_register_new(struct ptx_program *, uint32_t bytes);
uint32_t ptx_constant_place(struct ptx_decoder *, uint32_t bytes, uint64_t value,
                            bool dynamic_shared);
uint32_t ptx_special_place(struct ptx_decoder *, enum ptx_special);
/* The address that a variable's name, with its offset, means. */
static inline uint64_t ptx_symbol_address(const struct ptx_operand *o) {
  return o->symbol.at + (uint64_t)o->offset;
}

uint32_t ptx_local_place(struct ptx_program *, size_t bytes, size_t alignment);
void ptx_operand_read(struct ptx_decoder *, struct ptx_operand *, struct ptx_operand *items);
bool ptx_register_named(struct ptx_decoder *, struct ptx_word name, struct ptx_operand *);
struct ptx_instruction *ptx_emit(struct ptx_decoder *, const struct ptx_instruction *like);
void ptx_emit_unsupported(struct ptx_decoder *, struct ptx_instruction *, const char *why);
/* Entry `index` of the program's targets, or instruction `index` of the body, jumps to `label`. */
void ptx_jump_to(struct ptx_decoder *, struct ptx_word label, bool table, uint32_t index);
void ptx_instruction_read(struct ptx_decoder *, struct ptx_word word, uint32_t guard, bool negated);
/* Statements up to the closing brace; what the block declares is known inside it only. */
void ptx_block_read(struct ptx_decoder *);
/* Names the parameters of a function: an entry's lie in the launch's buffer, others from `base`
   on in local memory. */
void ptx_parameters_place(struct ptx_decoder *, bool entry, uint32_t base);
/* The frame of a function, its body decoded (or being decoded: recursion). */
uint32_t ptx_function_place(struct ptx_decoder *, struct ptx_function *);
/* Fuses products and sums of the finished program (ptx_contract.c). */
void ptx_contract(struct ptx_program *);

/* ---- lowering ---- */
/* The register array that holds an operand, `bytes` a lane; `type` says how to read a decimal
   fraction. These return NULL or the reason why the operand isn't supported. */
const char *ptx_source_place(struct ptx_decoder *, const struct ptx_operand *, uint32_t bytes,
                             enum ptx_type type, uint32_t *offset);
const char *ptx_result_place(const struct ptx_operand *, uint32_t bytes, bool predicate,
                             uint32_t *offset);
const char *ptx_lower_access(struct ptx_decoder *, struct ptx_instruction *,
                             const struct ptx_operand *, uint32_t count, bool store);
const char *ptx_lower_atomic(struct ptx_decoder *, struct ptx_instruction *,
                             const struct ptx_operand *, uint32_t count, bool result);
const char *ptx_lower_copy(struct ptx_decoder *, struct ptx_instruction *,
                           const struct ptx_operand *, uint32_t count);
const char *ptx_lower_address_test(struct ptx_decoder *, struct ptx_instruction *,
                                   const struct ptx_operand *, uint32_t count);
const char *ptx_lower_indexed_branch(struct ptx_decoder *, struct ptx_instruction *,
                                     const struct ptx_operand *, uint32_t count);
const char *ptx_lower_barrier(struct ptx_decoder *, struct ptx_instruction *,
                              const struct ptx_operand *, uint32_t count);
const char *ptx_lower_warpwide(struct ptx_decoder *, struct ptx_instruction *,
                               const struct ptx_operand *, uint32_t count,
                               const struct ptx_operand *second);
#endif
