/* Scalars and arrays as hostile as they come, for the tests of the kernels and of the reference. */
#ifndef ADAM_HOSTILE_H
#define ADAM_HOSTILE_H
#include "adam_support.h"
#include <float.h>

/* Scalars as launches have them, and as none should. */
static const struct {
  struct adam_hyper hyper;
  double step_size, correction;
} settings[] = {
    {{1e-3, 0.9, 0.999, 0.1, 1e-8, false}, 1e-3, 0.7},
    {{2e-3, 0.9, 0.95, 0.01, 1e-8, true}, 0.02, 0.03162278},
    {{1.0, 0.0, 0.0, 0.5, 0.0, false}, 1.0, 1.0},
    {{1e-5, 1 - 0x1p-40, 0.5, 0.1, 1e-15, false}, 9.1e6, 0.70710677},
    {{1e30, 0.5, 1.0, 1e-30, 1e-300, true}, FLT_MAX, 1e-38},
    {{0.0, 0.8, 0.98, 0.0, 1e-8, false}, 0.0, 0.0},
    {{1e-3, 0.9, 0.999, 0.1, 1e-8, false}, NAN, INFINITY},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

UNUSED static void set_scalars(struct adam_scalars *s, size_t setting) {
  const struct adam_hyper *h = &settings[setting].hyper;
  *s = (struct adam_scalars){.step_size = (float)settings[setting].step_size,
                             .bias_correction2_sqrt = (float)settings[setting].correction,
                             .lr_decay = (float)h->lr * (float)h->weight_decay,
                             .lr_decay_double = h->lr * h->weight_decay,
                             .step_size_double = settings[setting].step_size,
                             .bias_correction2_sqrt_double = settings[setting].correction};
}

UNUSED static void fill_hostile(enum adam_type type, void *array, size_t elements, uint64_t *seed) {
  for (size_t i = 0; i < elements; i++) {
    const uint64_t kind = random_bits(seed) % 4;
    const float x = hostile(seed);
    if (type == ADAM_TYPE_FLOAT) {
      memcpy((float *)array + i, &x, sizeof x); /* signalling NaN as they are */
    } else if (type == ADAM_TYPE_DOUBLE) {
      uint64_t bits = random_bits(seed) << 11 ^ random_bits(seed);
      if (kind == 0 && isfinite(x)) /* denormals, zeros and numbers near overflow of doubles */
        bits = bits_of_wide((double)x) & ~(0x7ffull << 52);
      else if (kind != 1)
        bits = bits_of_wide((double)x);
      memcpy((double *)array + i, &bits, sizeof bits);
    } else if (kind == 0) {
      /* any bits, or denormal */
      const unsigned mask = random_bits(seed) % 2    ? 0xffff
                            : type == ADAM_TYPE_HALF ? 0x83ff
                                                     : 0x807f;
      ((uint16_t *)array)[i] = (uint16_t)(random_bits(seed) & mask);
    } else {
      restated_store(type, array, i, (double)x);
    }
  }
}
#endif
