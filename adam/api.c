/* The companion's one export, and the floating-point environment around what it computes for
 * callers. */
#include "../policy/version.h"
#include "float_environment.h"
#include "isa.h"
#include "scalars.h"
#include "team.h"

/* Tests build a companion of another ABI by overriding this. */
#ifndef OFFLOAD_ADAM_ABI_BUILT
#define OFFLOAD_ADAM_ABI_BUILT OFFLOAD_ADAM_ABI
#endif

static void api_scalars(enum adam_generation generation, const struct adam_hyper *hyper, float step,
                        int nudge1, int nudge2, struct adam_scalars *scalars) {
  const float_environment found = float_environment_enter();
  scalars_by_libm(generation, hyper, step, nudge1, nudge2, scalars);
  float_environment_leave(found);
}

static void api_reference(const struct adam_candidate *candidate, const struct adam_hyper *hyper,
                          const struct adam_scalars *scalars, uint64_t elements,
                          const struct adam_tensors *tensors) {
  const float_environment found = float_environment_enter();
  reference_step(candidate, hyper, scalars, elements, tensors);
  float_environment_leave(found);
}

static double api_load(enum adam_type type, const void *array, uint64_t index) {
  const float_environment found = float_environment_enter();
  const double value = load_element(type, array, index);
  float_environment_leave(found);
  return value;
}

static void api_store(enum adam_type type, void *array, uint64_t index, double value) {
  const float_environment found = float_environment_enter();
  store_element(type, array, index, value);
  float_environment_leave(found);
}

static const struct adam_api api = {
    .abi = OFFLOAD_ADAM_ABI_BUILT,
    .version = OFFLOAD_VERSION,
    .team_create = team_create,
    .team_destroy = team_destroy,
    .team_isa = team_isa,
    .team_threads = team_threads,
    .step = team_step,
    .step_many = team_step_many,
    .scalars = api_scalars,
    .reference = api_reference,
    .load = api_load,
    .store = api_store,
    .generation_name = generation_name,
    .type_name = type_name,
    .isa_name = isa_name,
};

__attribute__((visibility("default"))) const struct adam_api *offload_adam(void) {
  return &api;
}
