/* Does the running proof tell, with the launch's own scalars? Where its inputs show nothing of a difference between two
   arithmetics, a quarter of a million others must not show it either. */
#include "proof_support.h"
#include "tests/lib/tap.h"
#include <math.h>
#include <string.h>

/* ---- fp32 ---- */

/* fp32 without amsgrad, as a block. */
struct probe {
  float p[PROBE_ELEMENTS], g[PROBE_ELEMENTS], m[PROBE_ELEMENTS], v[PROBE_ELEMENTS];
};

static void step_probe(const struct adam_candidate *candidate, const struct adam_hyper *hyper,
                       const struct adam_scalars *scalars, struct probe *probe) {
  api->reference(
      candidate, hyper, scalars, PROBE_ELEMENTS,
      &(struct adam_tensors){.p = probe->p, .g = probe->g, .m = probe->m, .v = probe->v});
}

static bool prove(const struct adam_candidate *candidate, const struct adam_hyper *hyper,
                  float step, const struct probe *inputs, const struct probe *result,
                  struct adam_scalars *found, bool *nudged) {
  return probe_prove(api, candidate, hyper, step,
                     &(struct probe_results){.inputs = inputs, .results = result}, found, nudged);
}

static size_t probe_differences(const struct adam_candidate *a, const struct adam_candidate *b,
                                const struct adam_hyper *hyper, float step,
                                const struct probe *inputs) {
  struct probe one = *inputs, other = *inputs;
  struct adam_scalars scalars;
  size_t different = 0;
  api->scalars(a->generation, hyper, step, 0, 0, &scalars);
  step_probe(a, hyper, &scalars, &one);
  api->scalars(b->generation, hyper, step, 0, 0, &scalars);
  step_probe(b, hyper, &scalars, &other);
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
    step_probe(a, hyper, &scalars, &one);
    step_probe(b, hyper, &scalars, &other);
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
  const struct kernel_shape shape = shape_at(0, (int)mode, 0);
  size_t least = SIZE_MAX, least_root = SIZE_MAX;
  unsigned roots = 0;
  for (unsigned l = 0; l < 4; l++)
    for (int step = 1; step < 200; step += 7)
      for (int decays = 0; decays < 2; decays++) {
        struct adam_hyper hyper = launches[l];
        if (!decays)
          hyper.weight_decay = 0;
        struct adam_candidate candidates[CANDIDATES_MOST];
        const unsigned count = candidates_list(&shape, decays, candidates);
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
      step_probe(&candidate, &hyper, &scalars, &result);
      proven += prove(&candidate, &hyper, 2, &inputs, &result, &found, &nudged) &&
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
      step_probe(&candidate, &hyper, &scalars, &result);
      refused += !prove(&candidate, &hyper, 2, &inputs, &result, &found, &nudged);
    }
  tap_ok(refused == 4, "powers further away are refused");

  unsigned bits = 0;
  for (unsigned list = 0; list < 4; list++)
    for (unsigned i = 0; i < PROBE_ELEMENTS; i += 17) {
      result = inputs;
      api->scalars(ADAM_FLOAT, &hyper, 2, 0, 0, &scalars);
      step_probe(&candidate, &hyper, &scalars, &result);
      unsigned char *byte = (unsigned char *)(list == 0   ? &result.p[i]
                                              : list == 1 ? &result.g[i]
                                              : list == 2 ? &result.m[i]
                                                          : &result.v[i]);
      *byte ^= 1;
      bits += !prove(&candidate, &hyper, 2, &inputs, &result, &found, &nudged);
    }
  tap_ok(bits == 4 * ((PROBE_ELEMENTS + 16) / 17), "one bit anywhere in p, g, m or v is refused");

  const struct adam_candidate wide = {
      .generation = ADAM_DOUBLE, .mode = ADAM_W, .decay = ADAM_DECAY_FUSED};
  probe_make(api, &wide, &hyper, true, &inputs);
  result = inputs;
  api->scalars(ADAM_DOUBLE, &hyper, 2, 0, 0, &scalars);
  scalars.step_size = nextafterf(scalars.step_size, 1);
  step_probe(&wide, &hyper, &scalars, &result);
  tap_ok(!prove(&wide, &hyper, 2, &inputs, &result, &found, &nudged),
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
            step_probe(&candidate, &hyper, &scalars, &result);
            const bool proven =
                prove(&candidate, &hyper, steps[s], &inputs, &result, &found, &nudged);
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

/* ---- every type ---- */

/* What the device brings down of a tensor. */
struct brought {
  double inputs[PROBE_BYTES_MOST / 8], results[PROBE_BYTES_MOST / 8];
  unsigned char fine[FINE_BYTES];
  float scale;
};

static struct probe_results brought_results(const struct brought *b, const struct kernel_shape *s) {
  return (struct probe_results){.grad_scale = b->scale != 0 ? &b->scale : NULL,
                                .inputs = b->inputs,
                                .results = b->results,
                                .fine = fine_bytes(s) ? b->fine : NULL,
                                .lr_known = true};
}

/* Steps lists by scalars for the launch's step size and root, with another lr and eps. */
static void bring(const struct adam_candidate *candidate, const struct adam_hyper *hyper,
                  float step, const struct adam_scalars *scalars,
                  const struct adam_scalars *fine_scalars, struct brought *b) {
  const struct kernel_shape shape = shape_of(candidate);
  struct adam_tensors lists = lists_in(&shape, b->results, PROBE_ELEMENTS);
  memcpy(b->results, b->inputs, sizeof b->inputs);
  for (unsigned i = 0; b->scale != 0 && i < PROBE_ELEMENTS; i++)
    api->store(shape.type, lists.g, i, api->load(shape.type, lists.g, i) * (double)b->scale);
  lists.grad_scale = b->scale != 0 ? &b->scale : NULL;
  api->reference(candidate, hyper, scalars, PROBE_ELEMENTS, &lists);
  if (!fine_bytes(&shape))
    return;
  const struct adam_hyper other = fine_hyper(candidate, hyper, true);
  struct adam_candidate undecayed = *candidate;
  undecayed.decay = ADAM_DECAY_NONE;
  struct maker maker = {.api = api, .shape = shape, .hyper = &other, .scale = 1, .n = {77}};
  lists = maker.to = lists_in(&shape, b->fine, FINE_ELEMENTS);
  if (!shape.amsgrad)
    memset(b->fine + 4 * FINE_LIST_BYTES, 0, FINE_LIST_BYTES);
  for (unsigned i = 0; i < FINE_ELEMENTS; i++) {
    const struct element e = element_fine(&maker, candidate->generation, step, i);
    put(&maker, i, &e);
  }
  memcpy(b->fine + 5 * FINE_LIST_BYTES, b->fine, FINE_LIST_BYTES);
  api->reference(&undecayed, &other, fine_scalars, FINE_ELEMENTS, &lists);
}

/* Launches in every type: betas of nothing and next to 1, no eps, no lr, a decay that is nothing as a float. */
static const struct adam_hyper edges[] = {
    {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .weight_decay = 0.01, .eps = 1e-8},
    {.lr = 3e-4, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1, .eps = 1e-8},
    {.lr = 1e-5, .beta1 = 0.9, .beta2 = 0.999, .weight_decay = 0.1, .eps = 1e-6},
    {.lr = 1e-3, .beta1 = 0, .beta2 = 0.999, .weight_decay = 0.01, .eps = 1e-8},
    {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0, .weight_decay = 0.01, .eps = 1e-8},
    {.lr = 1e-3, .beta1 = 0, .beta2 = 0, .weight_decay = 0.01, .eps = 0},
    {.lr = 1e-3, .beta1 = 1e-20, .beta2 = 1e-6, .weight_decay = 0.01, .eps = 1e-8},
    {.lr = 1e-3, .beta1 = 0.999, .beta2 = 0.9999, .weight_decay = 0.01, .eps = 1e-8},
    {.lr = 0, .beta1 = 0.9, .beta2 = 0.999, .weight_decay = 0.01, .eps = 1e-8},
    {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .weight_decay = 1e-46, .eps = 0},
};
enum { EDGES = sizeof edges / sizeof *edges };

static void test_proof_kinds(int kind, int mode, int amsgrad) {
  static const float steps[] = {1, 7, 300, 20000};
  static struct brought b;
  const struct kernel_shape shape = shape_at(kind, mode, amsgrad);
  struct adam_candidate candidates[CANDIDATES_MOST];
  const unsigned count = candidates_list(&shape, true, candidates);
  unsigned cases = 0, proven = 0, wrong = 0, wrong_refused = 0;
  for (unsigned c = 0; c < count; c++)
    for (unsigned s = 0; s < sizeof steps / sizeof *steps; s++)
      for (unsigned l = 0; l < EDGES; l++) {
        const struct adam_candidate *candidate = &candidates[c];
        struct adam_hyper hyper = edges[l];
        if (l > 2 && (l + s) % 3) /* these at some steps only */
          continue;
        /* Nothing is computed with the root then. */
        const bool no_root = hyper.lr == 0;
        hyper.maximize = (c + s + l) % 2;
        const bool nudges =
            candidate->generation == ADAM_FLOAT || candidate->type == ADAM_TYPE_DOUBLE;
        const int first = nudges ? (int)(s % 3) - 1 : 0, second = nudges ? (int)(l % 3) - 1 : 0;
        const struct adam_hyper fine = fine_hyper(candidate, &hyper, true);
        struct adam_scalars scalars, fine_scalars, found;
        bool nudged;
        b.scale = l == 2 ? 1024.0f : 0.0f;
        probe_make(api, candidate, &hyper, true, b.inputs);
        api->scalars(candidate->generation, &hyper, steps[s], first, second, &scalars);
        /* Powers of the fine probe's own betas are exact. */
        api->scalars(candidate->generation, &fine, steps[s], fine.beta1 == hyper.beta1 ? first : 0,
                     fine.beta2 == hyper.beta2 ? second : 0, &fine_scalars);
        bring(candidate, &hyper, steps[s], &scalars, &fine_scalars, &b);
        struct probe_results results = brought_results(&b, &shape);
        cases++;
        proven += probe_prove(api, candidate, &hyper, steps[s], &results, &found, &nudged) &&
                  found.step_size == scalars.step_size &&
                  found.step_size_double == scalars.step_size_double &&
                  (no_root ||
                   (found.bias_correction2_sqrt == scalars.bias_correction2_sqrt &&
                    found.bias_correction2_sqrt_double == scalars.bias_correction2_sqrt_double));
        /* A kernel whose step size, or root, is one unit in the last place away. */
        for (int root = 0; root < 2 && !no_root; root++) {
          struct adam_scalars off = scalars, fine_off = fine_scalars;
          if (root) {
            off.bias_correction2_sqrt = nextafterf(off.bias_correction2_sqrt, 0);
            fine_off.bias_correction2_sqrt = off.bias_correction2_sqrt;
            off.bias_correction2_sqrt_double = nextafter(off.bias_correction2_sqrt_double, 0);
          } else {
            off.step_size = nextafterf(off.step_size, 0);
            fine_off.step_size = nextafterf(fine_off.step_size, 0);
            off.step_size_double = nextafter(off.step_size_double, 0);
          }
          bring(candidate, &hyper, steps[s], &off, &fine_off, &b);
          results = brought_results(&b, &shape);
          wrong++;
          /* Powers nearby may give that very number: then it is found, and right. */
          wrong_refused +=
              !probe_prove(api, candidate, &hyper, steps[s], &results, &found, &nudged) ||
              (nudges &&
               (shape.type == ADAM_TYPE_DOUBLE
                    ? found.step_size_double == off.step_size_double &&
                          found.bias_correction2_sqrt_double == off.bias_correction2_sqrt_double
                    : found.step_size == off.step_size &&
                          found.bias_correction2_sqrt == off.bias_correction2_sqrt));
        }
      }
  tap_ok(proven == cases, "%s, Adam%s%s: the scalars of %u of %u launches are found and proven",
         kinds[kind].name, mode == ADAM_W ? "W" : "", amsgrad ? " amsgrad" : "", proven, cases);
  tap_ok(wrong_refused == wrong,
         "%s, Adam%s%s: of %u scalars one unit in the last place away none is taken for another "
         "(%u)",
         kinds[kind].name, mode == ADAM_W ? "W" : "", amsgrad ? " amsgrad" : "", wrong,
         wrong_refused);
}

static void test_skipped(void) {
  static struct brought b;
  const struct adam_candidate candidate = {.generation = ADAM_FLOAT,
                                           .type = ADAM_TYPE_BFLOAT16,
                                           .state_type = ADAM_TYPE_BFLOAT16,
                                           .amsgrad = true};
  const struct kernel_shape shape = shape_of(&candidate);
  probe_make(api, &candidate, &launches[0], true, b.inputs);
  memcpy(b.results, b.inputs, sizeof b.inputs);
  const struct probe_results results = brought_results(&b, &shape);
  const bool untouched = probe_untouched(api, &candidate, &results);
  ((unsigned char *)b.results)[lists_bytes(&shape, PROBE_ELEMENTS) - 1] ^= 1;
  tap_ok(untouched && !probe_untouched(api, &candidate, &results),
         "a probe that was skipped is told from one that was touched in its last bit");
}

int main(void) {
  api = offload_adam();
  for (int kind = 0; kind < KINDS; kind++)
    for (int mode = 0; mode < 2; mode++) {
      for (int amsgrad = 0; amsgrad < 2; amsgrad++) {
        test_proof_kinds(kind, mode, amsgrad);
      }
    }
  test_skipped();
  for (int mode = 0; mode < 2; mode++) {
    for (int generation = 0; generation <= ADAM_FLOAT; generation++)
      test_proof_decay((enum adam_mode)mode, (enum adam_generation)generation);
    test_proof_generations((enum adam_mode)mode);
  }
  test_proof_scalars();
  test_proof_ambiguity();
  return tap_done();
}
