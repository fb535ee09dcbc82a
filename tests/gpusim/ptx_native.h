/* Native code: straight pieces of a program as functions of a shared object that the system's
   compiler makes. What the rooms ptx_native.c (when, cache, loading), ptx_native_compile.c (the
   compiler), ptx_native_emit.c and ptx_native_expression.c (the C text) share. */
#ifndef GPUSIM_PTX_NATIVE_H
#define GPUSIM_PTX_NATIVE_H
#include "ptx.h"
#include <stdio.h>

/* Carries out `count` instructions for the lanes [first, end) of a register file. */
typedef void (*ptx_native_function)(uint8_t *registers, uint32_t first, uint32_t end);
struct ptx_segment {
  ptx_native_function run; /* NULL where none begins */
  uint32_t count;
};
struct ptx_native {
  void *object;
  struct ptx_segment *segments; /* by instruction */
};

/* Where pieces begin: their lengths by instruction, zeros elsewhere; to be freed. NULL: out of memory. */
uint32_t *ptx_native_pieces(const struct ptx_program *);
/* These pieces as C; functions are named s<first instruction>. Returns their number. */
uint32_t ptx_native_emit(const struct ptx_program *, const uint32_t *lengths, FILE *);
/* The value that an instruction gives its result in terms of C variables x, y, z, written to `out`;
   false, and `out` spoiled, when it has none. */
bool ptx_native_expression(const struct ptx_instruction *, FILE *out);
/* What the C text begins with, and flags that depend on its size and the CPU, for keys of the cache. */
extern const char ptx_native_prelude[];
const char *const *ptx_native_flags(size_t bytes);
/* Compiles a C text to `object`; false when there is no compiler or it fails. */
bool ptx_native_compile(const char *source, size_t bytes, const char *object);
/* Says which compiler it is, for keys of the cache: changes when it is replaced. */
uint64_t ptx_native_compiler(void);
#endif
