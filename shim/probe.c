/* The elements of calibration and of the running proof, and the search for the scalars that explain
 * a result. See probe.h. Longer than most rooms: both data sets are made of the same kinds of
 * elements. */
#include "probe.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

unsigned candidates_list(enum adam_mode mode, bool decays, struct adam_candidate *candidates) {
  unsigned count = 0;
  for (int generation = ADAM_OLD; generation <= ADAM_FLOAT; generation++) {
    const struct adam_candidate plain = {.generation = (enum adam_generation)generation,
                                         .mode = mode};
    if (!decays) {
      candidates[count++] = plain;
      continue;
    }
    candidates[count] = candidates[count + 1] = plain;
    candidates[count++].decay = ADAM_DECAY_FUSED;
    candidates[count++].decay = ADAM_DECAY_UNFUSED;
  }
  return count;
}

/* ---- numbers ---- */

struct numbers {
  uint64_t state;
};

static uint32_t number(struct numbers *n) {
  n->state ^= n->state << 13;
  n->state ^= n->state >> 7;
  n->state ^= n->state << 17;
  return (uint32_t)(n->state * 2685821657736338717u >> 32);
}

/* In [-1, 1), 24 bits. */
static float ordinary(struct numbers *n) {
  return (float)(int32_t)(number(n) >> 7) * 0x1p-24f - 1.0f;
}

/* A float with a full significand and a magnitude in [1/8, 2). */
static float full(struct numbers *n) {
  const uint32_t bits =
      (number(n) & 0x80000000u) | (124 + number(n) % 4) << 23 | (number(n) & 0x7fffffu);
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Zeroes of both signs, denormals, large and tiny numbers, whose squares are finite. `wild` adds
   numbers that overflow, infinities and NaN: every NaN that comes of them is the GPU's own,
   0x7fffffff. */
static float special(struct numbers *n, bool positive, bool wild) {
  static const float plain[] = {0.0f,   -0.0f,   1e-45f, -3e-41f, 1.1e-38f,
                                1e-20f, -1e-20f, 1e10f,  -3e15f,  1e15f};
  const float x = ordinary(n);
  float value;
  if (wild && number(n) % 4 == 0) {
    static const uint32_t bits[] = {0x7f800000u, 0xff800000u, 0x7fffffffu, 0x7149f2cau,
                                    0xff7fffffu};
    memcpy(&value, &bits[number(n) % (sizeof bits / sizeof *bits)], sizeof value);
  } else {
    value = plain[number(n) % (sizeof plain / sizeof *plain)] * (number(n) % 2 ? 1.0f : x);
  }
  return positive && value < 0 ? -value : value;
}

/* ---- calibration ---- */

/* 1 - 2^-12, exact in float and double: P - w*P is exact when fused, and keeps the rounding of w*P
   when not. The same at 2^-34 shows the rounding of a double product in a float result. */
#define NEAR_ONE_FLOAT (1.0 - 0x1p-12)
#define NEAR_ONE_DOUBLE (1.0 - 0x1p-34)
/* Rounds to 1 - 2^-20 as a float: with m == 0, double scalars give (2^-20 + 2^-40)*g and float ones
 * 2^-20*g. */
#define BETA_BETWEEN (1.0 - 0x1p-20 - 0x1p-40)

/* A step at which generations OLD and DOUBLE have different square roots. */
static float step_of_rounding(const struct adam_api *api, const struct adam_hyper *hyper) {
  for (int step = 3; step < 4096; step++) {
    struct adam_scalars old, wide;
    api->scalars(ADAM_OLD, hyper, (float)step, 0, 0, &old);
    api->scalars(ADAM_DOUBLE, hyper, (float)step, 0, 0, &wide);
    if (old.bias_correction2_sqrt != wide.bias_correction2_sqrt)
      return (float)step;
  }
  return 3;
}

void calibration_sets(const struct adam_api *api, const struct calibration_case *c,
                      struct calibration_set sets[CALIBRATION_SETS]) {
  /* lr*wd is what AdamW multiplies by, wd what L2 does. lr has few bits: it may have to pass
   * through a float. */
  const double lr = 0.75, divisor = c->mode == ADAM_W ? lr : 1.0;
  struct adam_hyper plain = {.lr = lr, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
  plain.maximize = c->hyper.maximize;
  static const struct {
    double weight;
    double beta;
    float step;
  } own[] = {{NEAR_ONE_FLOAT, 0, 1},     {NEAR_ONE_FLOAT, 0, 2},  {NEAR_ONE_DOUBLE, 0, 137},
             {NEAR_ONE_DOUBLE, 0, 5000}, {0.01, BETA_BETWEEN, 3}, {0.01, BETA_BETWEEN, 71}};
  for (unsigned i = 0; i < CALIBRATION_SETS; i++) {
    struct calibration_set *set = &sets[i];
    set->hyper = plain;
    set->offset = i % 2;
    set->elements = set->offset ? CALIBRATION_ELEMENTS : CALIBRATION_ELEMENTS & ~3u;
    if (i < 6) {
      set->step = own[i].step;
      set->hyper.weight_decay = own[i].weight / divisor;
      if (own[i].beta != 0)
        set->hyper.beta1 = set->hyper.beta2 = own[i].beta;
    } else if (i == 6) {
      set->hyper.lr = 0x1p-10;
      set->hyper.eps = 1e-3;
      set->hyper.weight_decay = 0.1;
      set->step = step_of_rounding(api, &set->hyper);
    } else {
      set->hyper = c->hyper;
      set->step = i == 7 ? 1 : 100000;
    }
    if (!c->decays)
      set->hyper.weight_decay = 0;
    if (c->lr_is_float)
      set->hyper.lr = (double)(float)set->hyper.lr;
  }
}

/* An element on which decay shows whole: AdamW with u == 0, L2 with a gradient that cancels the
 * product. */
static void element_decay(enum adam_mode mode, const struct adam_hyper *hyper, float p,
                          struct numbers *n, struct elements e, unsigned i) {
  e.p[i] = p;
  e.m[i] = 0;
  if (mode == ADAM_W) {
    e.g[i] = 0;
    e.v[i] = 0.01f + (float)(number(n) >> 8) * 0x1p-26f;
  } else {
    const float product = (float)((double)p * hyper->weight_decay);
    e.g[i] = hyper->maximize ? product : -product;
    e.v[i] = 0;
  }
}

/* p == 0: the whole update is seen, all its bits. */
static void element_update(struct numbers *n, struct elements e, unsigned i) {
  const float v = ordinary(n);
  e.p[i] = 0;
  e.g[i] = ordinary(n);
  e.m[i] = ordinary(n) * 0.1f;
  e.v[i] = v * v * 0.01f;
}

static void element_ordinary(struct numbers *n, struct elements e, unsigned i) {
  element_update(n, e, i);
  e.p[i] = ordinary(n);
}

/* The gradient cancels the first moment: what is left is the rounding of one of the two products.
 */
static void element_cancel(const struct adam_hyper *hyper, struct numbers *n, struct elements e,
                           unsigned i) {
  element_ordinary(n, e, i);
  const double weight = hyper->beta1 > 0 ? (1.0 - hyper->beta1) / hyper->beta1 : 1.0;
  const float m = (float)(weight * (double)e.g[i]);
  e.m[i] = hyper->maximize ? m : -m;
  e.p[i] *= 0x1p-20f;
}

/* sqrt(v) near eps or far above it, whatever eps is: the root of the second correction shows in u
   only where eps does not outweigh sqrt(v)/root. Half of them have a first moment so large that u
   is no denormal, however small lr is. */
static void element_root(const struct adam_hyper *hyper, struct numbers *n, struct elements e,
                         unsigned i) {
  const double eps = fabs(hyper->eps);
  double root = (eps > 1e-17 ? eps : 1e-17) * (double)(1u << number(n) % 8);
  root *= 1.0 + (double)(number(n) >> 8) * 0x1p-24;
  if (!(root < 1.7e19))
    root = 1.7e19 * (1.0 - (double)(number(n) >> 8) * 0x1p-28); /* v ends here */
  const double scale = root < 1e6 && number(n) % 2 ? 0x1p60 : 1.0;
  e.p[i] = 0;
  e.v[i] = (float)(root * root);
  e.m[i] = (float)((double)ordinary(n) * root * scale);
  e.g[i] = (float)((double)ordinary(n) * root * 0.5);
}

static void element_special(struct numbers *n, bool wild, struct elements e, unsigned i) {
  e.p[i] = special(n, false, wild);
  e.g[i] = special(n, false, wild);
  e.m[i] = special(n, false, wild);
  e.v[i] = special(n, true, wild);
}

void calibration_fill(const struct calibration_case *c, const struct calibration_set *set,
                      unsigned index, struct elements e) {
  struct numbers n = {0x9e3779b97f4a7c15u + index};
  const bool wild = index >= 7;
  for (unsigned i = 0; i < set->elements; i++)
    /* By chance and not by position: a compiler may treat every fourth element, or every fourth run
     * of 512, differently. */
    switch (number(&n) % 8) {
    case 0:
    case 1:
    case 2:
      element_decay(c->mode, &set->hyper, full(&n), &n, e, i);
      break;
    case 3:
      element_update(&n, e, i);
      break;
    case 4:
      element_cancel(&set->hyper, &n, e, i);
      break;
    case 5:
      element_ordinary(&n, e, i);
      break;
    case 6:
      element_special(&n, wild, e, i);
      break;
    default: /* new moments: only what the gradient brings */
      element_update(&n, e, i);
      e.m[i] = e.v[i] = 0;
    }
}

size_t calibration_differences(const struct adam_api *api, const struct calibration_case *c,
                               const struct calibration_set *set, unsigned index,
                               const struct adam_candidate *first,
                               const struct adam_candidate *second) {
  const size_t list = CALIBRATION_ELEMENTS;
  float *memory = malloc(7 * list * sizeof *memory);
  if (!memory)
    return SIZE_MAX;
  struct elements a = {memory, memory + list, memory + 2 * list, memory + 3 * list};
  struct elements b = {memory + 4 * list, a.g, memory + 5 * list, memory + 6 * list};
  struct adam_scalars scalars;
  calibration_fill(c, set, index, a);
  memcpy(b.p, a.p, list * sizeof *b.p);
  memcpy(b.m, a.m, list * sizeof *b.m);
  memcpy(b.v, a.v, list * sizeof *b.v);
  api->scalars(first->generation, &set->hyper, set->step, 0, 0, &scalars);
  api->reference(first, &set->hyper, &scalars, set->elements,
                 &(struct adam_tensors){.p = a.p, .g = a.g, .m = a.m, .v = a.v});
  api->scalars(second->generation, &set->hyper, set->step, 0, 0, &scalars);
  api->reference(second, &set->hyper, &scalars, set->elements,
                 &(struct adam_tensors){.p = b.p, .g = b.g, .m = b.m, .v = b.v});
  size_t different = 0;
  for (unsigned i = 0; i < set->elements; i++)
    different +=
        memcmp(&a.p[i], &b.p[i], 4) || memcmp(&a.m[i], &b.m[i], 4) || memcmp(&a.v[i], &b.v[i], 4);
  free(memory);
  return different;
}

/* ---- the running proof ---- */

/* How many of the probe's elements show the decay, and how long to look for them. */
enum { PROBE_DECAY = 64, PROBE_BATCHES = 8 };

/* The next parameter to try. For AdamW in float: p - lw*p rounds differently only near a point
   halfway between two floats. In units of p's last place that is where lw*k has the fraction 1/2: k
   = (j + 1/2)/lw, rounded. There the unfused product is exactly halfway and goes to even, the fused
   one to the right side: they disagree at about a quarter of these k. */
static float propose(const struct adam_candidate *candidate, const struct adam_hyper *hyper,
                     unsigned attempt, struct numbers *n) {
  const double weight = (double)((float)hyper->lr * (float)hyper->weight_decay);
  if (candidate->mode != ADAM_W || candidate->generation != ADAM_FLOAT || !(weight > 0) ||
      !(weight < 0.25))
    return full(n);
  const double first = weight * 0x1p23, crossings = weight * 0x1p23;
  /* Spread over the binade; where there are few crossings each is met several times, with its
   * neighbours. */
  const unsigned again = attempt / 1021;
  const double share = (double)(attempt % 1021) / 1021.0;
  const double crossing = (double)(uint64_t)(first + crossings * share) + 0.5;
  const double k = crossing / weight + (double)again;
  const uint32_t significand = (uint32_t)(k + 0.5);
  if (significand < 1u << 23 || significand >= 1u << 24)
    return full(n);
  return (float)significand * 0x1p-24f * (number(n) % 2 ? 1.0f : -1.0f);
}

/* Looks for elements on which fused and unfused decay disagree, by the reference itself. */
static unsigned find_decay(const struct adam_api *api, const struct adam_candidate *candidate,
                           const struct adam_hyper *hyper, struct numbers *n, struct probe *found) {
  struct adam_candidate fused = *candidate, unfused = *candidate;
  fused.decay = ADAM_DECAY_FUSED;
  unfused.decay = ADAM_DECAY_UNFUSED;
  struct adam_scalars scalars;
  api->scalars(candidate->generation, hyper, 1, 0, 0, &scalars);
  unsigned count = 0;
  for (unsigned batch = 0; batch < PROBE_BATCHES && count < PROBE_DECAY; batch++) {
    struct probe tried = {.p = {0}}, one, other;
    const struct elements e = {tried.p, tried.g, tried.m, tried.v};
    for (unsigned i = 0; i < PROBE_ELEMENTS; i++)
      element_decay(candidate->mode, hyper,
                    propose(candidate, hyper, batch * PROBE_ELEMENTS + i, n), n, e, i);
    one = other = tried;
    api->reference(&fused, hyper, &scalars, PROBE_ELEMENTS,
                   &(struct adam_tensors){.p = one.p, .g = one.g, .m = one.m, .v = one.v});
    api->reference(&unfused, hyper, &scalars, PROBE_ELEMENTS,
                   &(struct adam_tensors){.p = other.p, .g = other.g, .m = other.m, .v = other.v});
    for (unsigned i = 0; i < PROBE_ELEMENTS && count < PROBE_DECAY; i++)
      if (memcmp(&one.p[i], &other.p[i], 4) || memcmp(&one.m[i], &other.m[i], 4)) {
        found->p[count] = tried.p[i];
        found->g[count] = tried.g[i];
        found->m[count] = tried.m[i];
        found->v[count++] = tried.v[i];
      }
  }
  return count;
}

unsigned probe_make(const struct adam_api *api, const struct adam_candidate *candidate,
                    const struct adam_hyper *hyper, bool lr_known, struct probe *probe) {
  struct numbers n = {0xd1342543de82ef95u};
  struct probe decaying;
  const bool decays = candidate->decay != ADAM_DECAY_NONE;
  unsigned found = 0, used = 0;
  if (decays && (lr_known || candidate->mode == ADAM_L2))
    found = find_decay(api, candidate, hyper, &n, &decaying);
  const struct elements e = {probe->p, probe->g, probe->m, probe->v};
  for (unsigned i = 0; i < PROBE_ELEMENTS; i++)
    /* Four in a row are of one kind: an unrolled loop meets each kind in every place. */
    switch (i / 4 % 8) {
    case 0:
    case 1: /* PROBE_DECAY elements */
      if (used < found) {
        e.p[i] = decaying.p[used];
        e.g[i] = decaying.g[used];
        e.m[i] = decaying.m[used];
        e.v[i] = decaying.v[used++];
      } else {
        element_decay(candidate->mode, hyper, full(&n), &n, e, i);
      }
      break;
    case 2:
    case 3:
      element_update(&n, e, i);
      break;
    case 4:
      element_root(hyper, &n, e, i);
      break;
    case 5:
      element_cancel(hyper, &n, e, i);
      break;
    case 6:
      element_special(&n, false, e, i);
      break;
    default:
      element_ordinary(&n, e, i);
    }
  return found;
}

/* Nearest first. */
static const struct {
  signed char first, second;
} nudges[] = {{0, 0},  {0, 1},  {0, -1},  {1, 0},  {-1, 0}, {1, 1},  {1, -1}, {-1, 1},  {-1, -1},
              {0, 2},  {0, -2}, {2, 0},   {-2, 0}, {1, 2},  {1, -2}, {-1, 2}, {-1, -2}, {2, 1},
              {2, -1}, {-2, 1}, {-2, -1}, {2, 2},  {2, -2}, {-2, 2}, {-2, -2}};

bool elements_prove(const struct adam_api *api, const struct adam_candidate *candidate,
                    const struct adam_hyper *hyper, float step, uint64_t count,
                    struct elements inputs, struct elements result, struct elements scratch,
                    struct adam_scalars *scalars, bool *nudged) {
  const size_t bytes = count * sizeof(float);
  const unsigned tries = candidate->generation == ADAM_FLOAT ? sizeof nudges / sizeof *nudges : 1;
  if (memcmp(result.g, inputs.g, bytes) != 0)
    return false; /* without grad_scale the gradient stays as it is */
  for (unsigned i = 0; i < tries; i++) {
    api->scalars(candidate->generation, hyper, step, nudges[i].first, nudges[i].second, scalars);
    memcpy(scratch.p, inputs.p, bytes);
    memcpy(scratch.m, inputs.m, bytes);
    memcpy(scratch.v, inputs.v, bytes);
    api->reference(
        candidate, hyper, scalars, count,
        &(struct adam_tensors){.p = scratch.p, .g = inputs.g, .m = scratch.m, .v = scratch.v});
    /* m and v take no part in the search: the powers only enter p. */
    if (memcmp(scratch.m, result.m, bytes) != 0 || memcmp(scratch.v, result.v, bytes) != 0)
      return false;
    if (memcmp(scratch.p, result.p, bytes) == 0) {
      *nudged = i > 0;
      return true;
    }
  }
  return false;
}

static bool same_scalars(const struct adam_scalars *a, const struct adam_scalars *b) {
  return memcmp(&a->step_size, &b->step_size, sizeof a->step_size) == 0 &&
         /* u is 0 or NaN, whatever it is divided by */
         (a->step_size == 0 || memcmp(&a->bias_correction2_sqrt, &b->bias_correction2_sqrt,
                                      sizeof a->bias_correction2_sqrt) == 0);
}

/* Whether other scalars give the probe's result, too: then which of them the kernel used is not
   known. Nearly every one is ruled out by the first few elements. */
static bool ambiguous(const struct adam_api *api, const struct adam_candidate *candidate,
                      const struct adam_hyper *hyper, float step, const struct elements inputs,
                      const struct elements result, const struct elements work,
                      const struct adam_scalars *found) {
  enum { BATCH = 32 }; /* every kind of element is in it */
  if (candidate->generation != ADAM_FLOAT)
    return false;
  for (unsigned k = 0; k < sizeof nudges / sizeof *nudges; k++) {
    struct adam_scalars other;
    api->scalars(candidate->generation, hyper, step, nudges[k].first, nudges[k].second, &other);
    bool differs = same_scalars(found, &other);
    for (unsigned i = 0; i < PROBE_ELEMENTS && !differs; i += BATCH) {
      const size_t bytes = BATCH * sizeof(float);
      memcpy(work.p, inputs.p + i, bytes);
      memcpy(work.m, inputs.m + i, bytes);
      memcpy(work.v, inputs.v + i, bytes);
      api->reference(
          candidate, hyper, &other, BATCH,
          &(struct adam_tensors){.p = work.p, .g = inputs.g + i, .m = work.m, .v = work.v});
      differs = memcmp(work.p, result.p + i, bytes) != 0;
    }
    if (!differs)
      return true;
  }
  return false;
}

bool probe_prove(const struct adam_api *api, const struct adam_candidate *candidate,
                 const struct adam_hyper *hyper, float step, const struct probe *inputs,
                 const struct probe *result, struct adam_scalars *scalars, bool *nudged) {
  /* The lists are only read. */
  struct probe *in = (struct probe *)(uintptr_t)inputs, *out = (struct probe *)(uintptr_t)result;
  struct probe work;
  const struct elements before = {in->p, in->g, in->m, in->v},
                        after = {out->p, out->g, out->m, out->v},
                        scratch = {work.p, NULL, work.m, work.v};
  return elements_prove(api, candidate, hyper, step, PROBE_ELEMENTS, before, after, scratch,
                        scalars, nudged) &&
         !ambiguous(api, candidate, hyper, step, before, after, scratch, scalars);
}
