/* Instruction sets: found by cpuid at run time, so that one object serves all machines. */
#include "isa.h"
#include <stdio.h>
#if defined __x86_64__
#include <cpuid.h>
#endif

static const char *const names[] = {[ADAM_ISA_AUTO] = "auto",
                                    [ADAM_ISA_SCALAR] = "scalar",
                                    [ADAM_ISA_AVX2] = "avx2",
                                    [ADAM_ISA_AVX512] = "avx512",
                                    [ADAM_ISA_NEON] = "neon"};
enum { ISAS = sizeof names / sizeof *names };

/* NULL: not built for this architecture. */
static const struct adam_kernels *const tables[ISAS] = {
    [ADAM_ISA_SCALAR] = &adam_kernels_scalar,
#if defined __x86_64__
    [ADAM_ISA_AVX2] = &adam_kernels_avx2,
    [ADAM_ISA_AVX512] = &adam_kernels_avx512,
#elif defined __aarch64__
    [ADAM_ISA_NEON] = &adam_kernels_neon,
#endif
};

/* Widest first. */
static const enum adam_isa preferred[] = {ADAM_ISA_AVX512, ADAM_ISA_AVX2, ADAM_ISA_NEON};

const char *isa_name(enum adam_isa isa) {
  return (unsigned)isa < ISAS ? names[isa] : "unknown";
}

#if defined __x86_64__ && !defined ISA_PLAIN_MACHINE
/* Conversions of half; the compilers' own lists of features don't all have it. */
static bool has_f16c(void) {
  unsigned eax, ebx, ecx = 0, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && ecx & bit_F16C;
}
#endif

/* Tests build a companion that takes every machine for one without vector code. */
unsigned isa_available(void) {
  unsigned available = 1u << ADAM_ISA_SCALAR;
#if defined ISA_PLAIN_MACHINE
#elif defined __x86_64__
  __builtin_cpu_init(); /* asks XCR0 too: whether the operating system saves the registers */
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
    available |= 1u << ADAM_ISA_AVX2;
  if (__builtin_cpu_supports("avx512f"))
    available |= 1u << ADAM_ISA_AVX512;
#elif defined __aarch64__
  available |= 1u << ADAM_ISA_NEON;
#endif
  return available;
}

/* "scalar, avx2" */
static void list_available(unsigned available, char *text, size_t text_bytes) {
  size_t used = 0;
  text[0] = 0;
  for (unsigned isa = 0; isa < ISAS && used < text_bytes; isa++)
    if (available >> isa & 1) {
      int n = snprintf(text + used, text_bytes - used, "%s%s", used ? ", " : "", names[isa]);
      used += n > 0 ? (size_t)n : 0;
    }
}

const struct adam_kernels *isa_choose(enum adam_isa wanted, unsigned available,
                                      enum adam_isa *chosen, char *error, size_t error_bytes) {
  if (wanted == ADAM_ISA_AUTO) {
    for (size_t i = 0; i < sizeof preferred / sizeof *preferred; i++)
      if (available >> preferred[i] & 1 && tables[preferred[i]]) {
        *chosen = preferred[i];
        return tables[preferred[i]];
      }
    snprintf(
        error, error_bytes,
        "the CPU step needs AVX2 with FMA and F16C (x86-64) or NEON (aarch64), and this CPU has "
        "neither: use OFFLOAD_STEP=stream or direct, or OFFLOAD_ISA=scalar to take the slow "
        "plain code all the same");
    return NULL;
  }
  if ((unsigned)wanted < ISAS && available >> wanted & 1 && tables[wanted]) {
    *chosen = wanted;
    return tables[wanted];
  }
  char list[64];
  list_available(available, list, sizeof list);
  snprintf(error, error_bytes,
           "OFFLOAD_ISA=%s is not to be had: this machine offers %s; choose one of these or auto",
           isa_name(wanted), list);
  return NULL;
}
