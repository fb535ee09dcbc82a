/* What the tests of adam/ share: the formulas and the conversions said once more in their own words
   (from the machine code of PyTorch's wheels), hostile numbers, and every table of kernels
   that this machine can run. */
#ifndef ADAM_SUPPORT_H
#define ADAM_SUPPORT_H
#include "adam/isa.h"
#include "adam/kernels.h"
#include "adam/scalars.h"
#include <math.h>
#include <string.h>

#define UNUSED __attribute__((unused))

UNUSED static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

UNUSED static float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

UNUSED static uint64_t bits_of_wide(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

UNUSED static double double_of(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

UNUSED static float gpu_nan(float x) {
  return isnan(x) ? float_of(0x7fffffffu) : x;
}

/* Of a result in double: NaN is the first operand's that is one, quiet, or the processor's own. */
UNUSED static double gpu_nan_double(double x, double first, double second) {
  if (!isnan(x))
    return x;
  const double from = isnan(first) ? first : second;
  return double_of(isnan(from) ? bits_of_wide(from) | 1ull << 51 : 0xfffull << 52 | 1ull << 51);
}

/* xorshift64*, so that runs repeat. */
UNUSED static uint64_t random_bits(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state * 2685821657736338717ull >> 11;
}

/* Zeros, denormals, infinities, NaN of all kinds, huge and tiny numbers, ordinary ones, and any
 * bits. */
UNUSED static float hostile(uint64_t *state) {
  static const uint32_t special[] = {
      0x00000000u, 0x80000000u, 0x00000001u, 0x80000001u, 0x007fffffu, 0x807fffffu, 0x00800000u,
      0x80800000u, 0x7f7fffffu, 0xff7fffffu, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc01234u,
      0x7f800001u, 0x3f800000u, 0xbf800000u, 0x1e3ce508u, 0x5f000000u, 0x20000000u};
  const uint64_t bits = random_bits(state);
  switch (bits % 4) {
  case 0:
    return float_of(special[(bits >> 2) % (sizeof special / sizeof *special)]);
  case 1:
    return float_of((uint32_t)(bits >> 8));
  default:
    return ((float)(bits >> 8 & 0xffffff) / 8388608.0f - 1.0f) * 0.01f;
  }
}

/* ---- storage types ---- */

/* The value of 16 bits with an exponent of `exponent_bits`, by arithmetic. */
UNUSED static double value_of_16(unsigned bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (int)(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double mantissa = (double)(bits & ((1u << mantissa_bits) - 1));
  double value;
  if (exponent == (1 << exponent_bits) - 1)
    value = mantissa != 0 ? NAN : INFINITY;
  else if (exponent == 0)
    value = ldexp(mantissa, 1 - bias - mantissa_bits);
  else
    value = ldexp(mantissa + ldexp(1, mantissa_bits), exponent - bias - mantissa_bits);
  return bits & 0x8000 ? -value : value;
}

/* And back: the nearest multiple of what the last bit is worth there, ties to even. */
UNUSED static uint16_t bits_of_16(double value, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const uint16_t sign = signbit(value) ? 0x8000 : 0;
  const int infinity = ((1 << exponent_bits) - 1) << mantissa_bits;
  if (isnan(value))
    return 0x7fff;
  if (isinf(value))
    return (uint16_t)(sign | infinity);
  int exponent;
  frexp(value, &exponent); /* value in [1/2, 1) * 2^exponent */
  exponent = value == 0 || exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
  const double units = nearbyint(ldexp(fabs(value), mantissa_bits - exponent));
  /* A carry out of the mantissa counts into the exponent by itself. */
  const int bits = (int)units + ((exponent + bias - 1) << mantissa_bits);
  return (uint16_t)(sign | (bits >= infinity ? infinity : bits));
}

UNUSED static int exponent_bits_of(enum adam_type type) {
  return type == ADAM_TYPE_HALF ? 5 : 8;
}

UNUSED static double restated_load(enum adam_type type, const void *array, size_t i) {
  if (type == ADAM_TYPE_DOUBLE)
    return ((const double *)array)[i];
  if (type == ADAM_TYPE_FLOAT)
    return (double)((const float *)array)[i];
  return value_of_16(((const uint16_t *)array)[i], exponent_bits_of(type));
}

UNUSED static void restated_store(enum adam_type type, void *array, size_t i, double value) {
  if (type == ADAM_TYPE_DOUBLE)
    ((double *)array)[i] = value;
  else if (type == ADAM_TYPE_FLOAT)
    ((float *)array)[i] = gpu_nan((float)value);
  else
    ((uint16_t *)array)[i] = bits_of_16(value, exponent_bits_of(type));
}

/* ---- the formulas ---- */

UNUSED static bool has_float_scalars(enum adam_generation generation) {
  return generation == ADAM_FLOAT || generation == ADAM_MIXED;
}

/* M and V in opmath float, unrounded; NaN as they come. */
UNUSED static void restated_moments(const struct adam_job *j, float g, float *m, float *v) {
  if (has_float_scalars(j->generation)) {
    const float b1 = (float)j->beta1, b2 = (float)j->beta2, q = g * g;
    const float inner1 = fmaf(-b1, g, g), inner2 = fmaf(-b2, q, q);
    *m = fmaf(b1, *m, inner1);
    *v = fmaf(b2, *v, inner2);
    return;
  }
  const double wide = (double)g, rest1 = 1.0 - j->beta1, rest2 = 1.0 - j->beta2;
  const double product2 = rest2 * wide;
  if (j->form == ADAM_FUSES_GRADIENT) {
    const double kept1 = j->beta1 * (double)*m, kept2 = j->beta2 * (double)*v;
    *m = (float)fma(rest1, wide, kept1);
    *v = (float)fma(product2, wide, kept2);
  } else {
    const double new1 = rest1 * wide, new2 = product2 * wide;
    *m = (float)fma((double)*m, j->beta1, new1);
    *v = (float)fma((double)*v, j->beta2, new2);
  }
}

UNUSED static void restated_moments_double(const struct adam_job *j, double g, double *m,
                                           double *v) {
  const double b1 = j->beta1, b2 = j->beta2, rest1 = 1.0 - b1, product2 = (1.0 - b2) * g;
  double m1, v1;
  if (has_float_scalars(j->generation)) {
    const double q = g * g, inner1 = fma(-b1, g, g), inner2 = fma(-b2, q, q);
    m1 = fma(b1, *m, inner1);
    v1 = fma(b2, *v, inner2);
  } else if (j->form == ADAM_FUSES_GRADIENT) {
    const double kept1 = b1 * *m, kept2 = b2 * *v;
    m1 = fma(rest1, g, kept1);
    v1 = fma(product2, g, kept2);
  } else {
    const double new1 = rest1 * g, new2 = product2 * g;
    m1 = fma(*m, b1, new1);
    v1 = fma(*v, b2, new2);
  }
  *m = gpu_nan_double(m1, *m, g);
  *v = gpu_nan_double(v1, *v, g);
}

/* V, or with amsgrad the greater of it and the maximum; a maximum that stays is only rewritten where
 * it is converted. */
UNUSED static double restated_second(const struct adam_job *j, size_t i, double v) {
  if (!j->max_exp_avg_sq)
    return v;
  const double before = restated_load(j->state_type, j->max_exp_avg_sq, i);
  const bool converted = adam_type_bytes(j->state_type) == 2;
  if (before < v || converted)
    restated_store(j->state_type, j->max_exp_avg_sq, i, before < v ? v : before);
  return before < v ? v : before;
}

/* The job's element i, on its own arrays. */
UNUSED static void restated_element(const struct adam_job *j, size_t i) {
  const double read = restated_load(j->gradient_type, j->gradient, i);
  const double g = j->negate ? -read : read;
  double m = restated_load(j->state_type, j->exp_avg, i);
  double v = restated_load(j->state_type, j->exp_avg_sq, i);
  if (j->state_type == ADAM_TYPE_DOUBLE) {
    restated_moments_double(j, g, &m, &v);
    const double second = restated_second(j, i, v);
    const double ratio = sqrt(second) / j->scalars.bias_correction2_sqrt_double;
    const double denominator = ratio + j->eps, scaled = j->scalars.step_size_double * m;
    ((double *)j->update)[i] = gpu_nan_double(scaled / denominator, m, second);
  } else {
    float m1 = (float)m, v1 = (float)v;
    restated_moments(j, (float)g, &m1, &v1);
    m = (double)m1;
    v = (double)v1;
    const float ratio = sqrtf((float)restated_second(j, i, v)) / j->scalars.bias_correction2_sqrt;
    const float denominator =
        has_float_scalars(j->generation) ? ratio + (float)j->eps : (float)((double)ratio + j->eps);
    const float scaled = j->scalars.step_size * m1;
    ((float *)j->update)[i] = gpu_nan(scaled / denominator);
  }
  restated_store(j->state_type, j->exp_avg, i, m);
  restated_store(j->state_type, j->exp_avg_sq, i, v);
}

UNUSED static void restated_step(const struct adam_job *job) {
  for (size_t i = 0; i < job->elements; i++)
    restated_element(job, i);
}

/* The gradient with maximize and L2 decay in it, in opmath: what the GPU's prologue ships for the CPU
 * step. `g` is after grad_scale. */
UNUSED static double restated_gradient(const struct adam_candidate *c, const struct adam_hyper *h,
                                       double p, double g) {
  const bool fused = c->decay == ADAM_DECAY_FUSED;
  g = h->maximize ? -g : g;
  if (c->mode != ADAM_L2 || c->decay == ADAM_DECAY_NONE)
    return g;
  if (c->type == ADAM_TYPE_DOUBLE) {
    const double product = p * h->weight_decay, sum = g + product;
    return gpu_nan_double(fused ? fma(p, h->weight_decay, g) : sum, g, p);
  }
  if (has_float_scalars(c->generation)) {
    const float wd = (float)h->weight_decay, product = (float)p * wd, sum = (float)g + product;
    return (double)(fused ? fmaf((float)p, wd, (float)g) : sum);
  }
  const double product = p * h->weight_decay;
  return (double)(float)(fused ? fma(p, h->weight_decay, g) : g + product);
}

/* The parameter after AdamW's decay, in opmath, before the update is subtracted: what the GPU's apply
 * kernel does. */
UNUSED static double restated_decay(const struct adam_candidate *c, const struct adam_scalars *s,
                                    double p) {
  const bool fused = c->decay == ADAM_DECAY_FUSED;
  if (c->mode != ADAM_W || c->decay == ADAM_DECAY_NONE)
    return p;
  const double product = s->lr_decay_double * p, difference = p - product;
  const double wide = fused ? fma(-s->lr_decay_double, p, p) : difference;
  if (c->type == ADAM_TYPE_DOUBLE)
    return gpu_nan_double(wide, p, p);
  if (!has_float_scalars(c->generation))
    return (double)(float)wide;
  const float narrow_product = s->lr_decay * (float)p;
  return (double)(fused ? fmaf(-s->lr_decay, (float)p, (float)p) : (float)p - narrow_product);
}

/* The whole kernel in three parts, as the CPU step does it: gradient on the GPU, moments and update by
 * `step`, parameter on the GPU. `gradient` and `update` are scratch of 8 bytes an element. */
UNUSED static void restated_kernel(const struct adam_candidate *c, const struct adam_hyper *h,
                                   const struct adam_scalars *s, uint64_t elements,
                                   const struct adam_tensors *t, void *gradient, void *update,
                                   void (*step)(const struct adam_job *, const void *),
                                   const void *with) {
  const enum adam_type opmath = adam_type_opmath(c->type);
  const bool shipped = t->grad_scale || (c->mode == ADAM_L2 && c->decay != ADAM_DECAY_NONE);
  for (size_t i = 0; i < elements && shipped; i++) {
    double g = restated_load(c->type, t->g, i);
    if (t->grad_scale) {
      g = c->type == ADAM_TYPE_DOUBLE
              ? gpu_nan_double(g / (double)*t->grad_scale, g, (double)*t->grad_scale)
              : (double)((float)g / *t->grad_scale);
      restated_store(c->type, t->g, i, g);
    }
    g = restated_gradient(c, h, restated_load(c->type, t->p, i), g);
    restated_store(opmath, gradient, i, g);
  }
  const struct adam_job job = {.gradient = shipped ? gradient : t->g,
                               .gradient_type = shipped ? opmath : c->type,
                               .state_type = c->state_type,
                               .exp_avg = t->m,
                               .exp_avg_sq = t->v,
                               .max_exp_avg_sq = c->amsgrad ? t->max_v : NULL,
                               .update = update,
                               .elements = elements,
                               .negate = h->maximize && !shipped,
                               .generation = c->generation,
                               .form = c->form,
                               .beta1 = h->beta1,
                               .beta2 = h->beta2,
                               .eps = h->eps,
                               .scalars = *s};
  step(&job, with);
  for (size_t i = 0; i < elements; i++) {
    const double p = restated_decay(c, s, restated_load(c->type, t->p, i));
    const double u = restated_load(opmath, update, i), difference = p - u;
    restated_store(c->type, t->p, i,
                   c->type == ADAM_TYPE_DOUBLE ? gpu_nan_double(difference, p, u)
                                               : (double)((float)p - (float)u));
  }
}

UNUSED static void step_restated(const struct adam_job *job, const void *unused) {
  (void)unused;
  restated_step(job);
}

/* With a table of kernels. */
UNUSED static void step_by_kernels(const struct adam_job *job, const void *kernels) {
  struct adam_constants constants;
  adam_constants_of(job, job->elements, job->elements, &constants);
  /* As in a long job, half of the time. */
  constants.stream_update = constants.stream_update || job->elements % 2;
  adam_kernel_of(kernels, job)(&constants, job->gradient, job->exp_avg, job->exp_avg_sq,
                               job->max_exp_avg_sq, job->update, job->elements);
}

/* ---- instruction sets ---- */

/* Every instruction set that is built for this architecture; `run` says whether this machine has
 * it. */
struct variant {
  enum adam_isa isa;
  bool run;
  const struct adam_kernels *kernels;
};
enum { VARIANTS_MOST = 4 };

UNUSED static size_t variants(struct variant list[VARIANTS_MOST]) {
  static const enum adam_isa built[] = {
    ADAM_ISA_SCALAR,
#if defined __x86_64__
    ADAM_ISA_AVX2,
    ADAM_ISA_AVX512,
#elif defined __aarch64__
    ADAM_ISA_NEON,
#endif
  };
  const unsigned available = isa_available();
  size_t count = 0;
  for (size_t i = 0; i < sizeof built / sizeof *built; i++) {
    char error[256];
    enum adam_isa chosen;
    list[count].isa = built[i];
    list[count].run = available >> built[i] & 1;
    list[count].kernels = isa_choose(built[i], available, &chosen, error, sizeof error);
    count++;
  }
  return count;
}
#endif
