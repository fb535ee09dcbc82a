/* The whole kernel in plain C, an element at a time: what calibration and the running proof compare
   with. Written after the formulas, apart from kernels.inc, so that an error in one shows against
   the other. */
#include "convert.h"
#include "scalars.h"

double load_element(enum adam_type type, const void *array, uint64_t index) {
  switch (type) {
  case ADAM_TYPE_DOUBLE:
    return ((const double *)array)[index];
  case ADAM_TYPE_HALF:
    return (double)float_of_half(((const uint16_t *)array)[index]);
  case ADAM_TYPE_BFLOAT16:
    return (double)float_of_bfloat16(((const uint16_t *)array)[index]);
  default:
    return (double)((const float *)array)[index];
  }
}

void store_element(enum adam_type type, void *array, uint64_t index, double value) {
  switch (type) {
  case ADAM_TYPE_DOUBLE:
    ((double *)array)[index] = value;
    break;
  case ADAM_TYPE_HALF:
    ((uint16_t *)array)[index] = half_of_float((float)value);
    break;
  case ADAM_TYPE_BFLOAT16:
    ((uint16_t *)array)[index] = bfloat16_of_float((float)value);
    break;
  default:
    ((float *)array)[index] = canonical_float((float)value);
  }
}

const char *type_name(enum adam_type type) {
  static const char *const names[ADAM_TYPES] = {[ADAM_TYPE_FLOAT] = "fp32",
                                                [ADAM_TYPE_DOUBLE] = "fp64",
                                                [ADAM_TYPE_HALF] = "fp16",
                                                [ADAM_TYPE_BFLOAT16] = "bf16"};
  return (unsigned)type < ADAM_TYPES ? names[type] : "unknown";
}

/* One element in opmath float, or in double. */
struct element {
  float p, g, m, v, max_v;
};
struct element_double {
  double p, g, m, v, max_v;
};

/* Generations FLOAT and MIXED: every scalar rounded to float first. `g` is after grad_scale. */
static void element_float(const struct adam_candidate *candidate, const struct adam_hyper *hyper,
                          const struct adam_scalars *s, struct element *e) {
  const float beta1 = (float)hyper->beta1, beta2 = (float)hyper->beta2;
  const float decay = (float)hyper->weight_decay;
  float parameter = e->p, gradient = hyper->maximize ? -e->g : e->g;
  if (candidate->decay != ADAM_DECAY_NONE && decay != 0.0f) {
    const bool fused = candidate->decay == ADAM_DECAY_FUSED;
    if (candidate->mode == ADAM_L2)
      gradient = fused ? fmaf(parameter, decay, gradient) : gradient + parameter * decay;
    else
      parameter =
          fused ? fmaf(-s->lr_decay, parameter, parameter) : parameter - s->lr_decay * parameter;
  }
  const float square = gradient * gradient;
  e->m = fmaf(beta1, e->m, fmaf(-beta1, gradient, gradient));
  e->v = fmaf(beta2, e->v, fmaf(-beta2, square, square));
  if (e->max_v < e->v)
    e->max_v = e->v;
  const float second = candidate->amsgrad ? e->max_v : e->v;
  const float denominator = sqrtf(second) / s->bias_correction2_sqrt + (float)hyper->eps;
  e->p = parameter - s->step_size * e->m / denominator;
}

/* Generations OLD and DOUBLE: scalars stay double, one rounding to float per statement. */
static void element_double(const struct adam_candidate *candidate, const struct adam_hyper *hyper,
                           const struct adam_scalars *s, struct element *e) {
  const double beta1 = hyper->beta1, beta2 = hyper->beta2, decay = hyper->weight_decay;
  float parameter = e->p, gradient = hyper->maximize ? -e->g : e->g;
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
  const double wide_gradient = (double)gradient, m = (double)e->m, v = (double)e->v;
  if (candidate->form == ADAM_FUSES_GRADIENT) {
    e->m = (float)fma(1.0 - beta1, wide_gradient, beta1 * m);
    e->v = (float)fma((1.0 - beta2) * wide_gradient, wide_gradient, beta2 * v);
  } else {
    e->m = (float)fma(m, beta1, (1.0 - beta1) * wide_gradient);
    e->v = (float)fma(v, beta2, (1.0 - beta2) * wide_gradient * wide_gradient);
  }
  if (e->max_v < e->v)
    e->max_v = e->v;
  const float ratio = sqrtf(candidate->amsgrad ? e->max_v : e->v) / s->bias_correction2_sqrt;
  const float denominator = (float)((double)ratio + hyper->eps);
  e->p = parameter - s->step_size * e->m / denominator;
}

/* Doubles in memory, every generation. */
static void element_of_doubles(const struct adam_candidate *candidate,
                               const struct adam_hyper *hyper, const struct adam_scalars *s,
                               struct element_double *e) {
  const double beta1 = hyper->beta1, beta2 = hyper->beta2, decay = hyper->weight_decay;
  double parameter = e->p, gradient = hyper->maximize ? -e->g : e->g;
  if (candidate->decay != ADAM_DECAY_NONE && decay != 0.0) {
    const bool fused = candidate->decay == ADAM_DECAY_FUSED;
    if (candidate->mode == ADAM_L2)
      gradient = fused ? fma(parameter, decay, gradient) : gradient + parameter * decay;
    else
      parameter = fused ? fma(-s->lr_decay_double, parameter, parameter)
                        : parameter - s->lr_decay_double * parameter;
    if (candidate->mode == ADAM_L2)
      gradient = canonical_double(gradient, hyper->maximize ? -e->g : e->g, e->p);
    else
      parameter = canonical_double(parameter, e->p, e->p);
  }
  double m, v;
  const double square = gradient * gradient;
  if (candidate->generation == ADAM_FLOAT || candidate->generation == ADAM_MIXED) {
    m = fma(beta1, e->m, fma(-beta1, gradient, gradient));
    v = fma(beta2, e->v, fma(-beta2, square, square));
  } else if (candidate->form == ADAM_FUSES_GRADIENT) {
    m = fma(1.0 - beta1, gradient, beta1 * e->m);
    v = fma((1.0 - beta2) * gradient, gradient, beta2 * e->v);
  } else {
    m = fma(e->m, beta1, (1.0 - beta1) * gradient);
    v = fma(e->v, beta2, (1.0 - beta2) * gradient * gradient);
  }
  e->m = canonical_double(m, e->m, gradient);
  e->v = canonical_double(v, e->v, gradient);
  if (e->max_v < e->v)
    e->max_v = e->v;
  const double second = candidate->amsgrad ? e->max_v : e->v;
  const double denominator = sqrt(second) / s->bias_correction2_sqrt_double + hyper->eps;
  const double update = canonical_double(s->step_size_double * e->m / denominator, e->m, second);
  e->p = canonical_double(parameter - update, parameter, update);
}

static void doubles_step(const struct adam_candidate *candidate, const struct adam_hyper *hyper,
                         const struct adam_scalars *scalars, uint64_t elements,
                         const struct adam_tensors *t) {
  double *p = t->p, *g = t->g, *m = t->m, *v = t->v, *max_v = t->max_v;
  for (uint64_t i = 0; i < elements; i++) {
    if (t->grad_scale) {
      const double scale = (double)*t->grad_scale;
      g[i] = canonical_double(g[i] / scale, g[i], scale);
    }
    struct element_double e = {p[i], g[i], m[i], v[i], candidate->amsgrad ? max_v[i] : 0};
    element_of_doubles(candidate, hyper, scalars, &e);
    p[i] = e.p;
    m[i] = e.m;
    v[i] = e.v;
    if (candidate->amsgrad)
      max_v[i] = e.max_v;
  }
}

void reference_step(const struct adam_candidate *candidate, const struct adam_hyper *hyper,
                    const struct adam_scalars *scalars, uint64_t elements,
                    const struct adam_tensors *t) {
  const enum adam_type type = candidate->type, state = candidate->state_type;
  const bool float_scalars =
      candidate->generation == ADAM_FLOAT || candidate->generation == ADAM_MIXED;
  if (type == ADAM_TYPE_DOUBLE) {
    doubles_step(candidate, hyper, scalars, elements, t);
    return;
  }
  for (uint64_t i = 0; i < elements; i++) {
    struct element e = {(float)load_element(type, t->p, i), (float)load_element(type, t->g, i),
                        (float)load_element(state, t->m, i), (float)load_element(state, t->v, i),
                        candidate->amsgrad ? (float)load_element(state, t->max_v, i) : 0};
    const float max_before = e.max_v;
    if (t->grad_scale) {
      e.g = e.g / *t->grad_scale;
      store_element(type, t->g, i, (double)e.g);
    }
    if (float_scalars)
      element_float(candidate, hyper, scalars, &e);
    else
      element_double(candidate, hyper, scalars, &e);
    store_element(type, t->p, i, (double)e.p);
    store_element(state, t->m, i, (double)e.m);
    store_element(state, t->v, i, (double)e.v);
    /* A maximum that stays is not touched: a NaN keeps its bits (float), or becomes the type's. */
    if (candidate->amsgrad && (max_before < e.v || state != ADAM_TYPE_FLOAT))
      store_element(state, t->max_v, i, (double)e.max_v);
  }
}
