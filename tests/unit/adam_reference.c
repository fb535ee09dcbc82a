/* The reference arithmetic against the formulas restated in adam_support.h, done in parts as the CPU step does them: every
   generation, type, mode, decay and form on hostile data. */
#include "adam_hostile.h"
#include "tests/lib/tap.h"

enum { MOST = 2176 };

/* One candidate on one setting: whether all arrays are those of the formulas in parts, as the CPU step
 * does them. */
static bool reference_right(const struct adam_candidate *c, size_t setting, bool scaled) {
  static double have[5][MOST], want[5][MOST], gradient[MOST], update[MOST];
  static const float grad_scale = 3;
  const struct adam_hyper *h = &settings[setting].hyper;
  struct adam_scalars s;
  set_scalars(&s, setting);
  uint64_t seed = setting + 77;
  for (int q = 0; q < 5; q++)
    fill_hostile(q < 2 ? c->type : c->state_type, have[q], MOST, &seed);
  memcpy(want, have, sizeof want);
  struct adam_tensors t = {.p = have[0],
                           .g = have[1],
                           .m = have[2],
                           .v = have[3],
                           .max_v = have[4],
                           .grad_scale = scaled ? &grad_scale : NULL};
  reference_step(c, h, &s, MOST, &t);
  t.p = want[0];
  t.g = want[1];
  t.m = want[2];
  t.v = want[3];
  t.max_v = want[4];
  restated_kernel(c, h, &s, MOST, &t, gradient, update, step_restated, NULL);
  return !memcmp(have, want, sizeof want);
}

static void test_reference(void) {
  static const struct {
    enum adam_type type, state;
  } types[] = {{ADAM_TYPE_FLOAT, ADAM_TYPE_FLOAT},
               {ADAM_TYPE_DOUBLE, ADAM_TYPE_DOUBLE},
               {ADAM_TYPE_HALF, ADAM_TYPE_HALF},
               {ADAM_TYPE_BFLOAT16, ADAM_TYPE_BFLOAT16},
               {ADAM_TYPE_FLOAT, ADAM_TYPE_BFLOAT16}};
  for (int generation = 0; generation < ADAM_GENERATIONS; generation++)
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
      size_t wrong = 0, cases = 0;
      for (int mode = 0; mode < 2; mode++)
        for (int decay = 0; decay < 3; decay++)
          for (int form = 0; form < ADAM_FORMS; form++)
            for (size_t setting = 0; setting < SETTINGS; setting++) {
              const struct adam_candidate c = {.generation = (enum adam_generation)generation,
                                               .mode = (enum adam_mode)mode,
                                               .decay = (enum adam_decay)decay,
                                               .form = (enum adam_form)form,
                                               .type = types[k].type,
                                               .state_type = types[k].state,
                                               .amsgrad = (setting + (size_t)decay) % 2};
              if (c.decay != ADAM_DECAY_NONE && (float)settings[setting].hyper.weight_decay == 0.0f)
                continue;
              cases++;
              wrong += !reference_right(&c, setting, setting % 3 == 0);
            }
      if (!tap_ok(!wrong && cases > 50,
                  "the reference of %s for %s with %s moments equals the formulas for every mode, "
                  "decay and form",
                  generation_name((enum adam_generation)generation), type_name(types[k].type),
                  type_name(types[k].state)))
        printf("# %zu of %zu cases wrong\n", wrong, cases);
    }
}

int main(void) {
  test_reference();
  return tap_done();
}
