/* The kernels of the CPU step, one pair per instruction set, and the constants they run with.

   kernels.inc is the one source; kernels_<isa>.c give it lanes (a vector of floats, the doubles of
   the same elements, and the operations on them) and are compiled with that instruction set's
   flags. Nothing outside these files may be compiled with such flags: the choice is made at run
   time, in isa.c. Called by team.c and by tests. */
#ifndef OFFLOAD_ADAM_KERNELS_H
#define OFFLOAD_ADAM_KERNELS_H
#include "adam.h"

/* A job's scalars in the types the kernels want. */
struct adam_constants {
  double beta1, beta2, one_minus_beta1, one_minus_beta2, eps; /* generations OLD and DOUBLE */
  float beta1_float, beta2_float, eps_float;                  /* generation FLOAT */
  float step_size, bias_correction2_sqrt;
  uint32_t gradient_sign; /* xored into the gradient: the sign bit where the job negates, else 0 */
};

/* Elements [0, elements) of the four arrays. The caller has set the floating-point environment
 * (float_environment.h). */
typedef void adam_kernel(const struct adam_constants *, const float *gradient, float *exp_avg,
                         float *exp_avg_sq, float *update, uint64_t elements);

struct adam_kernels {
  adam_kernel *float_scalars;  /* generation FLOAT */
  adam_kernel *double_scalars; /* generations OLD and DOUBLE: they differ in the scalars only */
};

extern const struct adam_kernels adam_kernels_scalar;
#if defined __x86_64__
extern const struct adam_kernels adam_kernels_avx2, adam_kernels_avx512;
#elif defined __aarch64__
extern const struct adam_kernels adam_kernels_neon;
#endif

void adam_constants_of(const struct adam_job *, struct adam_constants *);
#endif
