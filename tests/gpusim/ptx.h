/* What the rooms of the PTX interpreter share. Only ptx_*.c and image.c may include this.

     text    --ptx_module.c-->  module: functions and variables, bodies skipped
     entry   --ptx_decode.c-->  program: instructions of the entry and of all it calls, operands
                                resolved
     launch  --ptx_run.c-->     blocks of teams; ptx_exec_*.c, ptx_memory.c and ptx_warp.c carry
                                instructions out

   A team is up to PTX_LANES neighbouring threads of a block that run in lockstep while their
   program counters agree. A register is an array with one cell per lane, at a byte offset in the
   team's register file; constants and special registers are such arrays too, filled beforehand, so
   that every operand is read the same way:

     register file   [ %r1: lane 0 .. LANES-1 ][ %rd4: ... ][ 42: ... ][ %tid.x: ... ]
     local memory    lane 0: [ callee's variables | parameters | entry's ] lane 1: ...

   A handler works on the lanes [first, end) of one team; ranges of active lanes that aren't
   neighbours are separate calls. Each function has one static set of registers and a return address
   per lane; around a call of itself they are saved on a stack of the lane (ptx_frame.c). */
#ifndef GPUSIM_PTX_H
#define GPUSIM_PTX_H
#include "internal.h"
#include <pthread.h>

#define PTX_LANES 128u
#define PTX_WARP 32u
#define PTX_NONE UINT32_MAX

/* Generic addresses of spaces without memory of their own lie where no user address can. */
#define PTX_SHARED_WINDOW 0x7e00000000000000u
#define PTX_LOCAL_WINDOW 0x7d00000000000000u
#define PTX_PARAM_WINDOW 0x7c00000000000000u
#define PTX_WINDOW_BYTES 0x0000000100000000u
/* In the parameter space of a function other than the entry: offset in the lane's local memory +
   this. */
#define PTX_LANE_PARAMETER 0x40000000u

enum ptx_class { PTX_UNSIGNED, PTX_SIGNED, PTX_FLOAT };
enum ptx_type {
  PTX_untyped,
#define TYPE(name, bytes, class) PTX_##name,
#include "ptx_types.def"
#undef TYPE
};
enum ptx_opcode {
#define OPCODE(name, form, operands, modifiers) PTX_OP_##name,
#include "ptx_opcodes.def"
#undef OPCODE
  PTX_OPCODES
};
enum ptx_special {
#define SPECIAL(name, identifier, bytes, kind) PTX_##identifier,
#include "ptx_specials.def"
#undef SPECIAL
};
extern const uint8_t ptx_special_bytes[], ptx_special_kinds[];
enum ptx_special_kind { PTX_PER_LAUNCH, PTX_PER_BLOCK, PTX_PER_THREAD, PTX_PER_CLOCK };
enum ptx_space { PTX_GENERIC, PTX_GLOBAL, PTX_SHARED, PTX_LOCAL, PTX_CONST, PTX_PARAM };
enum ptx_round { PTX_RN = 1, PTX_RZ, PTX_RM, PTX_RP };
enum ptx_compare {
  PTX_EQ = 1,
  PTX_NE,
  PTX_LT,
  PTX_LE,
  PTX_GT,
  PTX_GE,
  PTX_EQU,
  PTX_NEU,
  PTX_LTU,
  PTX_LEU,
  PTX_GTU,
  PTX_GEU,
  PTX_NUM,
  PTX_NAN
};
enum ptx_combine { PTX_AND = 1, PTX_OR, PTX_XOR, PTX_POPC };
/* Of call, and of what saves and restores around it: the function is running already. */
enum { PTX_CALL_RECURSIVE = 1 };
/* Of fma: what GPUSIM_CONTRACT made of a difference. */
enum ptx_fused { PTX_FUSED_MINUS_ADDEND = 1, PTX_FUSED_MINUS_PRODUCT };
enum ptx_action { /* of atom, red, redux, shfl, vote, match, testp */
                  PTX_ADD = 1,
                  PTX_MIN,
                  PTX_MAX,
                  PTX_INC,
                  PTX_DEC,
                  PTX_CAS,
                  PTX_EXCH,
                  PTX_ATOMIC_AND,
                  PTX_ATOMIC_OR,
                  PTX_ATOMIC_XOR,
                  PTX_UP,
                  PTX_DOWN,
                  PTX_BUTTERFLY,
                  PTX_INDEX,
                  PTX_VOTE_ANY,
                  PTX_VOTE_ALL,
                  PTX_VOTE_UNI,
                  PTX_VOTE_BALLOT,
                  PTX_TEST_FINITE,
                  PTX_TEST_INFINITE,
                  PTX_TEST_NUMBER,
                  PTX_TEST_NAN,
                  PTX_TEST_NORMAL,
                  PTX_TEST_SUBNORMAL
};
/* Groups of modifiers; those without a value are the flags of an instruction. */
enum ptx_modifier {
  PTX_M_FTZ = 1 << 0,
  PTX_M_SAT = 1 << 1,
  PTX_M_APPROX = 1 << 2,
  PTX_M_LO = 1 << 3,
  PTX_M_HI = 1 << 4,
  PTX_M_WIDE = 1 << 5,
  PTX_M_CC = 1 << 6,
  PTX_M_NAN_WINS = 1 << 7,
  PTX_M_TO = 1 << 8,
  PTX_M_WRAP = 1 << 9,
  PTX_M_CLAMP = 1 << 10,
  PTX_M_LEFT = 1 << 11,
  PTX_M_RIGHT = 1 << 12,
  PTX_M_SHIFTAMT = 1 << 13,
  PTX_M_ASYNC = 1 << 14,
  PTX_M_WARP = 1 << 15,
  PTX_M_RED = 1 << 16,
  PTX_M_ARRIVE = 1 << 17,
  PTX_M_ROUND = 1 << 18,
  PTX_M_TO_INTEGER = 1 << 19,
  PTX_M_SPACE = 1 << 20,
  PTX_M_VECTOR = 1 << 21,
  PTX_M_COMPARE = 1 << 22,
  PTX_M_COMBINE = 1 << 23,
  PTX_M_ATOMIC = 1 << 24,
  PTX_M_SHUFFLE = 1 << 25,
  PTX_M_VOTE = 1 << 26,
  PTX_M_TEST = 1 << 27,
  PTX_M_HINT = 1 << 28,
  PTX_M_NEGATE = 1 << 29 /* the predicate operand is written !%p */
};

/* ---- module: one PTX text (ptx_module.c) ---- */
struct ptx_word {
  const char *text;
  size_t length;
};
enum ptx_symbol_kind { PTX_REGISTERS, PTX_VARIABLE, PTX_TARGETS };
struct ptx_symbol {
  struct ptx_word name;
  int32_t hash_next;
  uint32_t bucket;
  uint8_t kind, type;
  uint8_t space;
  bool dynamic;      /* extern shared array: starts where static shared memory ends */
  uint32_t count;    /* registers of %r<count>; 0 for a single register */
  uint32_t *offsets; /* their places in the register file, PTX_NONE until first used */
  uint64_t at;       /* variable: offset in its space, or device address */
  size_t bytes;
  uint32_t first_target; /* of .branchtargets */
};
#define PTX_BUCKETS 1024
struct ptx_symbols { /* a stack of names: what a block declares is dropped at its end */
  struct ptx_symbol *items;
  uint32_t count, capacity;
  int32_t heads[PTX_BUCKETS];
};
struct ptx_variable { /* a declaration: [.align n] .type name [count] */
  struct ptx_word name;
  enum ptx_type type;
  size_t alignment, bytes;
  bool array, unsized;
};
struct ptx_module;
struct ptx_function {
  struct ptx_function *next, *hash_next;
  struct ptx_module *module;
  char *name;
  bool entry, has_body;
  const char *
      text; /* its header, from the name's end: decoded when an entry that reaches it is launched */
  uint32_t line;
  struct ptx_word result_text; /* "(...)" before the name, if any */
  struct gpusim_parameter *parameters;
  int parameter_count, parameter_capacity;
  uint32_t parameter_bytes, result_bytes, static_shared_bytes;
  uint32_t max_threads, required_block[3];
  char *refused; /* why it can't be run */
  struct ptx_program *program;
};
struct ptx_parser {
  struct ptx_module *module;
  const char *at;
  uint32_t line;
  char *error;
  size_t error_bytes;
  bool failed;
};
struct ptx_module {
  char *text;
  struct ptx_function *functions;
  struct ptx_function *buckets[PTX_BUCKETS];
  struct ptx_symbols symbols;
  struct gpusim_global *globals;
  uint32_t shared_bytes, dynamic_alignment;
  uint32_t architecture; /* .target sm_90: 90 */
};
/* Takes `code` (allocated) over. NULL with `error` set when the text isn't PTX that can be read. */
struct ptx_module *ptx_module_parse(char *code, char *error, size_t error_bytes);
void ptx_module_free(struct ptx_module *);

/* Lexer (ptx_text.c) and declarations (ptx_declaration.c). */
void ptx_error(struct ptx_parser *, const char *format, ...) __attribute__((format(printf, 2, 3)));
void ptx_space_skip(struct ptx_parser *);
struct ptx_word ptx_word_read(struct ptx_parser *);
bool ptx_eat(struct ptx_parser *, char);
void ptx_skip_past(struct ptx_parser *, char);
bool ptx_word_is(struct ptx_word, const char *);
bool ptx_number(struct ptx_word, uint64_t *value, bool *is_decimal_float);
enum ptx_type ptx_type_named(struct ptx_word);
uint64_t ptx_integer_read(struct ptx_parser *);
void ptx_variable_read(struct ptx_parser *, struct ptx_variable *);
void ptx_initializer_read(struct ptx_parser *, const struct ptx_variable *, uint8_t *bytes);
struct ptx_symbol *ptx_symbol_find(const struct ptx_symbols *, struct ptx_word);
struct ptx_symbol *ptx_symbol_add(struct ptx_symbols *, struct ptx_word, enum ptx_symbol_kind);
void ptx_symbols_drop(struct ptx_symbols *, uint32_t keep);
struct ptx_function *ptx_function_named(struct ptx_module *, struct ptx_word);
extern const uint8_t ptx_type_bytes[], ptx_type_class[];
extern const char *const ptx_type_names[];
static inline size_t ptx_align(size_t value, size_t alignment) {
  return alignment ? (value + alignment - 1) / alignment * alignment : value;
}

/* ---- program: an entry ready to run (ptx_decode.c, ptx_lower.c) ---- */
struct ptx_team;
struct ptx_native;
struct ptx_instruction;
typedef void (*ptx_handler)(struct ptx_team *, const struct ptx_instruction *, uint32_t first,
                            uint32_t end);
enum ptx_kind {
  PTX_PLAIN,  /* lanes are independent, can't fail: run() */
  PTX_ACCESS, /* run() may fail the launch */
  PTX_BRANCH,
  PTX_BRANCH_INDEXED,
  PTX_CALL,
  PTX_RETURN,
  PTX_EXIT,
  PTX_BARRIER,
  PTX_WARPWIDE
};
struct ptx_instruction {
  ptx_handler run;
  uint8_t kind, opcode, type, type2;
  uint8_t space, vector, compare, combine;
  uint8_t rounding, action, bytes,
      address_bytes; /* bytes of a register that a load fills or a store reads */
  uint8_t operands;
  bool guard_negated;
  uint32_t flags;
  uint32_t guard;      /* predicate register or PTX_NONE */
  uint32_t operand[6]; /* offsets in the register file, PTX_NONE when absent; the opcode gives the
                          order */
  uint32_t address;    /* register with an address, PTX_NONE: `offset` is the whole address */
  int64_t offset;
  uint32_t target; /* branch, call: index of the next instruction; indexed branch: first of
                      `target_count` */
  uint32_t target_count;
  uint32_t member; /* warp-wide: register of the member mask */
  uint32_t line;
  const char *text;    /* where it stands in the PTX, for messages */
  const char *message; /* why it can't be run */
};
struct ptx_constant {
  uint32_t offset, bytes;
  uint64_t value;
  bool dynamic_shared; /* + start of dynamic shared memory */
};
struct ptx_cell { /* of a register: its array begins at `offset` */
  uint32_t offset, bytes;
};
struct ptx_special_use {
  uint32_t offset;
  enum ptx_special id;
};
struct ptx_program {
  struct ptx_instruction *code;
  uint32_t count, capacity, start;
  uint32_t register_bytes; /* of a team's register file */
  uint32_t local_bytes;    /* of a lane */
  uint32_t static_shared_bytes, dynamic_alignment;
  struct ptx_cell *cells; /* every register's, constants' and special registers' too */
  uint32_t cell_count, cell_capacity;
  struct ptx_constant *constants;
  uint32_t constant_count, constant_capacity;
  struct ptx_special_use *specials;
  uint32_t special_count, special_capacity;
  uint32_t *targets; /* of indexed branches */
  uint32_t target_count, target_capacity;
  char **messages;
  uint32_t message_count, message_capacity;
  /* Native code (ptx_native.c): set once, atomically; nothing else changes in a program that runs. */
  struct ptx_native *native;
  uint64_t interpreted; /* instructions so far, atomic */
  bool translation_begun, translating;
  pthread_t translator; /* to be joined when `translating` */
};
/* Decodes once, on the first call; thread-safe. NULL with `error` set when the entry is refused. */
struct ptx_program *ptx_program_of(struct ptx_function *entry, char *error, size_t error_bytes);
void ptx_program_free(struct ptx_program *);
/* Where straight code begins: targets, and what follows a jump, call or wait. To be freed; NULL when
   memory is short. */
bool *ptx_beginnings(const struct ptx_program *);
/* The program's native code, if it has some by now. */
const struct ptx_native *ptx_native_of(struct ptx_program *);
void ptx_native_free(struct ptx_program *);
void *ptx_grow(void *items, uint32_t count, uint32_t *capacity, size_t item_bytes);

/* ---- running (ptx_run.c) ---- */
enum ptx_lane_state { PTX_READY, PTX_YIELDED, PTX_AT_BARRIER, PTX_AT_WARP, PTX_EXITED };
struct ptx_run { /* active lanes [first, end) */
  uint32_t first, end;
};
struct ptx_bounds { /* a mapping seen lately: device addresses [low, high), bytes at `bytes` */
  uintptr_t low, high;
  uint8_t *bytes;
  bool writable, on_host;
};
#define PTX_BOUNDS 4
struct ptx_barrier_wait {
  uint8_t id;
  uint32_t threads; /* 0: all of the block */
};
struct ptx_team {
  struct ptx_block *block;
  uint8_t *registers, *local;
  uint32_t first; /* the block's thread in lane 0 */
  uint32_t count; /* lanes in use */
  uint32_t exited;
  uint32_t backward_jumps;
  uint32_t pc[PTX_LANES];
  uint8_t state[PTX_LANES], carry[PTX_LANES];
  struct ptx_barrier_wait wait[PTX_LANES];
  struct ptx_stack *stacks; /* one per lane, of recursive functions; NULL until there are any */
  uint32_t run_count;
  struct ptx_run runs[PTX_LANES / 2 + 1];
};
struct ptx_block { /* what a worker thread holds while it runs a block */
  const struct ptx_program *program;
  const struct ptx_native *native; /* of the program, or NULL: all is interpreted */
  const struct gpusim_launch *launch;
  const struct gpusim_kernel *kernel;
  const uint8_t *parameters;
  uint32_t parameter_bytes;
  uint32_t index[3]; /* %ctaid */
  uint8_t *shared;
  uint32_t shared_bytes;
  uint32_t threads;
  uint64_t instructions;
  uint64_t traffic[2][2]; /* bytes: [in host memory][written] */
  struct ptx_bounds bounds[PTX_BOUNDS];
  uint32_t next_bounds;
  uint64_t generation;
  int result; /* CUresult of the first failure */
  char *error;
  size_t error_bytes;
};
/* Fails the launch, naming kernel, block, thread and PTX line; the first failure of a block counts.
 */
void ptx_fail(struct ptx_team *, const struct ptx_instruction *, uint32_t lane, int result,
              const char *format, ...) __attribute__((format(printf, 5, 6)));

/* ---- handlers ---- */
/* The handler for a lowered instruction, NULL when there is none for its types and modifiers. The
   exec rooms are built once per instruction set; the best that this CPU has is chosen on the first
   call. */
ptx_handler ptx_select(const struct ptx_instruction *);
/* Whether this CPU runs code for x86-64-v3: AVX2, FMA and what came with them. */
bool ptx_cpu_has_v3(void);
/* For tests: use the build for any CPU, or again the best one. */
void ptx_select_plain(bool);
ptx_handler ptx_select_memory(const struct ptx_instruction *);
ptx_handler ptx_select_access(const struct ptx_instruction *);
/* Waits are over: all of `members` (a mask over the warp that starts at lane `warp`) stand at
   this instruction. */
void ptx_warp_execute(struct ptx_team *, const struct ptx_instruction *, uint32_t warp,
                      uint32_t members);
/* Host address of `bytes` bytes for one lane, or NULL after ptx_fail. */
uint8_t *ptx_resolve(struct ptx_team *, const struct ptx_instruction *, uint32_t lane,
                     enum ptx_space, uint64_t address, uint32_t bytes, bool write);
/* The bounds that contain [address, address + bytes), or NULL. The bytes of one mapping are
   contiguous. */
const struct ptx_bounds *ptx_bounds_of(struct ptx_block *, uint64_t address, uint64_t bytes);
/* Drops cached bounds when the map of memory has changed: once before the resolving of an
   instruction. */
void ptx_bounds_refresh(struct ptx_block *);
/* The address that each lane of [first, end) names. */
void ptx_addresses(struct ptx_team *, const struct ptx_instruction *, uint32_t first, uint32_t end,
                   uint64_t *out);
/* Around a call of a running function: push and pop its part of registers and local memory. */
void ptx_frame_save(struct ptx_team *, const struct ptx_instruction *, uint32_t first,
                    uint32_t end);
void ptx_frame_restore(struct ptx_team *, const struct ptx_instruction *, uint32_t first,
                       uint32_t end);
/* For a team that begins: threads that exit inside a call leave something. */
void ptx_stacks_empty(struct ptx_team *);
void ptx_stacks_free(struct ptx_team *);
ptx_handler ptx_select_atomic(const struct ptx_instruction *);
void ptx_copy_local(struct ptx_team *, uint32_t first, uint32_t end, uint32_t to, uint32_t from,
                    uint32_t bytes);
#endif
