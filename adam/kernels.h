/* The kernels of the CPU step, a table per instruction set, and the constants they run with.

   kernels.inc is the one source; kernels_<isa>.c give it lanes (a vector of floats, the doubles of
   the same elements, and the operations on them) and are compiled with that instruction set's
   flags. Nothing outside these files may be compiled with such flags: the choice is made at run
   time, in isa.c. Called by team.c and by tests. */
#ifndef OFFLOAD_ADAM_KERNELS_H
#define OFFLOAD_ADAM_KERNELS_H
#include "adam.h"
#include "reciprocal.h"

/* A job's scalars in the types the kernels want. */
struct adam_constants {
  double beta1, beta2, one_minus_beta1, one_minus_beta2, eps; /* generations OLD and DOUBLE */
  float beta1_float, beta2_float, eps_float;                  /* generations FLOAT and MIXED */
  float step_size, bias_correction2_sqrt;
  struct reciprocal reciprocal; /* of bias_correction2_sqrt */
  bool by_reciprocal;           /* it divides exactly, and the job is long enough to ask */
  double step_size_double, bias_correction2_sqrt_double; /* doubles in memory */
  bool stream_update;                                    /* the update is too long for the caches */
  bool settles; /* the scalars are such that a zero gradient lets moments decay, and u is finite */
  uint32_t gradient_sign; /* xored into the gradient: the sign bit where the job negates, else 0 */
};

/* Elements [0, elements) of the arrays; max_exp_avg_sq is touched by kernels with maxima only. The
   caller has set the floating-point environment (float_environment.h). */
typedef void adam_kernel(const struct adam_constants *, const void *gradient, void *exp_avg,
                         void *exp_avg_sq, void *max_exp_avg_sq, void *update, uint64_t elements);

/* A moment's sum: nested fma in opmath; or in double with the moment's, or the gradient's, product
   exact. */
enum adam_arithmetic { ADAM_NESTED, ADAM_MOMENT_EXACT, ADAM_GRADIENT_EXACT, ADAM_ARITHMETICS };

/* Below this many elements a job is done before it is known whether the reciprocal divides exactly. */
enum { ELEMENTS_WORTH_A_RECIPROCAL = 2048 };

enum adam_combination {
#define COMBINATION(gradient, state, opmath) ADAM_GRADIENT_##gradient##_STATE_##state,
#include "combinations.def"
#undef COMBINATION
  ADAM_COMBINATIONS
};

struct adam_kernels {
  void (*stream_end)(
      void); /* after the last job of a thread: shows others what went past the caches */
  adam_kernel *of[ADAM_COMBINATIONS][ADAM_ARITHMETICS][2]; /* last: without and with maxima */
};

extern const struct adam_kernels adam_kernels_scalar;
#if defined __x86_64__
extern const struct adam_kernels adam_kernels_avx2, adam_kernels_avx512;
#elif defined __aarch64__
extern const struct adam_kernels adam_kernels_neon;
#endif

/* The kernel for a job; NULL when its types don't go together. */
adam_kernel *adam_kernel_of(const struct adam_kernels *, const struct adam_job *);

/* For a job that is one of several: `alike`, the elements of all that have these constants, so that
   a costly one is worth its while; `together`, the elements of all, whose updates share the caches. */
void adam_constants_of(const struct adam_job *, uint64_t alike, uint64_t together,
                       struct adam_constants *);

/* Whether two jobs have the same kernel and constants. */
bool adam_jobs_alike(const struct adam_job *, const struct adam_job *);
#endif
