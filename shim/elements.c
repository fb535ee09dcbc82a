/* The kinds of elements: see elements.h. Values are doubles here and rounded once, when they are
   stored in the list's type; what must cancel is computed from what was stored. */
#include "elements.h"
#include <math.h>
#include <string.h>

uint32_t number(struct numbers *n) {
  n->state ^= n->state << 13;
  n->state ^= n->state >> 7;
  n->state ^= n->state << 17;
  return (uint32_t)(n->state * 2685821657736338717u >> 32);
}

double ordinary(struct numbers *n) {
  return (double)(int32_t)(number(n) >> 7) * 0x1p-24 - 1.0;
}

double full(struct numbers *n, enum adam_type type) {
  static const int digits[ADAM_TYPES] = {[ADAM_TYPE_FLOAT] = 24,
                                         [ADAM_TYPE_DOUBLE] = 53,
                                         [ADAM_TYPE_HALF] = 11,
                                         [ADAM_TYPE_BFLOAT16] = 8};
  const uint64_t wide = (uint64_t)number(n) << 32 | number(n);
  const uint64_t significand = UINT64_C(1) << 52 | (wide & ((UINT64_C(1) << 52) - 1));
  const double value = ldexp((double)(significand >> (53 - digits[type])), 1 - digits[type]);
  return ldexp(number(n) % 2 ? value : -value, -(int)(number(n) % 4));
}

double stored(const struct maker *maker, enum adam_type type, double value) {
  double memory;
  maker->api->store(type, &memory, 0, value);
  return maker->api->load(type, &memory, 0);
}

void put(struct maker *maker, unsigned i, const struct element *e) {
  const struct adam_api *api = maker->api;
  const enum adam_type type = maker->shape.type, state = maker->shape.state_type;
  api->store(type, maker->to.p, i, e->p);
  api->store(type, maker->to.g, i, e->g * maker->scale);
  api->store(state, maker->to.m, i, e->m);
  api->store(state, maker->to.v, i, e->v);
  if (maker->shape.amsgrad)
    api->store(state, maker->to.max_v, i, e->max_v);
}

struct element get(const struct maker *maker, const struct adam_tensors *from, unsigned i) {
  const struct adam_api *api = maker->api;
  const enum adam_type type = maker->shape.type, state = maker->shape.state_type;
  return (struct element){api->load(type, from->p, i), api->load(type, from->g, i),
                          api->load(state, from->m, i), api->load(state, from->v, i),
                          maker->shape.amsgrad ? api->load(state, from->max_v, i) : 0};
}

struct element element_decay(struct maker *maker, double p) {
  struct numbers *n = &maker->n;
  p = stored(maker, maker->shape.type, p);
  if (maker->shape.mode == ADAM_W)
    return (struct element){.p = p, .v = 0.01 + (double)(number(n) >> 8) * 0x1p-26};
  const double product = stored(maker, maker->shape.type, p * maker->hyper->weight_decay);
  return (struct element){.p = p, .g = maker->hyper->maximize ? product : -product};
}

struct element element_update(struct maker *maker) {
  struct numbers *n = &maker->n;
  const double v = ordinary(n);
  struct element e = {.g = ordinary(n), .m = ordinary(n) * 0.1, .v = v * v * 0.01};
  if (number(n) % 2) { /* of the largest, some lie above v and some below */
    const double most = ordinary(n);
    e.max_v = most * most * 0.01;
  }
  return e;
}

struct element element_ordinary(struct maker *maker) {
  struct element e = element_update(maker);
  e.p = ordinary(&maker->n);
  return e;
}

struct element element_cancel(struct maker *maker) {
  struct element e = element_ordinary(maker);
  const double beta1 = maker->hyper->beta1;
  const double weight = beta1 > 0 ? (1.0 - beta1) / beta1 : 1.0;
  const double m = weight * stored(maker, maker->shape.type, e.g);
  e.m = maker->hyper->maximize ? m : -m;
  e.p *= 0x1p-20;
  return e;
}

/* The root of the second correction shows in u only where eps does not outweigh sqrt(v)/root,
   whatever eps is. Half of them have a first moment so large that u is no denormal, however small lr
   is. */
struct element element_root(struct maker *maker) {
  struct numbers *n = &maker->n;
  const double eps = fabs(maker->hyper->eps);
  double root = (eps > 1e-17 ? eps : 1e-17) * (double)(1u << number(n) % 8);
  root *= 1.0 + (double)(number(n) >> 8) * 0x1p-24;
  if (!(root < 1.7e19))
    root = 1.7e19 * (1.0 - (double)(number(n) >> 8) * 0x1p-28); /* v ends here */
  const double scale = root < 1e6 && number(n) % 2 ? 0x1p60 : 1.0;
  return (struct element){.v = root * root,
                          .m = ordinary(n) * root * scale,
                          .g = ordinary(n) * root * 0.5,
                          .max_v = number(n) % 2 ? root * root * 1.25 : 0};
}

/* What is there in a type: the GPU's own NaN, infinities, the largest numbers, and plain ones whose
   squares are finite. */
static double special(struct maker *maker, enum adam_type type, bool positive, bool wild) {
  static const double plain[ADAM_TYPES][10] = {
      [ADAM_TYPE_FLOAT] = {0.0, -0.0, 1e-45, -3e-41, 1.1e-38, 1e-20, -1e-20, 1e10, -3e15, 1e15},
      [ADAM_TYPE_DOUBLE] = {0.0, -0.0, 5e-324, -3e-310, 2e-308, 1e-150, -1e-20, 1e10, -3e150, 1e15},
      [ADAM_TYPE_HALF] = {0.0, -0.0, 6e-8, -3e-6, 6e-5, 1e-3, -1e-4, 100.0, -3000.0, 60000.0},
      [ADAM_TYPE_BFLOAT16] = {0.0, -0.0, 1e-40, -3e-39, 1.2e-38, 1e-20, -1e-20, 1e10, -3e15, 1e15},
  };
  static const double most[ADAM_TYPES] = {[ADAM_TYPE_FLOAT] = 0x1.fffffep127,
                                          [ADAM_TYPE_DOUBLE] = 0x1.fffffffffffffp1023,
                                          [ADAM_TYPE_HALF] = 65504.0,
                                          [ADAM_TYPE_BFLOAT16] = 0x1.fep127};
  struct numbers *n = &maker->n;
  const double x = ordinary(n);
  double value;
  if (wild && number(n) % 4 == 0) {
    const double values[] = {(double)INFINITY, -(double)INFINITY, most[type] / 320.0, -most[type]};
    const uint32_t which = number(n) % 5;
    static const uint64_t nan_bits = UINT64_C(0xfff8000000000000);
    if (which < 4)
      value = values[which];
    else
      memcpy(&value, &nan_bits, sizeof value);
  } else {
    value = plain[type][number(n) % 10] * (number(n) % 2 ? 1.0 : x);
  }
  return positive && value < 0 ? -value : value;
}

struct element element_special(struct maker *maker, bool wild) {
  const enum adam_type type = maker->shape.type, state = maker->shape.state_type;
  struct element e = {
      .p = special(maker, type, false, wild),
      .g = special(maker, type, false, wild),
      .m = special(maker, state, false, wild),
      .v = special(maker, state, true, wild),
      .max_v = special(maker, state, true, wild),
  };
  /* A NaN among doubles keeps its sign, which maximize changes; which of two different ones comes out of
     a sum is not said anywhere. */
  if (type == ADAM_TYPE_DOUBLE && e.g != e.g)
    e.g = 0;
  return e;
}

double square_root(double x) {
  if (!(x > 1e-300 && x < 1e300))
    return 0;
  int exponent;
  frexp(x, &exponent);
  double root = ldexp(1.0, exponent / 2);
  for (int i = 0; i < 7; i++)
    root = (root + x / root) / 2;
  return root;
}

/* u = size*M / (sqrt(V)/root + eps) with M = b1*m + (1-b1)*G, V = b2*v + (1-b2)*G*G. m and v give p, to
   the few bits it has; then G makes up for what p lost. */
struct element element_fine(struct maker *maker, enum adam_generation generation, float step,
                            unsigned i) {
  const struct adam_hyper *hyper = maker->hyper;
  const double b1 = hyper->beta1, b2 = hyper->beta2, decay = hyper->weight_decay;
  const double kept = maker->shape.mode == ADAM_W ? 1.0 - hyper->lr * decay : 1.0;
  struct element e = element_fine_start(i);
  struct adam_scalars scalars;
  maker->api->scalars(generation, hyper, step, 0, 0, &scalars);
  const double root = (double)scalars.bias_correction2_sqrt, size = (double)scalars.step_size;
  double gradient = 0;
  for (int round = 0; round < 3; round++) {
    const double second = b2 * e.v + (1.0 - b2) * gradient * gradient;
    const double denominator = square_root(second) / root + hyper->eps;
    if (round == 0)
      e.p = stored(maker, maker->shape.type, size * b1 * e.m / denominator / kept);
    gradient = (e.p * kept * denominator / size - b1 * e.m) / (1.0 - b1);
  }
  e.g = gradient - (maker->shape.mode == ADAM_L2 ? decay * e.p : 0.0);
  if (hyper->maximize)
    e.g = -e.g;
  return e.p - e.p == 0 && e.g - e.g == 0 ? e : element_update(maker);
}

struct element element_new(struct maker *maker, double most) {
  struct element e = element_update(maker);
  e.g *= most;
  e.m = e.v = e.max_v = 0;
  return e;
}

/* ---- lists ---- */

size_t type_list_bytes(enum adam_type type, size_t elements) {
  return adam_type_bytes(type) * elements;
}

size_t lists_bytes(const struct kernel_shape *shape, size_t elements) {
  return 2 * type_list_bytes(shape->type, elements) +
         (shape->amsgrad ? 3 : 2) * type_list_bytes(shape->state_type, elements);
}

struct adam_tensors lists_in(const struct kernel_shape *shape, void *block, size_t elements) {
  const size_t bytes = type_list_bytes(shape->type, elements),
               state_bytes = type_list_bytes(shape->state_type, elements);
  char *at = block;
  return (struct adam_tensors){.p = at,
                               .g = at + bytes,
                               .m = at + 2 * bytes,
                               .v = at + 2 * bytes + state_bytes,
                               .max_v = shape->amsgrad ? at + 2 * bytes + 2 * state_bytes : NULL};
}

static bool differ(enum adam_type type, const void *a, const void *b, unsigned i) {
  const size_t bytes = adam_type_bytes(type);
  return memcmp((const char *)a + i * bytes, (const char *)b + i * bytes, bytes) != 0;
}

bool elements_differ(const struct kernel_shape *shape, const struct adam_tensors *a,
                     const struct adam_tensors *b, unsigned i) {
  return differ(shape->type, a->p, b->p, i) || differ(shape->type, a->g, b->g, i) ||
         differ(shape->state_type, a->m, b->m, i) || differ(shape->state_type, a->v, b->v, i) ||
         (shape->amsgrad && differ(shape->state_type, a->max_v, b->max_v, i));
}
