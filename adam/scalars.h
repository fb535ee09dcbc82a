/* Scalars and the reference arithmetic: see adam.h. Called by api.c, which sets the floating-point
   environment, and by tests. */
#ifndef OFFLOAD_ADAM_SCALARS_H
#define OFFLOAD_ADAM_SCALARS_H
#include "adam.h"

void scalars_by_libm(enum adam_generation, const struct adam_hyper *, float step, int nudge1,
                     int nudge2, struct adam_scalars *);
void reference_step(const struct adam_candidate *, const struct adam_hyper *,
                    const struct adam_scalars *, uint64_t elements, const struct adam_tensors *);
double load_element(enum adam_type, const void *array, uint64_t index);
void store_element(enum adam_type, void *array, uint64_t index, double value);
const char *type_name(enum adam_type);
const char *generation_name(enum adam_generation);
#endif
