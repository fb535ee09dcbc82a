/* See replicas.h. */
#include "replicas.h"

bool replicas_print_at(uint64_t step, unsigned *index) {
  if (step < 2)
    return false;
  const uint64_t since = step - ((uint64_t)1 << (63 - __builtin_clzll(step)));
  *index = (unsigned)since;
  return since < REGISTRY_PRINTS;
}

static bool has_print(const struct registry_state *state) {
  for (unsigned i = 0; i < REGISTRY_PRINTS; i++)
    if (state->prints[i])
      return true;
  return false;
}

static bool share_print(const struct registry_state *a, const struct registry_state *b) {
  for (unsigned i = 0; i < REGISTRY_PRINTS; i++)
    for (unsigned k = 0; k < REGISTRY_PRINTS; k++)
      if (a->prints[i] && a->prints[i] == b->prints[k])
        return true;
  return false;
}

bool replicas_same(const struct registry_entry *a, const struct registry_entry *b) {
  enum { STEPS_THAT_TELL = 2 };
  const struct registry_state *one = &a->state, *other = &b->state;
  if (a->job != b->job || one->steps < STEPS_THAT_TELL || other->steps < STEPS_THAT_TELL ||
      !one->parameters_key || one->parameters_key != other->parameters_key ||
      one->state_bytes != other->state_bytes)
    return false;
  if (has_print(one) && has_print(other))
    return share_print(one, other);
  return one->reduces && other->reduces;
}
