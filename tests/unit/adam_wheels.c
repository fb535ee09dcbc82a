/* The reference and every variant against PyTorch's own machine code: hashes of the results that
   the kernels of the wheels (torch 2.10.0, 2.11.0) give on these inputs, computed from their machine
   code, which was said again as C instruction by instruction. Only the fp32 cases that are candidates
   here: no amsgrad, and not L2 decay as 2.11+ compiled it for sm_75 to sm_90, which fuses by unroll
   slot. */
#include "adam_support.h"
#include "tests/lib/tap.h"

enum { ELEMENTS = 4100, ROUNDS = 4 };

static const struct {
  enum adam_generation generation;
  enum adam_mode mode;
  bool maximize,
      scaled; /* scaled: the kernel divides the gradient by grad_scale first and writes it back */
  uint64_t hash;
  const char *name;
} cases[] = {
    {ADAM_DOUBLE, ADAM_L2, false, false, 0x1a3de964764dbc6full, "torch 2.10 Adam"},
    {ADAM_DOUBLE, ADAM_L2, true, false, 0xb96e0ab93f86f53eull, "torch 2.10 Adam, maximize"},
    {ADAM_DOUBLE, ADAM_L2, false, true, 0x9f97240fa97111fbull, "torch 2.10 Adam, grad_scale"},
    {ADAM_DOUBLE, ADAM_L2, true, true, 0x8531cb35bc629840ull, "torch 2.10 Adam, both"},
    {ADAM_DOUBLE, ADAM_W, false, false, 0x860366806bdee5f3ull, "torch 2.10 AdamW"},
    {ADAM_DOUBLE, ADAM_W, true, true, 0x334b6f5ff588e695ull, "torch 2.10 AdamW, both"},
    {ADAM_FLOAT, ADAM_L2, false, false, 0xd48b1edbf14d729cull, "torch 2.11 Adam on sm_100"},
    {ADAM_FLOAT, ADAM_L2, true, false, 0x928c6439104d2ae5ull,
     "torch 2.11 Adam on sm_100, maximize"},
    {ADAM_FLOAT, ADAM_L2, false, true, 0xa1ac6505d945a4d6ull, "torch 2.11 Adam, grad_scale"},
    {ADAM_FLOAT, ADAM_L2, true, true, 0xc6ee1bde5ad8a05cull, "torch 2.11 Adam, both"},
    {ADAM_FLOAT, ADAM_W, false, false, 0x1a9f6cecc0ea3b3dull, "torch 2.11 AdamW"},
    {ADAM_FLOAT, ADAM_W, true, true, 0x63f4df038b88a3a5ull, "torch 2.11 AdamW, both"},
};
enum { CASES = sizeof cases / sizeof *cases };

enum { P, G, M, V, ARRAYS };
static float data[ARRAYS][ELEMENTS];

static double uniform(uint64_t *state) {
  return (double)(random_bits(state) & 0xfffffffffull) / 68719476736.0;
}

/* The inputs of round r, as they were drawn for the hashes. */
static void draw(size_t number, int r, struct adam_hyper *hyper, float *step) {
  static const float steps[ROUNDS] = {1, 2, 137, 100000};
  static const double beta2[ROUNDS] = {0.999, 0.95, 0.999, 0.98};
  const double scale[ARRAYS] = {1, cases[number].scaled ? 100 : 0.1, 0.01, 0.01};
  uint64_t state = 88172645463325252ull;
  *step = steps[r];
  *hyper = (struct adam_hyper){.lr = 1e-3,
                               .beta1 = 0.9,
                               .beta2 = beta2[r],
                               .weight_decay = r == 1 ? 0 : 0.1 * (r + 1),
                               .eps = 1e-8,
                               .maximize = cases[number].maximize};
  for (int q = 0; q < ARRAYS; q++)
    for (int i = 0; i < ELEMENTS; i++) {
      double x = (2 * uniform(&state) - 1) * scale[q];
      if (q == V)
        x = x * x;
      data[q][i] = (float)x;
      if (q == G && cases[number].scaled)
        data[q][i] = data[q][i] / 1000.0f;
    }
}

static uint64_t hash_of(uint64_t hash) {
  for (int q = 0; q < ARRAYS; q++)
    for (size_t i = 0; i < sizeof data[q]; i++)
      hash = (hash ^ ((const unsigned char *)data[q])[i]) * 0x100000001b3ull;
  return hash;
}

static void by_reference(const struct adam_candidate *c, const struct adam_hyper *h,
                         const struct adam_scalars *s) {
  reference_step(c, h, s, ELEMENTS, data[P], data[G], data[M], data[V]);
}

/* In three parts, as the step does it: gradient on the GPU, moments on the CPU, parameter on the
 * GPU. */
static void by_kernel(const struct adam_kernels *kernels, const struct adam_candidate *c,
                      const struct adam_hyper *h, const struct adam_scalars *s) {
  static float gradient[ELEMENTS], update[ELEMENTS];
  for (int i = 0; i < ELEMENTS; i++)
    gradient[i] = restated_gradient(c, h, data[P][i], data[G][i]);
  const struct adam_job job = {.generation = c->generation,
                               .beta1 = h->beta1,
                               .beta2 = h->beta2,
                               .eps = h->eps,
                               .scalars = *s};
  struct adam_constants constants;
  adam_constants_of(&job, &constants);
  (c->generation == ADAM_FLOAT ? kernels->float_scalars : kernels->double_scalars)(
      &constants, gradient, data[M], data[V], update, ELEMENTS);
  for (int i = 0; i < ELEMENTS; i++)
    data[P][i] = restated_decay(c, s, data[P][i]) - update[i];
}

/* kernels == NULL: the reference. */
static uint64_t run_case(size_t number, const struct adam_kernels *kernels, enum adam_decay decay) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (int r = 0; r < ROUNDS; r++) {
    struct adam_hyper hyper;
    struct adam_scalars scalars;
    float step;
    draw(number, r, &hyper, &step);
    const struct adam_candidate candidate = {cases[number].generation, cases[number].mode,
                                             hyper.weight_decay != 0 ? decay : ADAM_DECAY_NONE};
    scalars_by_libm(candidate.generation, &hyper, step, 0, 0, &scalars);
    if (kernels)
      by_kernel(kernels, &candidate, &hyper, &scalars);
    else
      by_reference(&candidate, &hyper, &scalars);
    hash = hash_of(hash);
  }
  return hash;
}

int main(void) {
  struct variant list[VARIANTS_MOST];
  const size_t count = variants(list);
  for (size_t i = 0; i < CASES; i++)
    tap_ok(run_case(i, NULL, ADAM_DECAY_FUSED) == cases[i].hash,
           "the reference gives the bits of %s", cases[i].name);
  for (size_t k = 0; k < count; k++) {
    size_t same = 0;
    char sentence[128];
    snprintf(sentence, sizeof sentence, "%s gives the bits of PyTorch's kernels in all cases",
             isa_name(list[k].isa));
    if (!list[k].run) {
      tap_skip(sentence, "this machine lacks the instruction set");
      continue;
    }
    for (size_t i = 0; i < CASES; i++)
      same += run_case(i, list[k].kernels, ADAM_DECAY_FUSED) == cases[i].hash;
    tap_ok(same == CASES, "%s", sentence);
  }
  /* With double scalars the two differ in one element of 2^29: only float scalars show it on
   * ordinary data. */
  size_t told_apart = 0, float_cases = 0;
  for (size_t i = 0; i < CASES; i++)
    if (cases[i].generation == ADAM_FLOAT) {
      float_cases++;
      told_apart += run_case(i, NULL, ADAM_DECAY_UNFUSED) != cases[i].hash;
    }
  tap_ok(float_cases && told_apart == float_cases,
         "unfused weight decay gives other bits in all cases with float scalars");
  return tap_done();
}
