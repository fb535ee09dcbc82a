/* The whole kernel in plain C, an element at a time: what calibration and the running proof compare
   with. Written after the formulas, apart from kernels.inc, so that an error in one shows against
   the other. */
#include "scalars.h"
#include <math.h>
#include <string.h>

static void store(float *to, float value) {
  static const uint32_t nan_bits = 0x7fffffffu;
  if (value != value)
    memcpy(to, &nan_bits, sizeof nan_bits);
  else
    *to = value;
}

/* Generation FLOAT: every scalar rounded to float first. */
static void element_float(const struct adam_candidate *candidate, const struct adam_hyper *hyper,
                          const struct adam_scalars *s, float *p, float g, float *m, float *v) {
  const float beta1 = (float)hyper->beta1, beta2 = (float)hyper->beta2;
  const float decay = (float)hyper->weight_decay;
  float parameter = *p, gradient = hyper->maximize ? -g : g;
  if (candidate->decay != ADAM_DECAY_NONE && decay != 0.0f) {
    const bool fused = candidate->decay == ADAM_DECAY_FUSED;
    if (candidate->mode == ADAM_L2)
      gradient = fused ? fmaf(parameter, decay, gradient) : gradient + parameter * decay;
    else
      parameter =
          fused ? fmaf(-s->lr_decay, parameter, parameter) : parameter - s->lr_decay * parameter;
  }
  const float square = gradient * gradient;
  const float moment1 = fmaf(beta1, *m, fmaf(-beta1, gradient, gradient));
  const float moment2 = fmaf(beta2, *v, fmaf(-beta2, square, square));
  const float denominator = sqrtf(moment2) / s->bias_correction2_sqrt + (float)hyper->eps;
  store(p, parameter - s->step_size * moment1 / denominator);
  store(m, moment1);
  store(v, moment2);
}

/* Generations OLD and DOUBLE: scalars stay double, one rounding to float per statement. */
static void element_double(const struct adam_candidate *candidate, const struct adam_hyper *hyper,
                           const struct adam_scalars *s, float *p, float g, float *m, float *v) {
  const double beta1 = hyper->beta1, beta2 = hyper->beta2, decay = hyper->weight_decay;
  float parameter = *p, gradient = hyper->maximize ? -g : g;
  if (candidate->decay != ADAM_DECAY_NONE && decay != 0.0) {
    const bool fused = candidate->decay == ADAM_DECAY_FUSED;
    const double wide = (double)parameter;
    if (candidate->mode == ADAM_L2)
      gradient =
          (float)(fused ? fma(wide, decay, (double)gradient) : (double)gradient + wide * decay);
    else
      parameter =
          (float)(fused ? fma(-s->lr_decay_double, wide, wide) : wide - s->lr_decay_double * wide);
  }
  const double wide_gradient = (double)gradient;
  const float moment1 = (float)fma((double)*m, beta1, (1.0 - beta1) * wide_gradient);
  const float moment2 =
      (float)fma((double)*v, beta2, (1.0 - beta2) * wide_gradient * wide_gradient);
  const float ratio = sqrtf(moment2) / s->bias_correction2_sqrt;
  const float denominator = (float)((double)ratio + hyper->eps);
  store(p, parameter - s->step_size * moment1 / denominator);
  store(m, moment1);
  store(v, moment2);
}

void reference_step(const struct adam_candidate *candidate, const struct adam_hyper *hyper,
                    const struct adam_scalars *scalars, uint64_t elements, float *p, const float *g,
                    float *m, float *v) {
  for (uint64_t i = 0; i < elements; i++)
    if (candidate->generation == ADAM_FLOAT)
      element_float(candidate, hyper, scalars, p + i, g[i], m + i, v + i);
    else
      element_double(candidate, hyper, scalars, p + i, g[i], m + i, v + i);
}
