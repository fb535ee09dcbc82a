/* The candidates, and the data of calibration that tells every pair of them apart in every type: see
   probe.h. Nine of the sets have scalars of our own. Where a type is too narrow for a rounding to be
   seen, an element is searched for whose result lies halfway between two numbers of the type: there
   the last bit of what is computed decides between the two. */
#include "elements.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- candidates ---- */

bool candidates_equal(const struct adam_candidate *a, const struct adam_candidate *b) {
  return a->generation == b->generation && a->mode == b->mode && a->decay == b->decay &&
         a->form == b->form && a->type == b->type && a->state_type == b->state_type &&
         a->amsgrad == b->amsgrad;
}

/* Generations and forms. With doubles in memory OLD is DOUBLE; float parameters with bfloat16
   moments came with float scalars. */
static unsigned arithmetics(const struct kernel_shape *shape, struct adam_candidate found[4]) {
  static const struct adam_candidate all[] = {
      {.generation = ADAM_OLD, .form = ADAM_FUSES_MOMENT},
      {.generation = ADAM_DOUBLE, .form = ADAM_FUSES_MOMENT},
      {.generation = ADAM_DOUBLE, .form = ADAM_FUSES_GRADIENT},
      {.generation = ADAM_FLOAT, .form = ADAM_FUSES_MOMENT},
      {.generation = ADAM_MIXED, .form = ADAM_FUSES_MOMENT},
  };
  const bool mixed = shape->type != shape->state_type;
  unsigned count = 0;
  for (unsigned i = mixed ? 3 : shape->type == ADAM_TYPE_DOUBLE; i < (mixed ? 5 : 4); i++)
    found[count++] = all[i];
  return count;
}

unsigned candidates_list(const struct kernel_shape *shape, bool decays,
                         struct adam_candidate candidates[CANDIDATES_MOST]) {
  struct adam_candidate found[4];
  const unsigned count = arithmetics(shape, found);
  unsigned listed = 0;
  for (unsigned i = 0; i < count; i++)
    for (int decay = decays ? ADAM_DECAY_FUSED : ADAM_DECAY_NONE;
         decay <= (decays ? ADAM_DECAY_UNFUSED : ADAM_DECAY_NONE); decay++) {
      struct adam_candidate *candidate = &candidates[listed++];
      *candidate = found[i];
      candidate->mode = shape->mode;
      candidate->decay = (enum adam_decay)decay;
      candidate->type = shape->type;
      candidate->state_type = shape->state_type;
      candidate->amsgrad = shape->amsgrad;
    }
  return listed;
}

/* ---- elements halfway ---- */

/* One element by two candidates: whether they store p, m and, if asked for, v differently. */
static bool shows(const struct adam_api *api, const struct calibration_set *set,
                  const struct kernel_shape *shape, const struct element *e,
                  const struct adam_candidate *first, const struct adam_candidate *second,
                  bool both_moments) {
  double memory[2][5];
  struct maker maker = {.api = api, .shape = *shape, .hyper = &set->hyper, .scale = 1};
  const struct adam_candidate *candidates[] = {first, second};
  struct adam_tensors lists[2];
  for (int i = 0; i < 2; i++) {
    struct adam_scalars scalars;
    lists[i] = maker.to = lists_in(shape, memory[i], 1);
    put(&maker, 0, e);
    api->scalars(candidates[i]->generation, &set->hyper, set->step, 0, 0, &scalars);
    api->reference(candidates[i], &set->hyper, &scalars, 1, &lists[i]);
  }
  const size_t bytes = adam_type_bytes(shape->state_type);
  const bool m = memcmp(lists[0].m, lists[1].m, bytes) != 0,
             v = memcmp(lists[0].v, lists[1].v, bytes) != 0;
  return both_moments ? m && v : elements_differ(shape, &lists[0], &lists[1], 0);
}

/* The distance between neighbours of a type, at a value that is no denormal. */
static double spacing(enum adam_type type, double value) {
  static const int digits[ADAM_TYPES] = {[ADAM_TYPE_FLOAT] = 24,
                                         [ADAM_TYPE_DOUBLE] = 53,
                                         [ADAM_TYPE_HALF] = 11,
                                         [ADAM_TYPE_BFLOAT16] = 8};
  int exponent;
  frexp(value, &exponent);
  return ldexp(1.0, exponent - digits[type]);
}

/* Near `value`: halfway between two numbers of the type, when float is what is rounded to it; when a
   double is rounded to float before, halfway between that float and the next. */
static double halfway(enum adam_type type, bool from_double, double value) {
  const double unit = spacing(type, value);
  double result = (double)(uint64_t)(value / unit) * unit; /* values are positive */
  if (type != ADAM_TYPE_FLOAT)
    result += unit / 2;
  return from_double ? result + spacing(ADAM_TYPE_FLOAT, result) / 2 : result;
}

enum { SEARCH_TRIES = 20000 };

/* wd and an element on which fused and unfused decay of a generation differ. */
static void search_decay(const struct adam_api *api, const struct calibration_case *c,
                         enum adam_generation generation, struct calibration_set *set) {
  const struct kernel_shape *shape = &c->shape;
  struct numbers n = {0x9e3779b97f4a7c15u};
  struct adam_candidate fused = {.generation = generation,
                                 .mode = shape->mode,
                                 .decay = ADAM_DECAY_FUSED,
                                 .type = shape->type,
                                 .state_type = shape->state_type,
                                 .amsgrad = shape->amsgrad},
                        unfused = fused;
  unfused.decay = ADAM_DECAY_UNFUSED;
  set->hyper.beta1 = 0; /* m becomes the gradient with its decay */
  for (unsigned i = 0; i < SEARCH_TRIES; i++) {
    const double p = fabs(full(&n, shape->type)), other = fabs(full(&n, shape->type));
    const double share = 0.25 + 0.5 * fabs(ordinary(&n));
    struct element e = {.p = p};
    if (shape->mode == ADAM_W) { /* p - w*p */
      const double target = halfway(shape->type, generation != ADAM_FLOAT, p * share);
      e.v = 1;
      set->hyper.weight_decay = (1.0 - target / p) / set->hyper.lr;
    } else { /* w*p - g */
      const double target = halfway(shape->type, generation != ADAM_FLOAT, p * share);
      e.g = set->hyper.maximize ? other : -other;
      set->hyper.weight_decay = (target + other) / p;
    }
    if (shows(api, set, shape, &e, &fused, &unfused, false)) {
      set->halfway.found = true;
      set->halfway.p = e.p;
      set->halfway.g = e.g;
      set->halfway.v = e.v;
      return;
    }
  }
}

/* Betas and an element on which the two forms of generation DOUBLE differ, in both moments. */
static void search_form(const struct adam_api *api, const struct calibration_case *c, unsigned seed,
                        struct calibration_set *set) {
  const struct kernel_shape *shape = &c->shape;
  struct numbers n = {0xd1342543de82ef95u + seed};
  const struct adam_candidate moment = {.generation = ADAM_DOUBLE,
                                        .mode = shape->mode,
                                        .type = shape->type,
                                        .state_type = shape->state_type,
                                        .amsgrad = shape->amsgrad};
  struct adam_candidate gradient = moment;
  gradient.form = ADAM_FUSES_GRADIENT;
  for (unsigned i = 0; i < SEARCH_TRIES; i++) {
    const double g = 1 + fabs(full(&n, shape->type)) / 4, m = 4 * g, v = 8 * g * g;
    struct element e = {.g = stored(&(struct maker){.api = api}, shape->type, g),
                        .m = stored(&(struct maker){.api = api}, shape->type, m),
                        .v = stored(&(struct maker){.api = api}, shape->type, v)};
    const double first = halfway(shape->type, true, e.g + (e.m - e.g) * fabs(ordinary(&n)));
    const double second =
        halfway(shape->type, true, e.g * e.g + (e.v - e.g * e.g) * fabs(ordinary(&n)));
    set->hyper.beta1 = (first - e.g) / (e.m - e.g);
    set->hyper.beta2 = (second - e.g * e.g) / (e.v - e.g * e.g);
    if (set->hyper.maximize)
      e.g = -e.g;
    if (shows(api, set, shape, &e, &moment, &gradient, true)) {
      set->halfway.found = true;
      set->halfway.g = e.g;
      set->halfway.m = e.m;
      set->halfway.v = e.v;
      return;
    }
  }
}

/* beta2 and a gradient on which ((1-b2)*g)*g and (1-b2)*(g*g), in double, are stored differently. No candidate has the second,
   which differs in one of some hundred million elements. */
static void search_square(const struct adam_api *api, const struct kernel_shape *shape,
                          unsigned seed, struct calibration_set *set) {
  struct numbers n = {0xbf58476d1ce4e5b9u + seed};
  const struct maker maker = {.api = api};
  for (unsigned i = 0; i < SEARCH_TRIES; i++) {
    const double g = stored(&maker, shape->type, 1 + fabs(full(&n, shape->type)) / 4);
    const double about = (0.25 + 0.25 * fabs(ordinary(&n))) * g * g;
    const double beta2 = 1.0 - halfway(shape->type, true, about) / (g * g), share = 1.0 - beta2;
    if (stored(&maker, shape->type, share * g * g) !=
        stored(&maker, shape->type, share * (g * g))) {
      set->hyper.beta2 = beta2;
      set->square = g;
      return;
    }
  }
}

/* ---- scalars ---- */

/* 1 - 2^-12, exact in float and double: P - w*P is exact when fused, and keeps the rounding of w*P
   when not. The same at 2^-34 shows the rounding of a double product in a float result. */
#define NEAR_ONE_FLOAT (1.0 - 0x1p-12)
#define NEAR_ONE_DOUBLE (1.0 - 0x1p-34)
/* Rounds to 1 - 2^-20 as a float: with m == 0, double scalars give (2^-20 + 2^-40)*g and float ones
 * 2^-20*g. */
#define BETA_BETWEEN (1.0 - 0x1p-20 - 0x1p-40)
/* Rounds to 1 as a float: they give 2^-30*g and 0. */
#define BETA_NEXT_TO_ONE (1.0 - 0x1p-30)

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

static bool narrow(const struct kernel_shape *shape) {
  return adam_type_bytes(shape->type) == 2;
}

/* The set in which OLD and DOUBLE differ. In a narrow type eps cancels sqrt(V)/root of elements with
   v == 1 and g == 0, so that a last bit of the root is much of what is left. */
static void set_of_roots(const struct adam_api *api, const struct calibration_case *c,
                         struct calibration_set *set) {
  set->hyper.lr = 0x1p-10;
  set->hyper.eps = 1e-3;
  set->hyper.weight_decay = 0.1;
  set->step = step_of_rounding(api, &set->hyper);
  if (!narrow(&c->shape))
    return;
  struct adam_scalars scalars;
  set->hyper.lr = 0x1p-14;
  api->scalars(ADAM_DOUBLE, &set->hyper, set->step, 0, 0, &scalars);
  set->hyper.eps =
      -square_root(set->hyper.beta2) / (double)scalars.bias_correction2_sqrt * (1.0 - 0x1p-21);
  set->halfway.found = true; /* its element: v, and any m */
  set->halfway.v = 1;
}

void calibration_sets(const struct adam_api *api, const struct calibration_case *c,
                      struct calibration_set sets[CALIBRATION_SETS]) {
  /* lr*wd is what AdamW multiplies by, wd what L2 does. lr has few bits: it may have to pass
   * through a float. */
  const double lr = 0.75, divisor = c->shape.mode == ADAM_W ? lr : 1.0;
  struct adam_hyper plain = {.lr = lr, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
  plain.maximize = c->hyper.maximize;
  static const struct {
    double weight, beta;
    float step;
  } own[] = {{NEAR_ONE_FLOAT, 0, 1},     {NEAR_ONE_FLOAT, 0, 2},  {NEAR_ONE_DOUBLE, 0, 137},
             {NEAR_ONE_DOUBLE, 0, 5000}, {0.01, BETA_BETWEEN, 3}, {0.01, BETA_BETWEEN, 71}};
  for (unsigned i = 0; i < CALIBRATION_SETS; i++) {
    struct calibration_set *set = &sets[i];
    *set = (struct calibration_set){.hyper = plain, .step = 17};
    set->hyper.weight_decay = 0.1;
    set->offset = i % 2;
    set->elements = set->offset ? CALIBRATION_ELEMENTS : CALIBRATION_ELEMENTS & ~3u;
    set->scale = !c->scales ? 0.0f : i == 7 || i == 8 ? 3.0f : 4.0f;
    if (i < 6) {
      set->step = own[i].step;
      set->hyper.weight_decay = own[i].weight / divisor;
      if (own[i].beta != 0)
        set->hyper.beta1 = set->hyper.beta2 = own[i].beta;
      if (i >= 4 && narrow(&c->shape))
        set->hyper.beta1 = BETA_NEXT_TO_ONE;
      if ((i == 2 || i == 3) && c->shape.type == c->shape.state_type &&
          c->shape.type != ADAM_TYPE_DOUBLE)
        search_square(api, &c->shape, i, set);
      if (i < 4 && narrow(&c->shape) && c->decays)
        search_decay(api, c, i < 2 ? ADAM_FLOAT : ADAM_DOUBLE, set);
    } else if (i == 6) {
      set_of_roots(api, c, set);
    } else if (i < 9) {
      set->hyper = c->hyper;
      set->step = i == 7 ? 1 : 100000;
    } else if (c->shape.type == c->shape.state_type && c->shape.type != ADAM_TYPE_DOUBLE) {
      search_form(api, c, i, set);
    }
    if (!c->decays)
      set->hyper.weight_decay = 0;
    if (c->lr_is_float)
      set->hyper.lr = (double)(float)set->hyper.lr;
  }
}

/* ---- elements ---- */

/* The set's own element, larger or smaller by a power of two. */
static struct element scaled(struct maker *maker, const struct calibration_set *set, bool roots) {
  struct numbers *n = &maker->n;
  const double scale = ldexp(1.0, (int)(number(n) % 6) - 2);
  if (roots)
    return (struct element){.m = ordinary(n), .v = set->halfway.v};
  const double sign = maker->shape.mode == ADAM_W && set->halfway.p != 0 && number(n) % 2 ? -1 : 1;
  return (struct element){.p = set->halfway.p * scale * sign,
                          .g = set->halfway.g * scale,
                          .m = set->halfway.m * scale,
                          .v = set->halfway.v * scale * scale};
}

void calibration_fill(const struct adam_api *api, const struct calibration_case *c,
                      const struct calibration_set *set, unsigned index,
                      const struct adam_tensors *to) {
  struct maker maker = {.api = api,
                        .shape = c->shape,
                        .hyper = &set->hyper,
                        .scale = set->scale != 0 ? (double)set->scale : 1.0,
                        .n = {0x9e3779b97f4a7c15u + index},
                        .to = *to};
  struct numbers *n = &maker.n;
  const bool wild = index == 7 || index == 8;
  /* What a gradient alone brings must be there in the type. */
  const double most = index == 4 || index == 5 ? 8192 : 1;
  for (unsigned i = 0; i < set->elements; i++) {
    struct element e;
    /* By chance and not by position: a compiler may treat every fourth element, or every fourth run
     * of 512, differently. */
    switch (number(n) % 8) {
    case 0:
    case 1:
    case 2:
      e = set->halfway.found ? scaled(&maker, set, index == 6)
                             : element_decay(&maker, full(n, c->shape.type));
      break;
    case 3:
      e = element_update(&maker);
      break;
    case 4:
      e = index >= 7 && narrow(&c->shape) ? element_fine(&maker, ADAM_DOUBLE, set->step, number(n))
                                          : element_cancel(&maker);
      break;
    case 5:
      e = element_ordinary(&maker);
      break;
    case 6:
      e = element_special(&maker, wild);
      break;
    default:
      e = element_new(&maker, most);
      if (set->square != 0 && number(n) % 2)
        e.g = ldexp(set->square, (int)(number(n) % 4) - 2);
    }
    put(&maker, i, &e);
  }
}

size_t calibration_differences(const struct adam_api *api, const struct calibration_case *c,
                               const struct calibration_set *set, unsigned index,
                               const struct adam_candidate *first,
                               const struct adam_candidate *second) {
  const size_t bytes = (lists_bytes(&c->shape, CALIBRATION_ELEMENTS) + 7) / 8 * 8;
  char *memory = malloc(2 * bytes);
  if (!memory)
    return SIZE_MAX;
  struct adam_tensors a = lists_in(&c->shape, memory, CALIBRATION_ELEMENTS),
                      b = lists_in(&c->shape, memory + bytes, CALIBRATION_ELEMENTS);
  struct adam_scalars scalars;
  calibration_fill(api, c, set, index, &a);
  memcpy(memory + bytes, memory, bytes);
  a.grad_scale = b.grad_scale = set->scale != 0 ? &set->scale : NULL;
  api->scalars(first->generation, &set->hyper, set->step, 0, 0, &scalars);
  api->reference(first, &set->hyper, &scalars, set->elements, &a);
  api->scalars(second->generation, &set->hyper, set->step, 0, 0, &scalars);
  api->reference(second, &set->hyper, &scalars, set->elements, &b);
  size_t different = 0;
  for (unsigned i = 0; i < set->elements; i++)
    different += elements_differ(&c->shape, &a, &b, i);
  free(memory);
  return different;
}
