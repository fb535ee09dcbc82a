/* Which kernels this machine can run, and which to take. Called by team.c and by tests. */
#ifndef OFFLOAD_ADAM_ISA_H
#define OFFLOAD_ADAM_ISA_H
#include "kernels.h"

/* Bit 1 << isa for every instruction set that was built in and that CPU and operating system offer.
 */
unsigned isa_available(void);

/* Resolves AUTO to the widest of `available`, and checks a forced choice. Returns NULL, with a
   sentence that names OFFLOAD_ISA and the remedy, when it is not to be had; *chosen is set
   otherwise. AUTO never takes the scalar code where vector code exists for the architecture: it is
   so slow that `stream` or `direct` is better. */
const struct adam_kernels *isa_choose(enum adam_isa wanted, unsigned available,
                                      enum adam_isa *chosen, char *error, size_t error_bytes);

/* "auto", "scalar", "avx2", "avx512", "neon": the words of OFFLOAD_ISA. */
const char *isa_name(enum adam_isa);
#endif
