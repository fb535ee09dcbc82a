/* Every variant of the kernels against the formulas restated here, on hostile data, at every size
   and alignment; the reference arithmetic likewise; and the choice among instruction sets. */
#include "adam_support.h"
#include "tests/lib/tap.h"
#include <float.h>
#include <stdlib.h>

enum { MOST = 4352, GUARD = 16, GUARD_BITS = 0x5eed5eed };

/* Scalars as launches have them, and as none should. */
static const struct {
  struct adam_hyper hyper;
  float step_size, correction;
} settings[] = {
    {{1e-3, 0.9, 0.999, 0.1, 1e-8, false}, 1e-3f, 0.7f},
    {{2e-3, 0.9, 0.95, 0.01, 1e-8, true}, 0.02f, 0.03162278f},
    {{1.0, 0.0, 0.0, 0.5, 0.0, false}, 1.0f, 1.0f},
    {{1e-5, 1 - 0x1p-40, 0.5, 0.1, 1e-15, false}, 9.1e6f, 0.70710677f},
    {{1e30, 0.5, 1.0, 1e-30, 1e-300, true}, FLT_MAX, 1e-38f},
    {{0.0, 0.8, 0.98, 0.0, 1e-8, false}, 0.0f, 0.0f},
    {{1e-3, 0.9, 0.999, 0.1, 1e-8, false}, NAN, INFINITY},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

struct arrays {
  float store[4][MOST + 2 * GUARD];
  float *g, *m, *v, *u; /* at differing offsets of 4 bytes */
};

static void fill(struct arrays *a, uint64_t seed, size_t elements) {
  float **const starts[4] = {&a->g, &a->m, &a->v, &a->u};
  for (size_t q = 0; q < 4; q++) {
    for (size_t i = 0; i < MOST + 2 * GUARD; i++)
      a->store[q][i] = float_of(GUARD_BITS);
    *starts[q] = a->store[q] + (q < 3 ? (seed * (q + 3) + q) % GUARD : seed % GUARD);
    for (size_t i = 0; i < elements && q < 3; i++)
      (*starts[q])[i] = hostile(&seed);
  }
}

/* Elements that differ from the restated formulas, and guards that were written to. */
static size_t compare(const struct arrays *a, const struct arrays *before, const struct adam_job *j,
                      const struct adam_hyper *hyper) {
  size_t wrong = 0;
  for (size_t i = 0; i < j->elements; i++) {
    float m = before->m[i], v = before->v[i], u;
    restated_moments(j->generation, hyper, &j->scalars, j->negate ? -before->g[i] : before->g[i],
                     &m, &v, &u);
    wrong += bits_of(m) != bits_of(a->m[i]) || bits_of(v) != bits_of(a->v[i]) ||
             bits_of(u) != bits_of(a->u[i]) || bits_of(a->g[i]) != bits_of(before->g[i]);
  }
  const float *const starts[4] = {a->g, a->m, a->v, a->u};
  for (size_t q = 0; q < 4; q++)
    for (size_t i = 0; i < MOST + 2 * GUARD; i++)
      if (a->store[q] + i < starts[q] || a->store[q] + i >= starts[q] + j->elements)
        wrong += bits_of(a->store[q][i]) != GUARD_BITS;
  return wrong;
}

static struct arrays before, after;

/* One call of a kernel on fresh data. */
static size_t wrong_in_call(const struct adam_kernels *kernels, enum adam_generation generation,
                            size_t setting, size_t elements, uint64_t seed) {
  struct adam_constants constants;
  const struct adam_hyper *hyper = &settings[setting].hyper;
  fill(&before, seed, elements);
  fill(&after, seed, elements);
  struct adam_job job = {.gradient = after.g,
                         .exp_avg = after.m,
                         .exp_avg_sq = after.v,
                         .update = after.u,
                         .elements = elements,
                         .negate = hyper->maximize,
                         .generation = generation,
                         .beta1 = hyper->beta1,
                         .beta2 = hyper->beta2,
                         .eps = hyper->eps};
  job.scalars.step_size = settings[setting].step_size;
  job.scalars.bias_correction2_sqrt = settings[setting].correction;
  adam_constants_of(&job, &constants);
  (generation == ADAM_FLOAT ? kernels->float_scalars : kernels->double_scalars)(
      &constants, job.gradient, job.exp_avg, job.exp_avg_sq, job.update, job.elements);
  return compare(&after, &before, &job, hyper);
}

static void test_variant(const struct variant *variant) {
  static const enum adam_generation generations[] = {ADAM_DOUBLE, ADAM_FLOAT};
  for (size_t k = 0; k < 2; k++) {
    const char *scalars = generations[k] == ADAM_FLOAT ? "float" : "double";
    char small[128], large[128];
    snprintf(small, sizeof small,
             "%s with %s scalars is exact for 0 to 70 elements at any alignment",
             isa_name(variant->isa), scalars);
    snprintf(large, sizeof large, "%s with %s scalars is exact for thousands of hostile elements",
             isa_name(variant->isa), scalars);
    if (!variant->run) {
      tap_skip(small, "this machine lacks the instruction set");
      tap_skip(large, "this machine lacks the instruction set");
      continue;
    }
    size_t wrong = 0;
    for (size_t elements = 0; elements <= 70; elements++)
      for (uint64_t seed = 1; seed <= 16; seed++)
        wrong += wrong_in_call(variant->kernels, generations[k], seed % SETTINGS, elements,
                               seed + 100 * elements);
    if (!tap_ok(!wrong, "%s", small))
      printf("# %zu elements or guards wrong\n", wrong);
    wrong = 0;
    for (size_t setting = 0; setting < SETTINGS; setting++)
      for (uint64_t seed = 1; seed <= 12; seed++)
        wrong += wrong_in_call(variant->kernels, generations[k], setting,
                               MOST - (size_t)(seed * 7 % 64), seed * 977 + setting);
    if (!tap_ok(!wrong, "%s", large))
      printf("# %zu elements or guards wrong\n", wrong);
  }
}

/* The data must contain what it is there for: a test of NaN without NaN proves nothing. */
static void test_data_is_hostile(void) {
  size_t nan = 0, infinite = 0, denormal = 0, zero = 0, update_nan = 0, update_number = 0;
  wrong_in_call(&adam_kernels_scalar, ADAM_FLOAT, 0, MOST, 5);
  for (size_t i = 0; i < MOST; i++) {
    nan += isnan(before.g[i]) && bits_of(before.g[i]) != 0x7fffffffu;
    infinite += isinf(before.m[i]) != 0;
    denormal += fpclassify(before.v[i]) == FP_SUBNORMAL;
    zero += before.g[i] == 0.0f;
    update_nan += bits_of(after.u[i]) == 0x7fffffffu;
    update_number += isfinite(after.u[i]) != 0;
  }
  tap_ok(
      nan > 50 && infinite > 50 && denormal > 50 && zero > 50 && update_nan > 50 &&
          update_number > 500,
      "the data has NaN, infinities, denormals and zeros, and finite and NaN updates come of it");
}

/* The reference, every candidate, against the formulas in parts as the CPU step does them. */
static void test_reference(void) {
  static float p[MOST], g[MOST], m[MOST], v[MOST], p2[MOST], m2[MOST], v2[MOST];
  for (int generation = 0; generation < ADAM_GENERATIONS; generation++) {
    size_t wrong = 0;
    for (int mode = 0; mode < 2; mode++)
      for (int decay = 0; decay < 3; decay++)
        for (size_t setting = 0; setting < SETTINGS; setting++) {
          const struct adam_candidate c = {(enum adam_generation)generation, (enum adam_mode)mode,
                                           (enum adam_decay)decay};
          const struct adam_hyper *h = &settings[setting].hyper;
          if (c.decay != ADAM_DECAY_NONE && (float)h->weight_decay == 0.0f)
            continue;
          struct adam_scalars s = {settings[setting].step_size, settings[setting].correction,
                                   (float)h->lr * (float)h->weight_decay, h->lr * h->weight_decay};
          uint64_t seed = setting + 77;
          for (size_t i = 0; i < MOST; i++) {
            p[i] = p2[i] = hostile(&seed);
            g[i] = hostile(&seed);
            m[i] = m2[i] = hostile(&seed);
            v[i] = v2[i] = hostile(&seed);
          }
          reference_step(&c, h, &s, MOST, p, g, m, v);
          for (size_t i = 0; i < MOST; i++) {
            float u, gradient = restated_gradient(&c, h, p2[i], g[i]);
            restated_moments(c.generation, h, &s, gradient, &m2[i], &v2[i], &u);
            const float expected = gpu_nan(restated_decay(&c, &s, p2[i]) - u);
            wrong += bits_of(m[i]) != bits_of(m2[i]) || bits_of(v[i]) != bits_of(v2[i]) ||
                     bits_of(p[i]) != bits_of(expected);
          }
        }
    if (!tap_ok(!wrong, "the reference of %s equals the formulas for every mode and decay",
                generation_name((enum adam_generation)generation)))
      printf("# %zu elements wrong\n", wrong);
  }
}

static void test_choice(void) {
  char error[512] = "";
  enum adam_isa chosen = ADAM_ISA_AUTO;
  const unsigned scalar = 1u << ADAM_ISA_SCALAR;
#if defined __x86_64__
  const unsigned avx2 = scalar | 1u << ADAM_ISA_AVX2, avx512 = avx2 | 1u << ADAM_ISA_AVX512;
  tap_ok(isa_choose(ADAM_ISA_AUTO, avx512, &chosen, error, sizeof error) == &adam_kernels_avx512 &&
             chosen == ADAM_ISA_AVX512,
         "auto takes AVX-512 where it is there");
  tap_ok(isa_choose(ADAM_ISA_AUTO, avx2, &chosen, error, sizeof error) == &adam_kernels_avx2 &&
             chosen == ADAM_ISA_AVX2,
         "auto takes AVX2 on a machine without AVX-512");
  tap_ok(!isa_choose(ADAM_ISA_AVX512, avx2, &chosen, error, sizeof error) &&
             strstr(error, "OFFLOAD_ISA=avx512") && strstr(error, "scalar, avx2"),
         "forcing an instruction set that the machine lacks says which there are");
  const enum adam_isa foreign = ADAM_ISA_NEON;
#else
  const enum adam_isa foreign = ADAM_ISA_AVX2;
#endif
  tap_ok(!isa_choose(foreign, isa_available(), &chosen, error, sizeof error) &&
             strstr(error, isa_name(foreign)),
         "forcing another architecture's instruction set is refused in a sentence");
  error[0] = 0;
  tap_ok(!isa_choose(ADAM_ISA_AUTO, scalar, &chosen, error, sizeof error) &&
             strstr(error, "OFFLOAD_STEP=stream"),
         "auto declines on a machine without vector code and names the other steps");
  tap_ok(isa_choose(ADAM_ISA_SCALAR, scalar, &chosen, error, sizeof error) ==
                 &adam_kernels_scalar &&
             chosen == ADAM_ISA_SCALAR,
         "the scalar code can be forced");
}

int main(void) {
  struct variant list[VARIANTS_MOST];
  const size_t count = variants(list);
  test_data_is_hostile();
  for (size_t i = 0; i < count; i++)
    test_variant(&list[i]);
  test_reference();
  test_choice();
  return tap_done();
}
