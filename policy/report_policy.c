/* See report_policy.h. What is written is copied first, a function at a time. Rows are static: the last word about one comes at exit. */
#include "report_policy.h"
#include "cost.h"
#include "leaf.h"
#include "scratch.h"
#include "sort.h"
#include <pthread.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct report_policy policies[REPORT_POLICIES];
static bool told[REPORT_POLICIES];
static struct report_step steps[REPORT_STEPS];
static uint64_t step_count;

void report_policy(unsigned row, const struct report_policy *policy) {
  if (row >= REPORT_POLICIES || !leaf_lock(&lock))
    return;
  policies[row] = *policy;
  told[row] = true;
  pthread_mutex_unlock(&lock);
}

void report_step(const struct report_step *step) {
  if (!leaf_lock(&lock))
    return;
  steps[step_count++ % REPORT_STEPS] = *step;
  pthread_mutex_unlock(&lock);
}

bool report_step_last(struct report_step *step) {
  if (!leaf_lock(&lock))
    return false;
  const bool any = step_count != 0;
  if (any)
    *step = steps[(step_count - 1) % REPORT_STEPS];
  pthread_mutex_unlock(&lock);
  return any;
}

void report_policy_forget(void) {
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  memset(told, 0, sizeof told);
  step_count = 0;
}

/* ---- "policy" ---- */

static void write_policy(struct json *json, const struct report_policy *policy) {
  const bool compared = policy->measured_ns && policy->foretold_ns;
  json_begin(json, NULL, '{');
  json_string(json, "function", policy->function);
  json_number(json, "device", (uint64_t)policy->device);
  json_string(json, "asked", policy->asked);
  json_string(json, "way", policy->way);
  json_string(json, "why", policy->why);
  json_text_or_null(json, "advice", policy->advice);
  json_string(json, "rates", policy->rates);
  json_number(json, "elements", policy->elements);
  json_number(json, "elements_host", policy->elements_host);
  json_number(json, "elements_drive", policy->elements_drive);
  json_begin(json, "foretold", '{');
  for (unsigned i = 0; i < REPORT_POLICY_WAYS; i++) {
    const struct report_policy_way *way = &policy->ways[i];
    if (!way->way)
      continue;
    json_begin(json, way->way, '{');
    json_boolean(json, "possible", way->possible);
    json_number(json, "exposed_ns", way->exposed_ns);
    json_number(json, "hidden_ns", way->hidden_ns);
    json_string(json, "bound", way->bound);
    json_end(json, '}');
  }
  json_end(json, '}');
  json_number_or_null(json, "measured_ns", policy->measured_ns, policy->measured_ns);
  json_number_or_null(json, "foretold_ns", policy->foretold_ns, policy->foretold_ns);
  json_number_or_null(
      json, "ratio_percent", compared,
      compared ? (uint64_t)(100.0 * (double)policy->measured_ns / (double)policy->foretold_ns) : 0);
  json_number(json, "switch_count", policy->change_count);
  json_begin(json, "switches", '[');
  for (unsigned i = 0; i < policy->changes_kept; i++) {
    const struct report_policy_change *change = &policy->changes[i];
    json_begin(json, NULL, '{');
    json_number(json, "step", change->step);
    json_string(json, "from", change->from);
    json_string(json, "to", change->to);
    json_string(json, "why", change->why);
    json_end(json, '}');
  }
  json_end(json, ']');
  json_end(json, '}');
}

/* False where there is no such row. */
static bool copy_policy(unsigned row, struct report_policy *copy) {
  if (!leaf_lock(&lock))
    return false;
  const bool there = told[row];
  if (there)
    *copy = policies[row];
  pthread_mutex_unlock(&lock);
  return there;
}

void report_policy_json(struct json *json) {
  struct report_policy *copy = scratch_take(sizeof *copy);
  json_begin(json, "policy", '{');
  json_begin(json, "functions", '[');
  for (unsigned row = 0; copy && row < REPORT_POLICIES; row++)
    if (copy_policy(row, copy))
      write_policy(json, copy);
  json_end(json, ']');
  json_end(json, '}');
  scratch_drop(copy, sizeof *copy);
}

/* ---- "steps" ---- */

uint64_t report_step_exposed_ns(const struct report_step *step) {
  if (step->way && !strcmp(step->way, cost_way_name(COST_STAY)))
    return 0;
  const uint64_t added =
      step->optimizer_ns > step->stay_ns ? step->optimizer_ns - step->stay_ns : 0;
  return added < step->step_ns ? added : step->step_ns;
}
uint64_t report_step_foretold_ns(const struct report_step *step) {
  return step->foretold_ns > step->stay_ns ? step->foretold_ns - step->stay_ns : 0;
}
static uint64_t whole_ns(const struct report_step *step) {
  return step->step_ns;
}
static bool measured(const struct report_step *step) {
  return step->optimizer_ns != 0;
}
static bool foretold(const struct report_step *step) {
  return step->foretold_ns != 0;
}

/* The median of those that are known; of how many is returned in *count. */
static uint64_t median(const struct report_step *kept, unsigned *count,
                       bool (*known)(const struct report_step *),
                       uint64_t (*value)(const struct report_step *)) {
  double values[REPORT_STEPS];
  unsigned n = 0;
  for (unsigned i = 0; i < *count; i++)
    if (!known || known(&kept[i]))
      values[n++] = (double)value(&kept[i]);
  *count = n;
  return (uint64_t)sort_median(values, n);
}

/* A share of the step is told of both: they are of the same steps. */
static struct report_medians medians_of(const struct report_step *kept, unsigned count) {
  struct report_medians medians = {.measured = count};
  medians.exposed_ns = median(kept, &medians.measured, measured, report_step_exposed_ns);
  medians.step_ns = median(kept, &count, medians.measured ? measured : NULL, whole_ns);
  return medians;
}

struct report_medians report_steps_medians(void) {
  struct report_medians medians = {0};
  if (!leaf_lock(&lock))
    return medians;
  medians = medians_of(steps, step_count < REPORT_STEPS ? (unsigned)step_count : REPORT_STEPS);
  pthread_mutex_unlock(&lock);
  return medians;
}

static void write_step(struct json *json, const struct report_step *step) {
  json_begin(json, NULL, '{');
  json_number(json, "step", step->step);
  json_number(json, "device", (uint64_t)step->device);
  json_string(json, "way", step->way);
  json_number(json, "step_ns", step->step_ns);
  json_number_or_null(json, "optimizer_ns", measured(step), step->optimizer_ns);
  json_number_or_null(json, "exposed_ns", measured(step), report_step_exposed_ns(step));
  json_number_or_null(json, "foretold_ns", foretold(step), report_step_foretold_ns(step));
  json_number(json, "cpu_ns", step->cpu_ns);
  json_number(json, "link_down_bytes", step->link_down_bytes);
  json_number(json, "link_up_bytes", step->link_up_bytes);
  json_end(json, '}');
}

void report_steps_json(struct json *json) {
  struct report_step *kept = scratch_take(sizeof steps);
  uint64_t count = 0;
  unsigned n = 0;
  if (kept && leaf_lock(&lock)) {
    count = step_count;
    n = count < REPORT_STEPS ? (unsigned)count : REPORT_STEPS;
    for (unsigned i = 0; i < n; i++)
      kept[i] = steps[(count - n + i) % REPORT_STEPS];
    pthread_mutex_unlock(&lock);
  }
  json_begin(json, "steps", '{');
  json_number(json, "count", count);
  const struct report_medians medians = medians_of(kept, n);
  unsigned of = n;
  const uint64_t foretold_ns = median(kept, &of, foretold, report_step_foretold_ns);
  json_number_or_null(json, "median_step_ns", n, medians.step_ns);
  json_number_or_null(json, "median_exposed_ns", medians.measured, medians.exposed_ns);
  json_number_or_null(json, "median_foretold_ns", of, foretold_ns);
  json_begin(json, "last", '[');
  for (unsigned i = 0; i < n; i++)
    write_step(json, &kept[i]);
  json_end(json, ']');
  json_end(json, '}');
  scratch_drop(kept, sizeof steps);
}
