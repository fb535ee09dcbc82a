/* Does the data tell? Counts, pair by pair, the elements on which two candidate arithmetics differ: for calibration, whose
   scalars are its own, and for the running proof, whose scalars are the launch's. A pair that calibration's data does not
   tell apart is a failure. Where the proof's inputs show nothing of a difference, a quarter of a million others must not show it
   either. */
#include "shim/probe.h"
#include "tests/lib/tap.h"
#include <math.h>
#include <string.h>

static const struct adam_api *api;

static const char *decay_word(enum adam_decay decay) {
  return decay == ADAM_DECAY_NONE ? "no" : decay == ADAM_DECAY_FUSED ? "fused" : "unfused";
}

/* ---- calibration ---- */

/* Elements of set `index` on which the two differ, by place: slots of the kernel's vector loop (aligned sets) or of its
   scalar loop (the others). */
static void count_places(const struct calibration_case *c, const struct calibration_set *set,
                         unsigned index, const struct adam_candidate *a,
                         const struct adam_candidate *b, size_t places[2][4]) {
  static float lists[7][CALIBRATION_ELEMENTS];
  const struct elements first = {lists[0], lists[1], lists[2], lists[3]};
  struct adam_scalars scalars;
  calibration_fill(c, set, index, first);
  memcpy(lists[4], lists[0], sizeof lists[0]);
  memcpy(lists[5], lists[2], sizeof lists[0]);
  memcpy(lists[6], lists[3], sizeof lists[0]);
  api->scalars(a->generation, &set->hyper, set->step, 0, 0, &scalars);
  api->reference(
      a, &set->hyper, &scalars, set->elements,
      &(struct adam_tensors){.p = lists[0], .g = lists[1], .m = lists[2], .v = lists[3]});
  api->scalars(b->generation, &set->hyper, set->step, 0, 0, &scalars);
  api->reference(
      b, &set->hyper, &scalars, set->elements,
      &(struct adam_tensors){.p = lists[4], .g = lists[1], .m = lists[5], .v = lists[6]});
  for (unsigned i = 0; i < set->elements; i++)
    if (memcmp(&lists[0][i], &lists[4][i], 4) || memcmp(&lists[2][i], &lists[5][i], 4) ||
        memcmp(&lists[3][i], &lists[6][i], 4))
      places[set->offset][set->offset ? i / 512 % 4 : i % 4]++;
}

static size_t smallest(size_t places[2][4]) {
  size_t least = SIZE_MAX;
  for (int loop = 0; loop < 2; loop++)
    for (int slot = 0; slot < 4; slot++)
      if (places[loop][slot] < least)
        least = places[loop][slot];
  return least;
}

static const struct adam_hyper launches[] = {
    {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .weight_decay = 0.01, .eps = 1e-8},
    {.lr = 3e-4, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1, .eps = 1e-8},
    {.lr = 1e-5, .beta1 = 0.9, .beta2 = 0.999, .weight_decay = 0.1, .eps = 1e-6},
    {.lr = 2e-3, .beta1 = 0.8, .beta2 = 0.99, .weight_decay = 1e-4, .eps = 1e-10},
    {.lr = 1.0, .beta1 = 0.0, .beta2 = 0.5, .weight_decay = 0.9, .eps = 1e-3},
    {.lr = 1e-12, .beta1 = 0.9999, .beta2 = 0.99999, .weight_decay = 1e-6, .eps = 1e-16},
};
enum { LAUNCHES = sizeof launches / sizeof *launches };

static void test_calibration(enum adam_mode mode, bool decays, bool maximize, bool lr_is_float) {
  struct adam_candidate candidates[CANDIDATES_MOST];
  const unsigned count = candidates_list(mode, decays, candidates);
  size_t least = SIZE_MAX, least_place = SIZE_MAX;
  unsigned worst = 0, pairs = 0;
  for (unsigned l = 0; l < LAUNCHES; l++) {
    struct calibration_case c = {mode, decays, lr_is_float, launches[l]};
    c.hyper.maximize = maximize;
    if (!decays)
      c.hyper.weight_decay = 0;
    struct calibration_set sets[CALIBRATION_SETS];
    calibration_sets(api, &c, sets);
    for (unsigned a = 0; a < count; a++)
      for (unsigned b = a + 1; b < count; b++) {
        size_t different = 0, places[2][4] = {{0}};
        for (unsigned k = 0; k < CALIBRATION_SETS; k++) {
          different +=
              calibration_differences(api, &c, &sets[k], k, &candidates[a], &candidates[b]);
          count_places(&c, &sets[k], k, &candidates[a], &candidates[b], places);
        }
        pairs++;
        if (different < least) {
          least = different;
          worst = a * CANDIDATES_MOST + b;
        }
        if (candidates[a].generation == candidates[b].generation && smallest(places) < least_place)
          least_place = smallest(places);
      }
  }
  const struct adam_candidate *a = &candidates[worst / CANDIDATES_MOST],
                              *b = &candidates[worst % CANDIDATES_MOST];
  tap_ok(least >= 500,
         "calibration tells every pair apart: Adam%s, %s%s%s, %u pairs, at least %zu elements (%s "
         "with %s "
         "decay, %s with %s decay)",
         mode == ADAM_W ? "W" : "", decays ? "decay" : "no decay", maximize ? ", maximize" : "",
         lr_is_float ? ", lr pointer" : "", pairs, least, api->generation_name(a->generation),
         decay_word(a->decay), api->generation_name(b->generation), decay_word(b->decay));
  if (decays)
    tap_ok(least_place >= 100,
           "fused and unfused decay differ in every unroll slot of both loops, in at least %zu "
           "elements",
           least_place);
}

/* Every candidate is the only one that explains what it computes. */
static void test_choice(enum adam_mode mode, bool decays) {
  struct adam_candidate candidates[CANDIDATES_MOST];
  const unsigned count = candidates_list(mode, decays, candidates);
  struct calibration_case c = {mode, decays, false, launches[0]};
  if (!decays)
    c.hyper.weight_decay = 0;
  struct calibration_set sets[CALIBRATION_SETS];
  calibration_sets(api, &c, sets);
  unsigned right = 0;
  for (unsigned truth = 0; truth < count; truth++) {
    bool alive[CANDIDATES_MOST] = {true, true, true, true, true, true};
    for (unsigned k = 0; k < CALIBRATION_SETS; k++) {
      static float lists[11][CALIBRATION_ELEMENTS];
      const struct elements in = {lists[0], lists[1], lists[2], lists[3]},
                            out = {lists[4], lists[5], lists[6], lists[7]},
                            work = {lists[8], NULL, lists[9], lists[10]};
      struct adam_scalars scalars;
      bool nudged;
      calibration_fill(&c, &sets[k], k, in);
      memcpy(lists[4], lists[0], 4 * sizeof lists[0]);
      api->scalars(candidates[truth].generation, &sets[k].hyper, sets[k].step, 0, 0, &scalars);
      api->reference(&candidates[truth], &sets[k].hyper, &scalars, sets[k].elements,
                     &(struct adam_tensors){.p = out.p, .g = out.g, .m = out.m, .v = out.v});
      for (unsigned i = 0; i < count; i++)
        alive[i] = alive[i] && elements_prove(api, &candidates[i], &sets[k].hyper, sets[k].step,
                                              sets[k].elements, in, out, work, &scalars, &nudged);
    }
    unsigned left = 0;
    for (unsigned i = 0; i < count; i++)
      left += alive[i];
    right += left == 1 && alive[truth];
  }
  tap_ok(right == count, "each of %u arithmetics is the only one that explains itself (Adam%s, %s)",
         count, mode == ADAM_W ? "W" : "", decays ? "decay" : "no decay");
}

/* ---- the proof ---- */

static size_t probe_differences(const struct adam_candidate *a, const struct adam_candidate *b,
                                const struct adam_hyper *hyper, float step,
                                const struct probe *inputs) {
  struct probe one = *inputs, other = *inputs;
  struct adam_scalars scalars;
  size_t different = 0;
  api->scalars(a->generation, hyper, step, 0, 0, &scalars);
  api->reference(a, hyper, &scalars, PROBE_ELEMENTS,
                 &(struct adam_tensors){.p = one.p, .g = one.g, .m = one.m, .v = one.v});
  api->scalars(b->generation, hyper, step, 0, 0, &scalars);
  api->reference(b, hyper, &scalars, PROBE_ELEMENTS,
                 &(struct adam_tensors){.p = other.p, .g = other.g, .m = other.m, .v = other.v});
  for (unsigned i = 0; i < PROBE_ELEMENTS; i++)
    different += memcmp(&one.p[i], &other.p[i], 4) || memcmp(&one.m[i], &other.m[i], 4) ||
                 memcmp(&one.v[i], &other.v[i], 4);
  return different;
}

/* How many of a quarter of 262,144 parameters show the difference between fused and unfused decay, u being 0 (AdamW) or
   the gradient cancelling the product (L2). */
static size_t decay_visible(const struct adam_candidate *a, const struct adam_candidate *b,
                            const struct adam_hyper *hyper) {
  struct adam_scalars scalars;
  size_t visible = 0;
  api->scalars(a->generation, hyper, 1, 0, 0, &scalars);
  uint64_t state = 12345;
  for (unsigned round = 0; round < 1024; round++) {
    struct probe one = {.v = {0}}, other;
    for (unsigned i = 0; i < PROBE_ELEMENTS; i++) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      one.p[i] = (float)(state >> 40) * 0x1p-25f + 0.5f;
      one.v[i] = 1;
      if (a->mode == ADAM_L2)
        one.g[i] =
            (float)((double)one.p[i] * hyper->weight_decay) * (hyper->maximize ? 1.0f : -1.0f);
    }
    other = one;
    api->reference(a, hyper, &scalars, PROBE_ELEMENTS,
                   &(struct adam_tensors){.p = one.p, .g = one.g, .m = one.m, .v = one.v});
    api->reference(b, hyper, &scalars, PROBE_ELEMENTS,
                   &(struct adam_tensors){.p = other.p, .g = other.g, .m = other.m, .v = other.v});
    for (unsigned i = 0; i < PROBE_ELEMENTS; i++)
      visible += memcmp(&one.p[i], &other.p[i], 4) || memcmp(&one.m[i], &other.m[i], 4);
  }
  return visible;
}

static void test_proof_decay(enum adam_mode mode, enum adam_generation generation) {
  static const double rates[] = {1e-5, 3e-4, 1e-3, 2e-3, 1e-2, 0.1},
                      decays[] = {1e-4, 0.01, 0.1, 0.5};
  struct adam_candidate fused = {.generation = generation, .mode = mode, .decay = ADAM_DECAY_FUSED},
                        unfused = fused;
  unfused.decay = ADAM_DECAY_UNFUSED;
  unsigned cases = 0, shown = 0, not_there = 0;
  size_t least = SIZE_MAX;
  for (unsigned r = 0; r < sizeof rates / sizeof *rates; r++)
    for (unsigned d = 0; d < sizeof decays / sizeof *decays; d++)
      for (int maximize = 0; maximize < 2; maximize++) {
        const struct adam_hyper hyper = {.lr = rates[r],
                                         .beta1 = 0.9,
                                         .beta2 = 0.999,
                                         .weight_decay = decays[d],
                                         .eps = 1e-8,
                                         .maximize = maximize};
        struct probe inputs;
        const unsigned found = probe_make(api, &fused, &hyper, true, &inputs);
        const size_t different = probe_differences(&fused, &unfused, &hyper, 7, &inputs);
        cases++;
        if (different >= 8 && found >= 8) {
          shown++;
          least = different < least ? different : least;
        } else if (decay_visible(&fused, &unfused, &hyper) == 0) {
          not_there++;
        }
      }
  tap_ok(
      shown + not_there == cases,
      "the proof shows fused from unfused decay, Adam%s of %s: in %u of %u cases by at least %zu "
      "elements; in %u 262,144 parameters show nothing either",
      mode == ADAM_W ? "W" : "", api->generation_name(generation), shown, cases, shown ? least : 0,
      not_there);
}

static void test_proof_generations(enum adam_mode mode) {
  size_t least = SIZE_MAX, least_root = SIZE_MAX;
  unsigned roots = 0;
  for (unsigned l = 0; l < 4; l++)
    for (int step = 1; step < 200; step += 7)
      for (int decays = 0; decays < 2; decays++) {
        struct adam_hyper hyper = launches[l];
        if (!decays)
          hyper.weight_decay = 0;
        struct adam_candidate candidates[CANDIDATES_MOST];
        const unsigned count = candidates_list(mode, decays, candidates);
        struct probe inputs;
        probe_make(api, &candidates[count - 1], &hyper, true, &inputs);
        for (unsigned a = 0; a < count; a++)
          for (unsigned b = a + 1; b < count; b++) {
            if (candidates[a].generation == candidates[b].generation)
              continue;
            const size_t different =
                probe_differences(&candidates[a], &candidates[b], &hyper, (float)step, &inputs);
            if (candidates[b].generation == ADAM_FLOAT) {
              least = different < least ? different : least;
              continue;
            }
            /* OLD and DOUBLE are one arithmetic but at steps where a square root rounds differently. */
            struct adam_scalars old, wide;
            api->scalars(ADAM_OLD, &hyper, (float)step, 0, 0, &old);
            api->scalars(ADAM_DOUBLE, &hyper, (float)step, 0, 0, &wide);
            if (old.bias_correction2_sqrt == wide.bias_correction2_sqrt)
              continue;
            roots++;
            least_root = different < least_root ? different : least_root;
          }
      }
  tap_ok(least >= 32, "the proof shows float from double scalars in at least %zu elements (Adam%s)",
         least, mode == ADAM_W ? "W" : "");
  tap_ok(roots > 0 && least_root >= 16,
         "and one unit in the last place of the square root in at least %zu elements, at %u steps",
         least_root, roots);
}

static void test_proof_scalars(void) {
  const struct adam_candidate candidate = {
      .generation = ADAM_FLOAT, .mode = ADAM_W, .decay = ADAM_DECAY_FUSED};
  const struct adam_hyper hyper = launches[0];
  struct probe inputs, result;
  struct adam_scalars scalars, found;
  bool nudged = false;
  unsigned proven = 0, cases = 0, refused = 0;
  probe_make(api, &candidate, &hyper, true, &inputs);
  for (int first = -2; first <= 2; first++)
    for (int second = -2; second <= 2; second++) {
      result = inputs;
      api->scalars(ADAM_FLOAT, &hyper, 2, first, second, &scalars);
      api->reference(
          &candidate, &hyper, &scalars, PROBE_ELEMENTS,
          &(struct adam_tensors){.p = result.p, .g = result.g, .m = result.m, .v = result.v});
      proven += probe_prove(api, &candidate, &hyper, 2, &inputs, &result, &found, &nudged) &&
                found.step_size == scalars.step_size &&
                found.bias_correction2_sqrt == scalars.bias_correction2_sqrt &&
                nudged == (first || second);
      cases++;
    }
  tap_ok(proven == cases,
         "the proof finds the scalars when the device's powers are up to two units in the "
         "last place from libm's");
  for (int first = -4; first <= 4; first += 8)
    for (int second = -4; second <= 4; second += 8) {
      result = inputs;
      api->scalars(ADAM_FLOAT, &hyper, 2, first, second, &scalars);
      api->reference(
          &candidate, &hyper, &scalars, PROBE_ELEMENTS,
          &(struct adam_tensors){.p = result.p, .g = result.g, .m = result.m, .v = result.v});
      refused += !probe_prove(api, &candidate, &hyper, 2, &inputs, &result, &found, &nudged);
    }
  tap_ok(refused == 4, "powers further away are refused");

  unsigned bits = 0;
  for (unsigned list = 0; list < 4; list++)
    for (unsigned i = 0; i < PROBE_ELEMENTS; i += 17) {
      result = inputs;
      api->scalars(ADAM_FLOAT, &hyper, 2, 0, 0, &scalars);
      api->reference(
          &candidate, &hyper, &scalars, PROBE_ELEMENTS,
          &(struct adam_tensors){.p = result.p, .g = result.g, .m = result.m, .v = result.v});
      unsigned char *byte = (unsigned char *)(list == 0   ? &result.p[i]
                                              : list == 1 ? &result.g[i]
                                              : list == 2 ? &result.m[i]
                                                          : &result.v[i]);
      *byte ^= 1;
      bits += !probe_prove(api, &candidate, &hyper, 2, &inputs, &result, &found, &nudged);
    }
  tap_ok(bits == 4 * ((PROBE_ELEMENTS + 16) / 17), "one bit anywhere in p, g, m or v is refused");

  const struct adam_candidate wide = {
      .generation = ADAM_DOUBLE, .mode = ADAM_W, .decay = ADAM_DECAY_FUSED};
  probe_make(api, &wide, &hyper, true, &inputs);
  result = inputs;
  api->scalars(ADAM_DOUBLE, &hyper, 2, 0, 0, &scalars);
  scalars.step_size = nextafterf(scalars.step_size, 1);
  api->reference(
      &wide, &hyper, &scalars, PROBE_ELEMENTS,
      &(struct adam_tensors){.p = result.p, .g = result.g, .m = result.m, .v = result.v});
  tap_ok(!probe_prove(api, &wide, &hyper, 2, &inputs, &result, &found, &nudged),
         "with double scalars one unit in the last place of the step size is refused");
}

/* Launches on whose second correction the data is nearly blind: the scalars are told apart, or the
   launch is refused; those that are common are never refused. */
static void test_proof_ambiguity(void) {
  static const double all_eps[] = {0, 1e-16, 1e-8, 1e-3, 1, 1e6, 1e16, 1e19, 1e30};
  static const double all_lr[] = {0, 1e-38, 1e-20, 1e-6, 1e-3, 1, 1e3};
  static const float steps[] = {1, 2, 100, 5000, 100000};
  unsigned wrong = 0, cases = 0, common = 0, common_refused = 0, refused = 0, huge = 0,
           huge_refused = 0;
  for (unsigned e = 0; e < sizeof all_eps / sizeof *all_eps; e++)
    for (unsigned l = 0; l < sizeof all_lr / sizeof *all_lr; l++)
      for (int mode = 0; mode < 2; mode++) {
        const struct adam_candidate candidate = {
            .generation = ADAM_FLOAT, .mode = (enum adam_mode)mode, .decay = ADAM_DECAY_FUSED};
        struct adam_hyper hyper = launches[0];
        hyper.eps = all_eps[e];
        hyper.lr = all_lr[l];
        struct probe inputs;
        probe_make(api, &candidate, &hyper, true, &inputs);
        for (unsigned s = 0; s < sizeof steps / sizeof *steps; s++)
          for (int second = -2; second <= 2; second++) {
            struct probe result = inputs;
            struct adam_scalars scalars, found;
            bool nudged;
            api->scalars(ADAM_FLOAT, &hyper, steps[s], 0, second, &scalars);
            api->reference(
                &candidate, &hyper, &scalars, PROBE_ELEMENTS,
                &(struct adam_tensors){.p = result.p, .g = result.g, .m = result.m, .v = result.v});
            const bool proven =
                probe_prove(api, &candidate, &hyper, steps[s], &inputs, &result, &found, &nudged);
            const bool ordinary = hyper.eps <= 1 && (hyper.lr == 0 || hyper.lr >= 1e-20);
            cases++;
            refused += !proven;
            common += ordinary;
            common_refused += ordinary && !proven;
            huge += hyper.eps >= 1e6 && hyper.eps <= 1e19 && hyper.lr >= 1e-3;
            huge_refused += hyper.eps >= 1e6 && hyper.eps <= 1e19 && hyper.lr >= 1e-3 && !proven;
            wrong += proven && hyper.lr != 0 &&
                     (found.step_size != scalars.step_size ||
                      found.bias_correction2_sqrt != scalars.bias_correction2_sqrt);
          }
      }
  tap_ok(wrong == 0, "of %u proofs with any eps and lr none takes other scalars (%u are refused)",
         cases, refused);
  tap_ok(common > 0 && common_refused == 0,
         "none of %u with an eps of 1 or less is refused, at lr 0 neither", common);
  tap_ok(huge > 0 && huge_refused == 0, "nor one of %u with an eps up to 1e19", huge);
}

int main(void) {
  api = offload_adam();
  for (int mode = 0; mode < 2; mode++)
    for (int decays = 0; decays < 2; decays++) {
      for (int rest = 0; rest < 4; rest++)
        test_calibration((enum adam_mode)mode, decays, rest & 1, rest >> 1);
      test_choice((enum adam_mode)mode, decays);
    }
  for (int mode = 0; mode < 2; mode++) {
    for (int generation = 0; generation <= ADAM_FLOAT; generation++)
      test_proof_decay((enum adam_mode)mode, (enum adam_generation)generation);
    test_proof_generations((enum adam_mode)mode);
  }
  test_proof_scalars();
  test_proof_ambiguity();
  return tap_done();
}
