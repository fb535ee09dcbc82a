/* See facts.h. Costs are as measured, in the medians that the report tells, else they come from rates: where these are only assumed,
   nothing is advised by them. */
#include "facts.h"
#include "../nvme/clock.h"
#include "../policy/advice.h"
#include "../policy/leaf.h"
#include "../policy/node.h"
#include "../policy/ranks.h"
#include "../policy/report.h"
#include "../policy/report_advice.h"
#include "../policy/report_memory.h"
#include "../policy/report_policy.h"
#include "choose.h"
#include "foreign.h"
#include "process.h"
#include "state.h"
#include "tier.h"
#include "unknown.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Without a step for so long, there is none to come. */
static const uint64_t long_ns = 600000000000;
/* Steps after which collectives tell how a job divides its work. */
enum { STEPS_THAT_TELL = 3 };
/* Of fewer measured steps nothing is said of what a step costs. */
enum { MEASURED_LEAST = 5 };

/* Of the last step; and of frameworks' settings, written once. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf */
static struct step_seen {
  bool known;
  struct choice_facts choice;
  size_t state_bytes;
} seen;
static struct {
  bool expandable_segments, async_allocator, memory_fraction;
  uint64_t began_ns;
} settings;
static _Atomic uint64_t reduced_bytes, divided_bytes;

/* ---- gathering ---- */

static bool has(const char *text, const char *word) {
  return text && strstr(text, word);
}

static const char *value_of(char **environment, const char *name) {
  const size_t length = strlen(name);
  for (char **entry = environment; *entry; entry++)
    if (!strncmp(*entry, name, length) && (*entry)[length] == '=')
      return *entry + length + 1;
  return NULL;
}

static size_t give(bool final, struct advice advice[ADVICE_MOST], uint64_t *state_bytes);

void facts_begin(char **environment) {
  static const char *const names[] = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const char *value = value_of(environment, names[i]);
    settings.expandable_segments |= has(value, "expandable_segments:True");
    settings.async_allocator |= has(value, "backend:cudaMallocAsync");
    settings.memory_fraction |= has(value, "per_process_memory_fraction:");
  }
  settings.began_ns = clock_now_ns();
  report_advice_from(give);
}

void facts_step(size_t state_bytes) {
  static struct choice_facts choice; /* large; under the enqueue lock */
  const bool known = choose_facts(&choice);
  pthread_mutex_lock(&lock);
  seen.known = known;
  if (known)
    seen.choice = choice;
  seen.state_bytes = state_bytes;
  pthread_mutex_unlock(&lock);
}

void facts_reduced(size_t bytes) {
  atomic_fetch_add_explicit(&reduced_bytes, bytes, memory_order_relaxed);
}

void facts_divided(size_t bytes) {
  if (state_step()) /* before the first step parameters are handed out */
    atomic_fetch_add_explicit(&divided_bytes, bytes, memory_order_relaxed);
}

static uint64_t total(const _Atomic uint64_t *counter) {
  return atomic_load_explicit(counter, memory_order_relaxed);
}

bool facts_reduces(void) {
  return state_step() >= STEPS_THAT_TELL && total(&reduced_bytes) &&
         total(&divided_bytes) < total(&reduced_bytes) / 4;
}

/* ---- giving ---- */

static bool on_wsl(void) {
  const char *root = process_config()->sysroot;
  char path[512], text[512];
  (void)snprintf(path, sizeof path, "%s/proc/version", root ? root : "");
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t got = file < 0 ? -1 : read(file, text, sizeof text - 1);
  if (file >= 0)
    close(file);
  text[got > 0 ? got : 0] = 0;
  return strstr(text, "icrosoft") || strstr(text, "WSL");
}

/* What the step moves and costs, as far as that is worth a word. */
static void add_costs(struct advice_facts *facts) {
  const struct config *config = process_config();
  struct step_seen last = {0};
  if (leaf_lock(&lock)) {
    last = seen;
    pthread_mutex_unlock(&lock);
  }
  const struct cost_input *input = &last.choice.input;
  const double state = input->elements * input->family.state;
  facts->state_bytes = last.state_bytes;
  if (!last.known || state <= 0)
    return;
  const double all = (double)last.state_bytes / state; /* of other functions, too */
  facts->parameter_bytes = (uint64_t)(all * input->elements * input->family.parameter);
  facts->gradient_bytes = (uint64_t)(all * input->elements * input->family.gradient);
  const bool assumed = input->rates.source == RATES_ASSUMED,
             observed = config->mode == MODE_OBSERVE;
  const struct report_medians medians = report_steps_medians();
  facts->measured = !observed && medians.measured >= MEASURED_LEAST;
  if (assumed && !facts->measured)
    return;
  facts->input = *input;
  facts->cost = last.choice.cost;
  if (facts->measured || observed)
    facts->step_seconds = (double)medians.step_ns / 1e9;
  if (facts->measured)
    facts->exposed_seconds = (double)medians.exposed_ns / 1e9;
  /* As the line at exit tells it. */
  if (observed && facts->step_seconds > 0 && last.choice.cost.ways[last.choice.next].possible) {
    facts->exposed_seconds = last.choice.cost.ways[last.choice.next].exposed;
    facts->step_seconds += facts->exposed_seconds;
  }
  if (!assumed && config->step != STEP_AUTO && !observed)
    facts->set_way = config_step_name(config->step);
}

/* Why nothing can move on this machine. */
static void add_machine(struct advice_facts *facts) {
  const struct tier_refusal refusal = tier_refused();
  if (!refusal.refused)
    return;
  facts->driver = refusal.driver;
  facts->wsl = on_wsl();
  facts->seccomp = refusal.forbidden && !facts->wsl;
}

/* Nothing was recognised. */
static void add_unknown(bool final, struct advice_facts *facts) {
  struct unknown_found found;
  if (unknown_found(&found)) {
    facts->unknown_kernel = found.name;
    facts->unknown_ranges = found.ranges;
    facts->unknown_bytes = found.bytes;
    facts->unknown_state_bytes = found.state_bytes;
  } else if (!final) {
    unknown_look_again();
  }
}

static size_t give(bool final, struct advice advice[ADVICE_MOST], uint64_t *state_bytes) {
  struct advice_facts facts = {0};
  char limited_by[sizeof report.budget_limited_by];
  const struct report_totals *t = &report.totals;
  add_costs(&facts);
  add_machine(&facts);
  if (!report_memory_device_now(&facts.device_used_bytes, &facts.device_bytes))
    facts.device_used_bytes = facts.device_bytes = 0;
  report_budget_now(&facts.budget_bytes, limited_by, sizeof limited_by);
  if (total(&t->moved_bytes_peak) && *limited_by) {
    facts.budget_limited_by = limited_by;
    facts.memlock_bytes = !strcmp(limited_by, "RLIMIT_MEMLOCK") ? facts.budget_bytes : 0;
  }
  facts.kept_bytes = total(&report.kept_bytes);
  const int kept = atomic_load_explicit(&report.kept, memory_order_relaxed);
  facts.drives_named = process_config()->nvme;
  facts.drives_full = kept == KEPT_FULL;
  facts.drives_decline = kept == KEPT_SHARED;
  /* The job's, as its launcher says: others that share the node keep state of their own. */
  const unsigned of_job = process_config()->ranks.local_ranks;
  facts.ranks = of_job ? of_job : ranks_sharers();
  uint64_t each;
  const unsigned replicas = node_replicas(&each);
  facts.replicated = replicas > 1;
  if (facts.replicated)
    facts.ranks = replicas;
  foreign_facts(&facts.foreach_bytes, &facts.foreign_name, &facts.foreign_bytes);
  facts.expandable_segments = settings.expandable_segments && !total(&t->moved_bytes_peak);
  facts.async_allocator = settings.async_allocator && !total(&t->moved_bytes_peak);
  facts.memory_fraction = settings.memory_fraction && total(&t->moved_bytes_peak);
  const bool none = !total(&t->steps) && total(&t->allocations_seen) &&
                    !total(&t->captured_state_bytes) && !facts.foreach_bytes && !facts.foreign_name;
  if (none)
    add_unknown(final, &facts);
  facts.no_optimizer =
      none && !facts.unknown_kernel && (final || clock_now_ns() - settings.began_ns > long_ns);
  *state_bytes = facts.state_bytes + facts.unknown_state_bytes;
  return advice_give(&facts, advice);
}
