/* From a job to its kernel and constants. Called by team.c and by tests. */
#include "kernels.h"
#include <string.h>

static const struct {
  enum adam_type gradient, state;
} combinations[ADAM_COMBINATIONS] = {
#define TYPE_float ADAM_TYPE_FLOAT
#define TYPE_double ADAM_TYPE_DOUBLE
#define TYPE_half ADAM_TYPE_HALF
#define TYPE_bfloat16 ADAM_TYPE_BFLOAT16
#define COMBINATION(gradient, state, opmath)                                                       \
  [ADAM_GRADIENT_##gradient##_STATE_##state] = {TYPE_##gradient, TYPE_##state},
#include "combinations.def"
#undef COMBINATION
};

static enum adam_arithmetic arithmetic_of(const struct adam_job *job) {
  if (job->generation == ADAM_FLOAT || job->generation == ADAM_MIXED)
    return ADAM_NESTED;
  return job->form == ADAM_FUSES_GRADIENT ? ADAM_GRADIENT_EXACT : ADAM_MOMENT_EXACT;
}

adam_kernel *adam_kernel_of(const struct adam_kernels *kernels, const struct adam_job *job) {
  for (unsigned i = 0; i < ADAM_COMBINATIONS; i++)
    if (combinations[i].gradient == job->gradient_type && combinations[i].state == job->state_type)
      return kernels->of[i][arithmetic_of(job)][job->max_exp_avg_sq != NULL];
  return NULL;
}

/* An update of this many elements (16 MiB) goes past the caches: nothing of it would be there when it is read. */
enum { ELEMENTS_WORTH_STREAMING = 1 << 22 };

bool adam_jobs_alike(const struct adam_job *a, const struct adam_job *b) {
/* By bits: a zero has a sign. */
#define SAME(member) (memcmp(&a->member, &b->member, sizeof a->member) == 0)
  return a->generation == b->generation && a->form == b->form && a->negate == b->negate &&
         a->gradient_type == b->gradient_type && a->state_type == b->state_type &&
         !a->max_exp_avg_sq == !b->max_exp_avg_sq && SAME(beta1) && SAME(beta2) && SAME(eps) &&
         SAME(scalars.step_size) && SAME(scalars.bias_correction2_sqrt) &&
         SAME(scalars.step_size_double) && SAME(scalars.bias_correction2_sqrt_double);
#undef SAME
}

void adam_constants_of(const struct adam_job *job, uint64_t alike, uint64_t together,
                       struct adam_constants *c) {
  c->beta1 = job->beta1;
  c->beta2 = job->beta2;
  c->one_minus_beta1 = 1.0 - job->beta1;
  c->one_minus_beta2 = 1.0 - job->beta2;
  c->eps = job->eps;
  c->beta1_float = (float)job->beta1;
  c->beta2_float = (float)job->beta2;
  c->eps_float = (float)job->eps;
  c->step_size = job->scalars.step_size;
  c->bias_correction2_sqrt = job->scalars.bias_correction2_sqrt;
  c->stream_update = together >= ELEMENTS_WORTH_STREAMING;
  c->by_reciprocal = alike >= ELEMENTS_WORTH_A_RECIPROCAL &&
                     reciprocal_exact(c->bias_correction2_sqrt, &c->reciprocal);
  c->step_size_double = job->scalars.step_size_double;
  c->bias_correction2_sqrt_double = job->scalars.bias_correction2_sqrt_double;
  c->settles = c->beta1 >= 0 && c->beta1 <= 1 && c->beta2 >= 0.5 && c->beta2 <= 1 &&
               c->step_size >= 0 && c->step_size <= 1 && c->bias_correction2_sqrt >= 0x1p-60f &&
               c->bias_correction2_sqrt <= 2 && c->eps_float > 0;
  c->gradient_sign = job->negate ? 0x80000000u : 0;
}
