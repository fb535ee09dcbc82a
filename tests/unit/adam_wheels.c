/* The reference, the formulas as the tests say them, and every variant of the kernels against
   PyTorch's own machine code: hashes of the results that the kernels of the wheels give on these
   inputs (adam_wheels.def), computed from their machine code, which was said again as C instruction by
   instruction. */
#include "adam_support.h"
#include "tests/lib/tap.h"

enum { ELEMENTS = 4100, ROUNDS = 4 };

static const struct wheel {
  enum adam_generation generation;
  enum adam_type type, state_type;
  enum adam_mode mode;
  bool amsgrad, maximize, scaled, by_slot;
  uint64_t hash;
} wheels[] = {
#define WHEEL(...) {__VA_ARGS__},
#include "adam_wheels.def"
};
enum { WHEELS = sizeof wheels / sizeof *wheels };

enum { P, G, M, V, MAX_V, ARRAYS };
static double data[ARRAYS][ELEMENTS]; /* of any type */
static const float grad_scale = 1000;

static enum adam_type type_of(const struct wheel *wheel, int array) {
  return array < M ? wheel->type : wheel->state_type;
}

static void name_of(const struct wheel *wheel, char name[128]) {
  snprintf(name, 128, "%s Adam%s of %s%s%s%s%s", generation_name(wheel->generation),
           wheel->mode == ADAM_W ? "W" : "", type_name(wheel->type),
           wheel->amsgrad ? ", amsgrad" : "", wheel->maximize ? ", maximize" : "",
           wheel->scaled ? ", grad_scale" : "", wheel->by_slot ? ", decay fused by slot" : "");
}

static double uniform(uint64_t *state) {
  return (double)(random_bits(state) & 0xfffffffffull) / 68719476736.0;
}

/* The inputs of round r, as they were drawn for the hashes. */
static void draw(const struct wheel *wheel, int r, struct adam_hyper *hyper, float *step) {
  static const float steps[ROUNDS] = {1, 2, 137, 100000};
  static const double beta2[ROUNDS] = {0.999, 0.95, 0.999, 0.98};
  const double scale[ARRAYS] = {1, wheel->scaled ? 100 : 0.1, 0.01, 0.01, 0.01};
  uint64_t state = 88172645463325252ull;
  *step = steps[r];
  *hyper = (struct adam_hyper){.lr = 1e-3,
                               .beta1 = 0.9,
                               .beta2 = beta2[r],
                               .weight_decay = r == 1 ? 0 : 0.1 * (r + 1),
                               .eps = 1e-8,
                               .maximize = wheel->maximize};
  for (int q = 0; q < ARRAYS; q++)
    for (size_t i = 0; i < ELEMENTS; i++) {
      double x = (2 * uniform(&state) - 1) * scale[q];
      if (q >= V)
        x = x * x;
      const enum adam_type type = type_of(wheel, q);
      restated_store(type, data[q], i, type == ADAM_TYPE_DOUBLE ? x : (double)(float)x);
    }
}

static uint64_t hash_of(const struct wheel *wheel, uint64_t hash) {
  for (int q = 0; q < (wheel->amsgrad ? ARRAYS : MAX_V); q++)
    for (size_t i = 0; i < ELEMENTS * adam_type_bytes(type_of(wheel, q)); i++)
      hash = (hash ^ ((const unsigned char *)data[q])[i]) * 0x100000001b3ull;
  return hash;
}

/* Elements [first, first + elements). kernels == NULL: the reference; &restated: the formulas. */
static const struct adam_kernels restated;
static void run(const struct wheel *wheel, const struct adam_kernels *kernels,
                const struct adam_candidate *c, const struct adam_hyper *h,
                const struct adam_scalars *s, size_t first, size_t elements) {
  static double gradient[ELEMENTS], update[ELEMENTS];
  const size_t bytes = adam_type_bytes(wheel->type), state = adam_type_bytes(wheel->state_type);
  const struct adam_tensors t = {.p = (char *)data[P] + first * bytes,
                                 .g = (char *)data[G] + first * bytes,
                                 .m = (char *)data[M] + first * state,
                                 .v = (char *)data[V] + first * state,
                                 .max_v = (char *)data[MAX_V] + first * state,
                                 .grad_scale = wheel->scaled ? &grad_scale : NULL};
  if (kernels)
    restated_kernel(c, h, s, elements, &t, gradient, update,
                    kernels == &restated ? step_restated : step_by_kernels, kernels);
  else
    reference_step(c, h, s, elements, &t);
}

static uint64_t run_wheel(const struct wheel *wheel, const struct adam_kernels *kernels,
                          enum adam_decay decay, enum adam_form swap) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (int r = 0; r < ROUNDS; r++) {
    struct adam_hyper hyper;
    struct adam_scalars scalars;
    float step;
    draw(wheel, r, &hyper, &step);
    const bool gradient_exact = wheel->generation == ADAM_DOUBLE && wheel->mode == ADAM_W &&
                                adam_type_bytes(wheel->type) == 2;
    struct adam_candidate c = {.generation = wheel->generation,
                               .mode = wheel->mode,
                               .decay = hyper.weight_decay != 0 ? decay : ADAM_DECAY_NONE,
                               .form = (enum adam_form)((unsigned)gradient_exact ^ swap),
                               .type = wheel->type,
                               .state_type = wheel->state_type,
                               .amsgrad = wheel->amsgrad};
    scalars_by_libm(c.generation, &hyper, step, 0, 0, &scalars);
    if (!wheel->by_slot || c.decay == ADAM_DECAY_NONE)
      run(wheel, kernels, &c, &hyper, &scalars, 0, ELEMENTS);
    else
      for (size_t i = 0; i < ELEMENTS; i++) {
        c.decay = wheel->maximize || i % 4 == 0 ? ADAM_DECAY_UNFUSED : ADAM_DECAY_FUSED;
        run(wheel, kernels, &c, &hyper, &scalars, i, 1);
      }
    hash = hash_of(wheel, hash);
  }
  return hash;
}

/* In how many cases the hash is the wheel's; says which are not. */
static size_t right(const struct adam_kernels *kernels) {
  size_t count = 0;
  for (size_t i = 0; i < WHEELS; i++) {
    const bool same =
        run_wheel(&wheels[i], kernels, ADAM_DECAY_FUSED, ADAM_FUSES_MOMENT) == wheels[i].hash;
    char name[128];
    name_of(&wheels[i], name);
    if (!same)
      printf("# not so: %s\n", name);
    count += same;
  }
  return count;
}

int main(void) {
  struct variant list[VARIANTS_MOST];
  const size_t count = variants(list);
  tap_ok(right(NULL) == WHEELS,
         "the reference gives the bits of PyTorch's kernels in all %d cases of type, generation, "
         "mode, "
         "amsgrad, maximize and grad_scale",
         (int)WHEELS);
  tap_ok(right(&restated) == WHEELS, "so do the formulas that the other tests compare with");
  for (size_t k = 0; k < count; k++) {
    char sentence[128];
    snprintf(sentence, sizeof sentence, "%s gives the bits of PyTorch's kernels in all cases",
             isa_name(list[k].isa));
    if (list[k].run)
      tap_ok(right(list[k].kernels) == WHEELS, "%s", sentence);
    else
      tap_skip(sentence, "this machine lacks the instruction set");
  }
  /* With double scalars the two differ in one element of 2^29: only float scalars show it on
   * ordinary data. */
  size_t told_apart = 0, asked = 0, forms_apart = 0, forms_asked = 0;
  for (size_t i = 0; i < WHEELS; i++) {
    const struct wheel *wheel = &wheels[i];
    if (has_float_scalars(wheel->generation) && wheel->type == ADAM_TYPE_FLOAT && !wheel->by_slot) {
      asked++;
      told_apart += run_wheel(wheel, NULL, ADAM_DECAY_UNFUSED, ADAM_FUSES_MOMENT) != wheel->hash;
    }
    if (wheel->generation == ADAM_DOUBLE && wheel->type == ADAM_TYPE_DOUBLE) {
      forms_asked++;
      forms_apart += run_wheel(wheel, NULL, ADAM_DECAY_FUSED, ADAM_FUSES_GRADIENT) != wheel->hash;
    }
  }
  tap_ok(asked > 20 && told_apart == asked,
         "unfused weight decay gives other bits in all %zu cases with float scalars", asked);
  tap_ok(forms_asked > 10 && forms_apart == forms_asked,
         "the other product exact gives other bits in all %zu cases with doubles in memory",
         forms_asked);
  return tap_done();
}
