/* See report_observed.h. */
#include "report_observed.h"
#include "leaf.h"
#include "report_policy.h"
#include "words.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf */
static struct report_observed told;

void report_observed(const struct report_observed *now) {
  pthread_mutex_lock(&lock);
  told = *now;
  pthread_mutex_unlock(&lock);
}

static struct report_observed now(void) {
  struct report_observed copy = {0};
  if (leaf_lock(&lock)) {
    copy = told;
    pthread_mutex_unlock(&lock);
  }
  return copy;
}

/* A whole step as it is now; 0: not known. Sorted when it is told, not at each step. */
static uint64_t step_as_it_is_ns(const struct report_observed *observed) {
  return observed->foretold ? report_steps_medians().step_ns : 0;
}

void report_observed_forget(void) {
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  memset(&told, 0, sizeof told);
}

bool report_observed_text(char *text, size_t bytes, bool *nothing) {
  const struct report_observed observed = now();
  char move[WORDS_BYTES], state[WORDS_BYTES], exposed[WORDS_BYTES], share[WORDS_BYTES],
      whole[WORDS_BYTES];
  char cost[160] = ", its cost is foretold once steps follow each other";
  *nothing = !observed.move_bytes;
  if (!observed.state_bytes)
    return false;
  words_bytes((double)observed.move_bytes, move);
  words_bytes((double)observed.state_bytes, state);
  if (!observed.possible)
    (void)snprintf(cost, sizeof cost, ", this driver makes no host memory for it");
  else if (!observed.move_bytes)
    *cost = 0; /* the reasons say why */
  else if (observed.foretold) {
    const double added_ns = (double)observed.exposed_ns;
    const uint64_t as_it_is_ns = step_as_it_is_ns(&observed);
    const double step_ns = (double)as_it_is_ns + added_ns; /* as it would be */
    words_seconds(added_ns / 1e9, exposed);
    if (as_it_is_ns)
      (void)snprintf(cost, sizeof cost,
                     ", foretold cost %s of a step of %s (%s) by %s, from %s rates", exposed,
                     words_seconds(step_ns / 1e9, whole), words_share(added_ns / step_ns, share),
                     observed.way, observed.rates);
    else
      (void)snprintf(cost, sizeof cost, ", foretold cost %s a step by %s, from %s rates", exposed,
                     observed.way, observed.rates);
  }
  (void)snprintf(text, bytes, "would move %s of %s of optimizer state in %llu tensor%s%s", move,
                 state, (unsigned long long)observed.tensors, observed.tensors == 1 ? "" : "s",
                 cost);
  return true;
}

void report_observed_json(struct json *json) {
  const struct report_observed observed = now();
  if (!observed.state_bytes) {
    json_string(json, "observed", NULL);
    return;
  }
  json_begin(json, "observed", '{');
  json_number(json, "state_bytes", observed.state_bytes);
  json_number(json, "tensors", observed.tensors);
  json_number(json, "movable_bytes", observed.movable_bytes);
  json_boolean(json, "possible", observed.possible);
  json_number(json, "budget_bytes", observed.budget_bytes);
  json_number(json, "move_bytes", observed.move_bytes);
  json_string(json, "way", observed.foretold ? observed.way : NULL);
  json_string(json, "rates", observed.foretold ? observed.rates : NULL);
  json_number(json, "exposed_ns", observed.exposed_ns);
  json_number(json, "hidden_ns", observed.hidden_ns);
  json_number(json, "step_ns", step_as_it_is_ns(&observed));
  json_end(json, '}');
}
