/* The CPU step's interface: what liboffload.so takes from its companion liboffload-adam.so.

   The companion exports one symbol, `offload_adam`, that returns a table of functions. It knows
   nothing of CUDA. Numbers lie in memory in their storage type; computed is in the opmath type:
   double for double, float for all others. Loads are exact, M, V and the update are used unrounded,
   and what is stored is rounded to nearest even. The gradient, the moments and the update of a job
   never overlap; starts need only the alignment of their type.

   Denormals, infinities and NaN are results like any other: no flushing, and NaN are the GPU's.
   float: 0x7fffffff, bfloat16 and half: 0x7fff. double: the moment's own NaN, made quiet, else the
   gradient's, else 0xfff8000000000000 (the PTX manual promises payloads for double; which of two it
   doesn't say). A max_exp_avg_sq that is kept is a copy: float and double keep a NaN's payload.

   Formulas: PyTorch's fused_adam_utils.cuh, and the roundings that the machine code of its wheels
   has (which products and sums were fused). With G the gradient (negated for maximize, L2 decay
   already added), f() one rounding to float, everything inside f() double:

     generation OLD, DOUBLE   M = f(fma(m, b1, (1-b1)*G))       V = f(fma(v, b2, ((1-b2)*G)*G))
        form FUSES_GRADIENT   M = f(fma(1-b1, G, b1*m))         V = f(fma((1-b2)*G, G, b2*v))
                              u = (ss*M) / f((double)(sqrtf(S)/s2) + eps)
     generation FLOAT, MIXED  M = fmaf(b1, m, fmaf(-b1, G, G))  V = fmaf(b2, v, fmaf(-b2, G*G, G*G))
                              u = (ss*M) / (sqrtf(S)/s2 + eps)      (b1, b2, eps rounded to float first)
     amsgrad                  S = max_exp_avg_sq = max_exp_avg_sq < V ? V : max_exp_avg_sq; else S = V
     the parameter, on the GPU:  p = decay(p) - u

   With doubles in memory the same without f(), scalars unrounded. */
#ifndef OFFLOAD_ADAM_H
#define OFFLOAD_ADAM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Raised whenever anything in this header changes; the two objects must agree. */
#define OFFLOAD_ADAM_ABI 3u

/* How numbers lie in memory. */
enum adam_type {
  ADAM_TYPE_FLOAT,
  ADAM_TYPE_DOUBLE,
  ADAM_TYPE_HALF,
  ADAM_TYPE_BFLOAT16,
  ADAM_TYPES,
};

static inline size_t adam_type_bytes(enum adam_type type) {
  return type == ADAM_TYPE_DOUBLE ? 8 : type == ADAM_TYPE_FLOAT ? 4 : 2;
}

/* The type that tensors of `type` are computed in. */
static inline enum adam_type adam_type_opmath(enum adam_type type) {
  return type == ADAM_TYPE_DOUBLE ? ADAM_TYPE_DOUBLE : ADAM_TYPE_FLOAT;
}

/* Which PyTorch compiled the kernel: 2.0-2.2, 2.3-2.10, 2.11 and later, and 2.12 and later for
   float parameters with bfloat16 moments, which differs from FLOAT in the scalars only. */
enum adam_generation { ADAM_OLD, ADAM_DOUBLE, ADAM_FLOAT, ADAM_MIXED, ADAM_GENERATIONS };

/* Where weight decay enters: Adam adds wd*p to the gradient, AdamW shrinks p by lr*wd first. */
enum adam_mode { ADAM_L2, ADAM_W };

/* Whether the compiler fused the product of the weight decay with the sum. NONE: wd == 0 at this
 * launch. */
enum adam_decay { ADAM_DECAY_NONE, ADAM_DECAY_FUSED, ADAM_DECAY_UNFUSED };

/* Which product of a moment's sum stays exact inside the fma (generations OLD and DOUBLE; the
   others have one form only). PyTorch 2.3-2.10: FUSES_GRADIENT for AdamW of half and bfloat16. */
enum adam_form { ADAM_FUSES_MOMENT, ADAM_FUSES_GRADIENT, ADAM_FORMS };

/* One arithmetic that a kernel may turn out to have. */
struct adam_candidate {
  enum adam_generation generation;
  enum adam_mode mode;
  enum adam_decay decay;
  enum adam_form form;
  enum adam_type type;       /* parameter and gradient */
  enum adam_type state_type; /* moments: `type`, or bfloat16 where `type` is float */
  bool amsgrad;
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
  float lr_decay;              /* lr*wd rounded to float (generations FLOAT and MIXED) */
  double lr_decay_double;      /* lr*wd (generations OLD and DOUBLE; doubles in memory) */
  double step_size_double;     /* with doubles in memory, instead of the two floats */
  double bias_correction2_sqrt_double;
};

/* One run of elements: exp_avg, exp_avg_sq and max_exp_avg_sq are updated in place, the update u is
   written.

     state_type   gradient_type                        update
     double       double                               double
     float        float, half, bfloat16                float
     half         half, or float as a kernel of ours   float
     bfloat16     bfloat16, or float                   float
*/
struct adam_job {
  const void *gradient;       /* gradient_type */
  void *exp_avg, *exp_avg_sq; /* state_type */
  void *max_exp_avg_sq;       /* state_type; NULL: not amsgrad */
  void *update;               /* adam_type_opmath(state_type) */
  uint64_t elements;
  bool negate; /* maximize, unless the gradient already holds -g + wd*p */
  enum adam_generation generation;
  enum adam_form form;
  enum adam_type gradient_type, state_type;
  double beta1, beta2, eps;
  struct adam_scalars scalars;
};

/* A kernel's arrays, for the reference: p, m, v and, with amsgrad, max_exp_avg_sq change in place.
   With grad_scale the gradient does, too: divided by *grad_scale, before maximize. */
struct adam_tensors {
  void *p, *g;             /* candidate.type */
  void *m, *v;             /* candidate.state_type */
  void *max_v;             /* candidate.state_type; only with candidate.amsgrad */
  const float *grad_scale; /* NULL: none */
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
     time. False, with nothing done, for types that can't go together. */
  bool (*step)(struct adam_team *, const struct adam_job *);

  /* Many jobs, in any order, as if by so many steps, but the threads are woken once and share all
     of it: for a launch's small tensors. The jobs don't overlap. False, with nothing done, when the
     types of any can't go together. */
  bool (*step_many)(struct adam_team *, const struct adam_job *jobs, size_t count);

  /* Scalars by libm. `nudge1`, `nudge2` move beta1^step and beta2^step by that many units in the
     last place of the type the kernel computes them in (float for FLOAT, double otherwise, and for the
     members of type double): the device's pow and powf are not libm's. */
  void (*scalars)(enum adam_generation, const struct adam_hyper *, float step, int nudge1,
                  int nudge2, struct adam_scalars *);

  /* The whole kernel, an element at a time, in plain C. The reference that calibration and the
     proof compare with. */
  void (*reference)(const struct adam_candidate *, const struct adam_hyper *,
                    const struct adam_scalars *, uint64_t elements, const struct adam_tensors *);

  /* One element of an array of `type`: exact; and rounded once to nearest even (half and bfloat16:
     from float, to which the value is rounded before). */
  double (*load)(enum adam_type, const void *array, uint64_t index);
  void (*store)(enum adam_type, void *array, uint64_t index, double value);

  /* Names for reports: "torch 2.11+", "bf16", "avx2" and so on. */
  const char *(*generation_name)(enum adam_generation);
  const char *(*type_name)(enum adam_type);
  const char *(*isa_name)(enum adam_isa);
};

/* The companion's only export. */
const struct adam_api *offload_adam(void);
typedef const struct adam_api *offload_adam_function(void);
#endif
