/* What the tests of adam/ share: the formulas said once more in their own words (from the
   machine code of PyTorch's wheels), hostile numbers, and every table of kernels that
   this machine can run. */
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

UNUSED static float gpu_nan(float x) {
  return isnan(x) ? float_of(0x7fffffffu) : x;
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

/* What a kernel does to one element's moments, and the update; for the gradient as the kernel finds
 * it. */
UNUSED static void restated_moments(enum adam_generation generation, const struct adam_hyper *h,
                                    const struct adam_scalars *s, float gradient, float *m,
                                    float *v, float *update) {
  float denominator;
  if (generation == ADAM_FLOAT) {
    float b1 = (float)h->beta1, b2 = (float)h->beta2, q = gradient * gradient;
    float inner1 = fmaf(-b1, gradient, gradient), inner2 = fmaf(-b2, q, q);
    *m = fmaf(b1, *m, inner1);
    *v = fmaf(b2, *v, inner2);
    denominator = sqrtf(*v) / s->bias_correction2_sqrt;
    denominator = denominator + (float)h->eps;
  } else {
    double g = gradient, rest1 = 1.0 - h->beta1, rest2 = 1.0 - h->beta2;
    double product1 = rest1 * g, product2 = rest2 * g;
    product2 = product2 * g;
    *m = (float)fma((double)*m, h->beta1, product1);
    *v = (float)fma((double)*v, h->beta2, product2);
    denominator = (float)((double)(sqrtf(*v) / s->bias_correction2_sqrt) + h->eps);
  }
  float scaled = s->step_size * *m;
  *update = gpu_nan(scaled / denominator);
  *m = gpu_nan(*m);
  *v = gpu_nan(*v);
}

/* The gradient with maximize and L2 decay in it: what the GPU's prologue ships for the CPU step. */
UNUSED static float restated_gradient(const struct adam_candidate *c, const struct adam_hyper *h,
                                      float p, float g) {
  g = h->maximize ? -g : g;
  if (c->mode != ADAM_L2 || c->decay == ADAM_DECAY_NONE)
    return g;
  if (c->generation == ADAM_FLOAT) {
    float wd = (float)h->weight_decay, product = p * wd;
    return c->decay == ADAM_DECAY_FUSED ? fmaf(p, wd, g) : g + product;
  }
  double product = (double)p * h->weight_decay;
  return c->decay == ADAM_DECAY_FUSED ? (float)fma((double)p, h->weight_decay, (double)g)
                                      : (float)((double)g + product);
}

/* The parameter after AdamW's decay, before the update is subtracted: what the GPU's apply kernel
 * does. */
UNUSED static float restated_decay(const struct adam_candidate *c, const struct adam_scalars *s,
                                   float p) {
  if (c->mode != ADAM_W || c->decay == ADAM_DECAY_NONE)
    return p;
  if (c->generation == ADAM_FLOAT) {
    float product = s->lr_decay * p;
    return c->decay == ADAM_DECAY_FUSED ? fmaf(-s->lr_decay, p, p) : p - product;
  }
  double product = s->lr_decay_double * (double)p;
  return c->decay == ADAM_DECAY_FUSED ? (float)fma(-s->lr_decay_double, (double)p, (double)p)
                                      : (float)((double)p - product);
}

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
