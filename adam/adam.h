/* The CPU step's interface: what liboffload.so takes from its companion liboffload-adam.so.

   The companion exports one symbol, `offload_adam`, that returns a table of functions. It knows
   nothing of CUDA. Everything is fp32 in memory. The gradient, the moments and the update of a job
   never overlap; starts need only the alignment of a float. Denormals, infinities and NaN are
   results like any other: round to nearest, no flushing, and a NaN is always stored as 0x7fffffff,
   the GPU's own (x86 would keep payloads).

   Formulas: PyTorch's fused_adam_utils.cuh, and the roundings that the machine code of its wheels
   has (which products and sums were fused). With G the gradient (negated for maximize, L2 decay
   already added), f() one rounding to float, everything inside f() double:

     generation OLD, DOUBLE   M = f(fma(m, b1, (1-b1)*G))       V = f(fma(v, b2, ((1-b2)*G)*G))
                              u = (ss*M) / f((double)(sqrtf(V)/s2) + eps)
     generation FLOAT         M = fmaf(b1, m, fmaf(-b1, G, G))  V = fmaf(b2, v, fmaf(-b2, G*G, G*G))
                              u = (ss*M) / (sqrtf(V)/s2 + eps)      (b1, b2, eps rounded to float first)
     the parameter, on the GPU:  p = decay(p) - u */
#ifndef OFFLOAD_ADAM_H
#define OFFLOAD_ADAM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Raised whenever anything in this header changes; the two objects must agree. */
#define OFFLOAD_ADAM_ABI 1u

/* Which PyTorch compiled the kernel: 2.0-2.2, 2.3-2.10, 2.11 and later. */
enum adam_generation { ADAM_OLD, ADAM_DOUBLE, ADAM_FLOAT, ADAM_GENERATIONS };

/* Where weight decay enters: Adam adds wd*p to the gradient, AdamW shrinks p by lr*wd first. */
enum adam_mode { ADAM_L2, ADAM_W };

/* Whether the compiler fused the product of the weight decay with the sum. NONE: wd == 0 at this
 * launch. */
enum adam_decay { ADAM_DECAY_NONE, ADAM_DECAY_FUSED, ADAM_DECAY_UNFUSED };

/* One arithmetic that a kernel may turn out to have. */
struct adam_candidate {
  enum adam_generation generation;
  enum adam_mode mode;
  enum adam_decay decay;
};

/* A launch's own scalars, as the kernel got them. `lr` is the value behind lr_ptr where the launch
 * has one. */
struct adam_hyper {
  double lr, beta1, beta2, weight_decay, eps;
  bool maximize;
};

/* What the kernel derives from the hyper-parameters and one tensor's step counter. */
struct adam_scalars {
  float step_size;             /* lr / bias_correction1 */
  float bias_correction2_sqrt; /* sqrt(1 - beta2^step) */
  float lr_decay;              /* lr*wd rounded to float (generation FLOAT) */
  double lr_decay_double;      /* lr*wd (generations OLD and DOUBLE) */
};

/* One run of elements: exp_avg and exp_avg_sq are updated in place, the update u is written. */
struct adam_job {
  const float *gradient;
  float *exp_avg, *exp_avg_sq;
  float *update;
  uint64_t elements;
  bool negate; /* maximize, unless the gradient already holds -g + wd*p */
  enum adam_generation generation;
  double beta1, beta2, eps;
  struct adam_scalars scalars;
};

enum adam_isa { ADAM_ISA_AUTO, ADAM_ISA_SCALAR, ADAM_ISA_AVX2, ADAM_ISA_AVX512, ADAM_ISA_NEON };

struct adam_team; /* threads; used by one caller at a time */

struct adam_api {
  uint32_t abi;
  const char *version;

  /* A team of `threads` OpenMP threads (1 or more) on the CPUs this thread may run on; made by the
     thread that will do its steps. Where so many can't be started it has fewer, with a sentence in
     `error` that is otherwise left as it was. NULL with a sentence in `error` when the ISA is not
     to be had here or there is no memory. */
  struct adam_team *(*team_create)(int threads, enum adam_isa isa, char *error, size_t error_bytes);
  void (*team_destroy)(struct adam_team *);
  enum adam_isa (*team_isa)(const struct adam_team *);
  int (*team_threads)(const struct adam_team *);

  /* Carries out a job; returns when every element is done. Sets MXCSR/FPCR in every thread each
   * time. */
  void (*step)(struct adam_team *, const struct adam_job *);

  /* Scalars by libm. `nudge1`, `nudge2` move beta1^step and beta2^step by that many units in the
     last place of the type the kernel computes them in (float for FLOAT, double otherwise): the
     device's powf is not libm's. */
  void (*scalars)(enum adam_generation, const struct adam_hyper *, float step, int nudge1,
                  int nudge2, struct adam_scalars *);

  /* The whole kernel, an element at a time, in plain C: p, m, v in place. The reference that
     calibration and the proof compare with. */
  void (*reference)(const struct adam_candidate *, const struct adam_hyper *,
                    const struct adam_scalars *, uint64_t elements, float *p, const float *g,
                    float *m, float *v);

  /* Names for reports: "torch 2.11+" and so on, "avx2" and so on. */
  const char *(*generation_name)(enum adam_generation);
  const char *(*isa_name)(enum adam_isa);
};

/* The companion's only export. */
const struct adam_api *offload_adam(void);
typedef const struct adam_api *offload_adam_function(void);
#endif
