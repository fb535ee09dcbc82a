/* Kinds of elements that calibration and the running proof are made of: each shows one thing. See
   probe.h, whose rooms they serve. */
#ifndef OFFLOAD_ELEMENTS_H
#define OFFLOAD_ELEMENTS_H
#include "probe.h"

struct numbers {
  uint64_t state;
};

uint32_t number(struct numbers *);
/* In [-1, 1), 24 bits. */
double ordinary(struct numbers *);
/* With as many bits as the type has and a magnitude in [1/8, 2). */
double full(struct numbers *, enum adam_type);

struct element {
  double p, g, m, v, max_v;
};

/* Where elements go: lists of a shape. A gradient is multiplied by `scale` before it is stored. */
struct maker {
  const struct adam_api *api;
  struct kernel_shape shape;
  const struct adam_hyper *hyper;
  double scale;
  struct numbers n;
  struct adam_tensors to;
};

/* A number as it is when it was stored. */
double stored(const struct maker *, enum adam_type, double value);

void put(struct maker *, unsigned i, const struct element *);
struct element get(const struct maker *, const struct adam_tensors *, unsigned i);

/* Decay shows whole: AdamW with u == 0, L2 with a gradient that cancels the product. */
struct element element_decay(struct maker *, double p);
/* p == 0: the whole update is seen, all its bits that can be stored. */
struct element element_update(struct maker *);
struct element element_ordinary(struct maker *);
/* The gradient cancels the first moment: what is left is the rounding of one of the two products. */
struct element element_cancel(struct maker *);
/* sqrt(v) near eps or far above it. */
struct element element_root(struct maker *);
/* Zeroes, denormals, large and tiny numbers; `wild`: also what overflows, infinities and NaN. */
struct element element_special(struct maker *, bool wild);
/* The moments of off_fine's element `i`. */
static inline struct element element_fine_start(unsigned i) {
  return (struct element){.m = 1.0 + (double)(i % 64) / 64, .v = 1.0 + (double)(i * 37 % 64) / 64};
}
/* For narrow types: an update next to a parameter that can be stored, so that what is left of p - u are
   their last bits. `step` is the step counter. */
struct element element_fine(struct maker *, enum adam_generation, float step, unsigned i);
/* No moments yet: only what the gradient brings. */
struct element element_new(struct maker *, double most);

/* Of a positive number. By Newton: this library does without libm. */
double square_root(double x);

size_t type_list_bytes(enum adam_type, size_t elements);
/* Whether lists differ in element i, in anything that a kernel stores. */
bool elements_differ(const struct kernel_shape *, const struct adam_tensors *,
                     const struct adam_tensors *, unsigned i);
#endif
