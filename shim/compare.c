/* Comparing pieces with the program's kernel, and saying what differs: see compare.h. */
#include "compare.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* A list of a piece, as both made it. */
struct two {
  const char *name;
  enum adam_type type;
  const void *kernel, *ours;
};

static uint64_t bits_of(const struct two *two, const void *list, uint64_t i) {
  const size_t bytes = adam_type_bytes(two->type);
  uint64_t bits = 0; /* little-endian, as the GPU's */
  memcpy(&bits, (const char *)list + i * bytes, bytes);
  return bits;
}

/* Which NaN a double becomes is promised neither by the GPU's manual nor by us (adam/README.md). */
static bool same(const struct adam_api *api, const struct two *two, uint64_t i) {
  if (bits_of(two, two->kernel, i) == bits_of(two, two->ours, i))
    return true;
  return two->type == ADAM_TYPE_DOUBLE && isnan(api->load(two->type, two->kernel, i)) &&
         isnan(api->load(two->type, two->ours, i));
}

/* The first element that differs; `elements` when none does. */
static uint64_t first_difference(const struct adam_api *api, const struct two *two,
                                 uint64_t elements) {
  if (memcmp(two->kernel, two->ours, elements * adam_type_bytes(two->type)) == 0)
    return elements;
  uint64_t i = 0;
  while (i < elements && same(api, two, i))
    i++;
  return i;
}

static void number_text(const struct adam_api *api, const struct two *two, const void *list,
                        uint64_t i, char *text, size_t bytes) {
  const int digits = two->type == ADAM_TYPE_DOUBLE ? 17 : 9;
  snprintf(text, bytes, "%.*g (0x%0*llx)", digits, api->load(two->type, list, i),
           (int)adam_type_bytes(two->type) * 2, (unsigned long long)bits_of(two, list, i));
}

/* What is in doubt, in words and in the function's row. */
static void doubt_text(const struct piece_check *check, const struct checked_function *function,
                       char *text, size_t bytes) {
  const uint64_t first = function->first_in_doubt, last = function->step;
  if (check->before) {
    snprintf(text, bytes, "step %llu was done by the program's kernel, nothing is in doubt",
             (unsigned long long)last);
    return;
  }
  if (first == last)
    snprintf(text, bytes, "in doubt: step %llu", (unsigned long long)last);
  else
    snprintf(text, bytes, "in doubt: steps %llu to %llu", (unsigned long long)first,
             (unsigned long long)last);
  if (function->row) {
    atomic_store_explicit(&function->row->doubt_first_step, first, memory_order_relaxed);
    atomic_store_explicit(&function->row->doubt_last_step, last, memory_order_relaxed);
  }
}

/* The first of a function's differences is told; the others are counted. */
static void tell(const struct adam_api *api, const struct config *config,
                 const struct piece_check *check, const struct checked_function *function,
                 const struct two *two, uint64_t i) {
  report_add(mismatches, 1);
  if (function->row)
    atomic_fetch_add_explicit(&function->row->mismatches, 1, memory_order_relaxed);
  if (atomic_exchange_explicit(function->differed, 1, memory_order_relaxed))
    return;
  const uint64_t element = check->first_element + i;
  char ours[64], kernels[64], doubt[96];
  number_text(api, two, two->ours, i, ours, sizeof ours);
  number_text(api, two, two->kernel, i, kernels, sizeof kernels);
  doubt_text(check, function, doubt, sizeof doubt);
  const bool stop = !check->before && config->verify_action == VERIFY_STOP;
  report_notice("OFFLOAD_VERIFY: %s, tensor %u of the launch (parameter at %#llx): %s[%llu] is %s "
                "from the CPU, %s from the program's kernel; %s",
                function->name, check->tensor, (unsigned long long)check->parameter, two->name,
                (unsigned long long)element, ours, kernels, doubt);
  if (!stop)
    return;
  report_notice("OFFLOAD_VERIFY: the job is stopped by a CUDA error: go back to a checkpoint from "
                "before the steps in doubt and set OFFLOAD_STEP=stream; "
                "OFFLOAD_VERIFY_ACTION=warn goes on instead");
  /* What the program does about a CUDA error may be abort. */
  report_now(config);
}

static bool compare(const struct adam_api *api, const struct config *config,
                    const struct piece_check *check, const struct checked_function *function,
                    const struct two *lists, unsigned count, uint64_t elements) {
  for (unsigned i = 0; i < count; i++) {
    const uint64_t first = first_difference(api, &lists[i], elements);
    if (first == elements)
      continue;
    tell(api, config, check, function, &lists[i], first);
    return false;
  }
  return true;
}

bool compare_states(const struct adam_api *api, const struct config *config,
                    const struct piece_check *check, const struct checked_function *function,
                    const struct piece_shape *shape, void *const states[CHECK_STATES]) {
  static const char *const names[CHECK_STATES] = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  struct two lists[CHECK_STATES];
  const unsigned count = shape->kernel.amsgrad ? 3 : 2;
  for (unsigned i = 0; i < count; i++)
    lists[i] = (struct two){names[i], shape->kernel.state_type, check->kernel_states[i], states[i]};
  return compare(api, config, check, function, lists, count, shape->elements);
}

bool compare_parameters(const struct adam_api *api, const struct config *config,
                        const struct piece_check *check, const struct checked_function *function,
                        const struct piece_shape *shape) {
  const struct two lists[] = {
      {"parameter", shape->kernel.type, check->kernel_parameter, check->parameter_made},
      {"gradient", shape->kernel.type, check->kernel_gradient, check->gradient_made}};
  return compare(api, config, check, function, lists, check->gradient_made ? 2 : 1,
                 shape->elements);
}

/* Launches that were on their way when a difference was found are in doubt, too. */
void compare_stepped(const struct checked_function *function) {
  struct report_function *row = function->row;
  if (row && atomic_load_explicit(&row->doubt_first_step, memory_order_relaxed))
    atomic_store_explicit(&row->doubt_last_step, function->step, memory_order_relaxed);
}

void compare_done(const struct checked_function *function, const struct piece_shape *shape) {
  const size_t state_bytes =
      (shape->kernel.amsgrad ? 3 : 2) * adam_type_bytes(shape->kernel.state_type);
  compare_stepped(function);
  report_add(verified_pieces, 1);
  report_add(verified_bytes, shape->elements * (state_bytes + adam_type_bytes(shape->kernel.type)));
  if (function->row)
    atomic_fetch_add_explicit(&function->row->verified, 1, memory_order_relaxed);
}
