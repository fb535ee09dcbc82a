/* Does calibration's data tell? Counts, pair by pair, the elements on which two candidate arithmetics differ, with scalars of
   calibration's own. A pair that is not told apart is a failure. */
#include "proof_support.h"
#include "tests/lib/tap.h"
#include <string.h>

static const char *decay_word(enum adam_decay decay) {
  return decay == ADAM_DECAY_NONE ? "no" : decay == ADAM_DECAY_FUSED ? "fused" : "unfused";
}

/* A set, and what candidates make of it. */
struct lists {
  double memory[5 * CALIBRATION_ELEMENTS];
};

static struct adam_tensors fill(const struct calibration_case *c, const struct calibration_set *set,
                                unsigned index, struct lists *to) {
  struct adam_tensors lists = lists_in(&c->shape, to->memory, CALIBRATION_ELEMENTS);
  lists.grad_scale = set->scale != 0 ? &set->scale : NULL;
  calibration_fill(api, c, set, index, &lists);
  return lists;
}

static void compute(const struct adam_candidate *candidate, const struct calibration_set *set,
                    const struct adam_tensors *lists) {
  struct adam_scalars scalars;
  api->scalars(candidate->generation, &set->hyper, set->step, 0, 0, &scalars);
  api->reference(candidate, &set->hyper, &scalars, set->elements, lists);
}

enum { DIFFERENT_LISTS = CANDIDATES_MOST };
static struct lists computed[DIFFERENT_LISTS], before;

/* Elements of a set on which two of the computed lists differ, by place: slots of the kernel's vector loop (aligned sets) or
   of its scalar loop (the others). */
static size_t count_places(const struct calibration_case *c, const struct calibration_set *set,
                           unsigned a, unsigned b, size_t places[2][4]) {
  const struct adam_tensors first = lists_in(&c->shape, computed[a].memory, CALIBRATION_ELEMENTS),
                            second = lists_in(&c->shape, computed[b].memory, CALIBRATION_ELEMENTS);
  size_t different = 0;
  for (unsigned i = 0; i < set->elements; i++)
    if (elements_differ(&c->shape, &first, &second, i)) {
      different++;
      places[set->offset][set->offset ? i / 512 % 4 : i % 4]++;
    }
  return different;
}

static size_t smallest(size_t places[2][4]) {
  size_t least = SIZE_MAX;
  for (int loop = 0; loop < 2; loop++)
    for (int slot = 0; slot < 4; slot++)
      if (places[loop][slot] < least)
        least = places[loop][slot];
  return least;
}

/* What one launch's calibration tells: least elements of a pair, and least in a place of fused against unfused. */
struct told {
  size_t least, least_place;
  struct adam_candidate worst[2];
  unsigned pairs;
};

static void tell(const struct calibration_case *c, struct told *told) {
  struct adam_candidate candidates[CANDIDATES_MOST];
  const unsigned count = candidates_list(&c->shape, c->decays, candidates);
  struct calibration_set sets[CALIBRATION_SETS];
  size_t different[CANDIDATES_MOST][CANDIDATES_MOST] = {{0}};
  size_t places[CANDIDATES_MOST][CANDIDATES_MOST][2][4] = {{{{0}}}};
  calibration_sets(api, c, sets);
  for (unsigned k = 0; k < CALIBRATION_SETS; k++) {
    fill(c, &sets[k], k, &before);
    for (unsigned a = 0; a < count; a++) {
      computed[a] = before;
      struct adam_tensors lists = lists_in(&c->shape, computed[a].memory, CALIBRATION_ELEMENTS);
      lists.grad_scale = sets[k].scale != 0 ? &sets[k].scale : NULL;
      compute(&candidates[a], &sets[k], &lists);
    }
    for (unsigned a = 0; a < count; a++)
      for (unsigned b = a + 1; b < count; b++)
        different[a][b] += count_places(c, &sets[k], a, b, places[a][b]);
  }
  for (unsigned a = 0; a < count; a++)
    for (unsigned b = a + 1; b < count; b++) {
      told->pairs++;
      if (different[a][b] < told->least) {
        told->least = different[a][b];
        told->worst[0] = candidates[a];
        told->worst[1] = candidates[b];
      }
      if (candidates[a].generation == candidates[b].generation &&
          candidates[a].form == candidates[b].form && smallest(places[a][b]) < told->least_place)
        told->least_place = smallest(places[a][b]);
    }
}

/* Every branch of a kind of kernel; of fp32 with many launches' scalars. */
static void test_calibration(int kind, int mode, int amsgrad) {
  struct told told = {.least = SIZE_MAX, .least_place = SIZE_MAX};
  for (unsigned l = 0; l < (kind == 0 ? LAUNCHES : 2); l++)
    for (unsigned branch = 0; branch < 8; branch++) {
      struct calibration_case c = {.shape = shape_at(kind, mode, amsgrad),
                                   .decays = branch & 1,
                                   .lr_is_float = branch & 2,
                                   .scales = branch & 4,
                                   .hyper = launches[(l * 5) % LAUNCHES]};
      c.hyper.maximize = (branch ^ branch >> 1 ^ l) & 1;
      if (!c.decays)
        c.hyper.weight_decay = 0;
      tell(&c, &told);
    }
  tap_ok(
      told.least >= 500,
      "calibration tells every pair apart: Adam%s%s %s, %u pairs, at least %zu elements (%s with "
      "%s decay, %s with %s decay)",
      mode == ADAM_W ? "W" : "", amsgrad ? " amsgrad" : "", kinds[kind].name, told.pairs,
      told.least, api->generation_name(told.worst[0].generation), decay_word(told.worst[0].decay),
      api->generation_name(told.worst[1].generation), decay_word(told.worst[1].decay));
  tap_ok(told.least_place >= 100,
         "fused and unfused decay differ in every unroll slot of both loops, in at least %zu "
         "elements",
         told.least_place);
}

/* Every candidate is the only one that explains what it computes. */
static void test_choice(int kind, int mode, bool decays) {
  static struct lists in, out, work;
  struct adam_candidate candidates[CANDIDATES_MOST];
  struct calibration_case c = {
      .shape = shape_at(kind, mode, kind % 2), .decays = decays, .hyper = launches[0]};
  const unsigned count = candidates_list(&c.shape, decays, candidates);
  if (!decays)
    c.hyper.weight_decay = 0;
  struct calibration_set sets[CALIBRATION_SETS];
  calibration_sets(api, &c, sets);
  unsigned right = 0;
  for (unsigned truth = 0; truth < count; truth++) {
    bool alive[CANDIDATES_MOST];
    memset(alive, 1, sizeof alive);
    for (unsigned k = 0; k < CALIBRATION_SETS; k++) {
      const struct adam_tensors inputs = fill(&c, &sets[k], k, &in),
                                scratch = lists_in(&c.shape, work.memory, CALIBRATION_ELEMENTS);
      struct adam_tensors result = lists_in(&c.shape, out.memory, CALIBRATION_ELEMENTS);
      struct adam_scalars scalars;
      bool nudged;
      out = in;
      result.grad_scale = inputs.grad_scale;
      compute(&candidates[truth], &sets[k], &result);
      for (unsigned i = 0; i < count; i++)
        alive[i] = alive[i] &&
                   elements_prove(api, &candidates[i], &sets[k].hyper, sets[k].step,
                                  sets[k].elements, &inputs, &result, &scratch, &scalars, &nudged);
    }
    unsigned left = 0;
    for (unsigned i = 0; i < count; i++)
      left += alive[i];
    right += left == 1 && alive[truth];
  }
  tap_ok(right == count,
         "each of %u arithmetics is the only one that explains itself (Adam%s %s, %s)", count,
         mode == ADAM_W ? "W" : "", kinds[kind].name, decays ? "decay" : "no decay");
}

int main(void) {
  api = offload_adam();
  for (int kind = 0; kind < KINDS; kind++)
    for (int mode = 0; mode < 2; mode++) {
      for (int amsgrad = 0; amsgrad < 2; amsgrad++)
        test_calibration(kind, mode, amsgrad);
      test_choice(kind, mode, false);
      test_choice(kind, mode, true);
    }
  return tap_done();
}
