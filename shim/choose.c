/* See choose.h. A function's elements of a step are known when the next one begins; so the cost of a step is that of the elements that
   the last one named. */
#include "choose.h"
#include "../policy/decide.h"
#include "../policy/node.h"
#include "../policy/ranks.h"
#include "../policy/report.h"
#include "../policy/report_policy.h"
#include "../policy/sort.h"
#include "measure.h"
#include "meter.h"
#include "observe.h"
#include "pace.h"
#include "process.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORETOLD = 16, COMPUTE_STEPS = 8 };

struct counts {
  uint64_t elements, on_host, on_drive;
  unsigned launches;
};

/* What was foretold of a step, until it is measured. */
struct foretold {
  uint64_t step;     /* 0: none */
  enum cost_way way; /* COST_WAYS: several */
  double seconds, stay_seconds;
};

struct choice {
  struct choice *next;
  const struct function *function;
  CUcontext context; /* NULL: it is gone */
  int device;
  unsigned row;  /* of the report */
  uint64_t step; /* of the context: the present one */
  unsigned took; /* ways of its launches, a bit each */
  struct counts present, last;
  struct decide any, without_cpu;
  bool fell_back;      /* the last step was for the CPU, and some of it or all went another way */
  unsigned generation; /* of the rates */
  bool disagreed;      /* said so */
  bool known;          /* input and cost are */
  struct rates rates;
  struct cost_input input;
  struct cost cost;
  struct choice_ways ways;
  enum cost_way way; /* of the last step */
  struct foretold foretold[FORETOLD];
};

static struct choice *choices;
static unsigned choice_count;

/* Of the last measured steps of a context: what isn't the optimizer's. */
static struct {
  CUcontext context;
  double seconds[COMPUTE_STEPS];
  unsigned count;
} compute; /* of the context that was measured last: a process of several mostly has the same on each */

/* Of a device whose rates disagree with its steps, to be asked for without the lock; -1: none. */
static _Atomic int disagreeing = -1;

void choose_prepare(void) {
  if (atomic_load_explicit(&disagreeing, memory_order_relaxed) < 0)
    return;
  const int device = atomic_exchange_explicit(&disagreeing, -1, memory_order_relaxed);
  if (device >= 0)
    measure_refresh(device);
}

/* ---- what a step costs ---- */

static struct choice *choice_of(const struct plan *plan, CUcontext context) {
  struct choice **end = &choices;
  for (; *end; end = &(*end)->next)
    if ((*end)->function == plan->function && (*end)->context == context)
      return *end;
  struct choice *choice = calloc(1, sizeof *choice);
  if (!choice)
    return NULL;
  CUdevice device = 0;
  (void)driver.cuCtxGetDevice(&device);
  choice->function = plan->function;
  choice->context = context;
  choice->device = device;
  choice->row = choice_count++;
  *end = choice;
  return choice;
}

static struct cost_family family_cost(const struct plan *plan) {
  const struct family *family = &plan->function->family;
  const unsigned opmath = (unsigned)adam_type_bytes(adam_type_opmath(family->type));
  const bool decayed = family->mode == ADAM_L2 && plan->arguments.weight_decay != 0;
  return cost_family_of(family->parameter_bytes, family->parameter_bytes, family->state_bytes,
                        family_states(family), opmath, false,
                        decayed || plan->arguments.grad_scale != NULL);
}

/* Slots of staging as they are, or are going to be where memory is to be had. */
static void stream_shape(const struct plan *plan, unsigned *slots, size_t *slot_bytes) {
  const struct family *family = &plan->function->family;
  const unsigned states = family_states(family);
  const size_t least = staging_bytes((size_t)states * CHUNK_ELEMENTS * family->state_bytes, states);
  if (plan->ring && plan->ring->staging.block) {
    *slots = plan->ring->staging.slot_count;
    *slot_bytes = plan->ring->staging.slot_bytes;
  } else if (!staging_shape(process_config()->device_staging.bytes, least, slots, slot_bytes)) {
    *slots = 0;
    *slot_bytes = 0;
  }
}

/* Pieces, and what is copied ahead, for which two slots are not enough (early.h). */
static void fill_staging(struct cost_input *input, const struct plan *plan) {
  const struct family *family = &plan->function->family;
  const size_t chunk = CHUNK_ELEMENTS * family_states(family) * family->state_bytes;
  const enum adam_type opmath = adam_type_opmath(family->type);
  unsigned slots;
  size_t slot_bytes;
  stream_shape(plan, &slots, &slot_bytes);
  const size_t chunks = slot_bytes / chunk;
  input->stream_piece = (double)(chunks * CHUNK_ELEMENTS);
  input->staged = slots < 4 ? 0 : slots * input->stream_piece;
  input->cpu_piece =
      (double)(plan->ring && plan->ring->staged ? ring_piece_elements(plan->ring, opmath)
                                                : ring_piece_asked(process_config(), opmath));
}

static unsigned step_threads(const struct ring *ring) {
  return ring && ring->worker ? worker_threads(ring->worker) : node_threads(process_config(), 1);
}

/* Forward and backward of the steps that were measured; 0 without any. */
static double median_compute(void) {
  double sorted[COMPUTE_STEPS];
  memcpy(sorted, compute.seconds, sizeof sorted);
  return sort_median(sorted, compute.count < COMPUTE_STEPS ? compute.count : COMPUTE_STEPS);
}

/* What was measured against other rates says nothing of these. */
static void take_rates(struct choice *choice) {
  const unsigned generation = measure_generation();
  struct rates now;
  if (choice->generation == generation && choice->rates.source != RATES_ASSUMED)
    return;
  choice->generation = generation;
  measure_rates(choice->device, &now);
  if (!memcmp(&now, &choice->rates, sizeof now))
    return;
  choice->rates = now;
  decide_rates_changed(&choice->any);
  decide_rates_changed(&choice->without_cpu);
}

/* State moves between steps: then the launch at hand says what share of the last step's elements it will be. */
static void fill_input(struct choice *choice, const struct plan *plan) {
  const struct counts *last = &choice->last;
  struct cost_input *input = &choice->input;
  double on_host = (double)last->on_host, on_drive = (double)last->on_drive;
  const double named = (double)(plan->ours_elements + plan->rest_elements);
  if (on_host + on_drive <= 0 && named > 0) {
    const double share = (double)last->elements / named;
    on_host = (double)plan->resident_elements * share;
    on_drive = (double)(plan->ours_elements - plan->resident_elements) * share;
  }
  if (process_config()->mode == MODE_OBSERVE)
    on_host = (double)last->elements * observe_share();
  *input = (struct cost_input){
      .rates = choice->rates,
      .family = family_cost(plan),
      .elements = (double)last->elements,
      .on_host = on_host,
      .on_drive = on_drive,
      .threads = step_threads(plan->ring),
      .sharers = ranks_sharers(),
      .launches = last->launches,
      .compute = median_compute(),
  };
  fill_staging(input, plan);
  choice->known = last->elements > 0 && on_host + on_drive > 0;
  if (choice->known)
    cost_estimate(input, &choice->cost);
}

/* ---- what steps took ---- */

/* The one way; COST_WAYS for several. Launches of which nothing was ours went none. */
static enum cost_way way_of(unsigned took) {
  if (took & ((1u << COST_STAY) - 1))
    took &= ~(1u << COST_STAY);
  for (enum cost_way way = COST_CPU; way < COST_WAYS; way++)
    if (took == 1u << way)
      return way;
  return COST_WAYS;
}

/* Kept for when it is measured. */
static void end_step(struct choice *choice) {
  const enum cost_way way = way_of(choice->took);
  struct foretold *entry = &choice->foretold[choice->step % FORETOLD];
  *entry = (struct foretold){.step = choice->step, .way = way};
  if (choice->known) {
    entry->stay_seconds = choice->cost.ways[COST_STAY].seconds;
    if (way < COST_WAYS && choice->cost.ways[way].possible)
      entry->seconds = decide_foretold(&choice->cost, way);
  }
  choice->fell_back = choice->ways.first == COST_CPU && way != COST_CPU && way != COST_STAY;
  choice->way = way < COST_WAYS ? way : choice->way;
  choice->last = choice->present;
  choice->present = (struct counts){0};
  choice->took = 0;
}

/* Long enough that it says something of the way that it went. */
static bool tells(const struct choice *choice) {
  return choice->input.on_host + choice->input.on_drive >=
         (double)process_config()->test_choose_from * (1 << 20);
}

static struct foretold *foretold_of(struct choice *choice, CUcontext context, uint64_t step) {
  struct foretold *entry = &choice->foretold[step % FORETOLD];
  return choice->context == context && step && entry->step == step ? entry : NULL;
}

/* A step of several functions: each has taken its share of what was foretold. */
static void note_measured(CUcontext context, const struct meter_step *measured) {
  struct report_step step = {.step = measured->step,
                             .step_ns = measured->step_ns,
                             .optimizer_ns = measured->optimizer_ns,
                             .cpu_ns = measured->cpu_ns,
                             .link_down_bytes = measured->link_down_bytes,
                             .link_up_bytes = measured->link_up_bytes};
  const double seconds = (double)measured->optimizer_ns / 1e9;
  double foretold = 0, stay = 0;
  unsigned ways = 0;
  bool all = true;
  for (struct choice *choice = choices; choice; choice = choice->next) {
    const struct foretold *entry = foretold_of(choice, context, measured->step);
    if (!entry)
      continue;
    step.device = choice->device;
    foretold += entry->seconds;
    stay += entry->stay_seconds;
    all = all && entry->seconds > 0;
    ways |= 1u << entry->way;
  }
  const enum cost_way way = way_of(ways);
  step.way = way < COST_WAYS ? cost_way_name(way) : "mixed";
  step.stay_ns = (uint64_t)(stay * 1e9);
  step.foretold_ns = all ? (uint64_t)(foretold * 1e9) : 0;
  report_step(&step);
  if (seconds <= 0 || measured->step_ns < measured->optimizer_ns)
    return;
  if (compute.context != context)
    compute.count = 0;
  compute.context = context;
  compute.seconds[compute.count++ % COMPUTE_STEPS] = (double)measured->step_ns / 1e9 - seconds;
  for (struct choice *choice = choices; choice && all; choice = choice->next) {
    const struct foretold *entry = foretold_of(choice, context, measured->step);
    if (!entry || !tells(choice))
      continue;
    const double share = seconds * entry->seconds / foretold;
    decide_measured(&choice->any, entry->way, entry->seconds, share);
    decide_measured(&choice->without_cpu, entry->way, entry->seconds, share);
    if (decide_disagrees(&choice->any) && !choice->disagreed) {
      choice->disagreed = true;
      atomic_store_explicit(&disagreeing, choice->device, memory_order_relaxed);
    }
  }
}

/* ---- what the report says ---- */

static void tell(const struct choice *choice) {
  static struct report_policy told; /* large; under the enqueue lock */
  const struct decide *decide = choice->fell_back ? &choice->without_cpu : &choice->any;
  const enum config_step asked = process_config()->step;
  static const char *const sources[] = {
      [RATES_ASSUMED] = "assumed", [RATES_TOLD] = "told", [RATES_MEASURED] = "measured"};
  told = (struct report_policy){.device = choice->device,
                                .way = cost_way_name(choice->way),
                                .asked = config_step_name(asked),
                                .rates = sources[choice->rates.source],
                                .elements = choice->last.elements,
                                .elements_host = choice->last.on_host,
                                .elements_drive = choice->last.on_drive,
                                .change_count = decide->switch_count};
  snprintf(told.function, sizeof told.function, "%s", choice->function->family.name);
  if (asked != STEP_AUTO && process_config()->mode != MODE_OBSERVE)
    snprintf(told.why, sizeof told.why, "OFFLOAD_STEP=%s", config_step_name(asked));
  else if (choice->fell_back)
    snprintf(told.why, sizeof told.why, "not by cpu, the function's row says why; %.200s",
             decide->why);
  else
    snprintf(told.why, sizeof told.why, "%s", decide->why);
  for (enum cost_way way = COST_CPU; way < COST_WAYS; way++) {
    const struct cost_of_way *cost = &choice->cost.ways[way];
    told.ways[way] = (struct report_policy_way){.way = cost_way_name(way),
                                                .bound = cost_resource_name(cost->bound),
                                                .possible = choice->known && cost->possible};
    if (told.ways[way].possible) {
      told.ways[way].exposed_ns = (uint64_t)(cost->exposed * 1e9);
      told.ways[way].hidden_ns = (uint64_t)(cost->hidden * 1e9);
    }
  }
  if (choice->known && choice->way < COST_STAY && choice->cost.ways[choice->way].possible) {
    const double seconds = decide_foretold(&choice->cost, choice->way);
    told.foretold_ns = (uint64_t)(seconds * 1e9);
    told.measured_ns = (uint64_t)(seconds * decide_ratio(&choice->any, choice->way) * 1e9);
    const enum cost_way best = choice->cost.best;
    char here[DECIDE_TIME_BYTES], there[DECIDE_TIME_BYTES];
    if (asked != STEP_AUTO && choice->rates.source != RATES_ASSUMED && best < COST_STAY &&
        decide_expected(&choice->any, &choice->cost, best) * 100 <
            decide_expected(&choice->any, &choice->cost, choice->way) * (100 - DECIDE_GAIN_PERCENT))
      snprintf(told.advice, sizeof told.advice,
               "OFFLOAD_STEP=%s: a step by %s is foretold to take %s on the program's stream, by "
               "%s %s; OFFLOAD_STEP=auto takes what costs least",
               config_step_name(asked), cost_way_name(choice->way), decide_time(seconds, here),
               cost_way_name(best), decide_time(decide_foretold(&choice->cost, best), there));
  }
  const unsigned kept = decide->switch_count < DECIDE_SWITCHES ? (unsigned)decide->switch_count
                                                               : (unsigned)DECIDE_SWITCHES;
  told.changes_kept = kept;
  for (unsigned i = 0; i < kept; i++) {
    const struct decide_switch *entry =
        &decide->switches[(decide->switch_count - kept + i) % DECIDE_SWITCHES];
    told.changes[i] = (struct report_policy_change){
        .step = entry->step, .from = cost_way_name(entry->from), .to = cost_way_name(entry->to)};
    snprintf(told.changes[i].why, sizeof told.changes[i].why, "%s", entry->why);
  }
  report_policy(choice->row, &told);
}

/* ---- the choice ---- */

/* Each n-th word of OFFLOAD_TEST_WAYS is the n-th step's way; false without any. */
static bool told_way(uint64_t step, enum cost_way *way) {
  const char *words = process_config()->test_ways;
  unsigned count = 1;
  if (!words || !*words)
    return false;
  for (const char *at = words; *at; at++)
    count += *at == ',';
  for (uint64_t skip = step % count; skip; skip--)
    words = strchr(words, ',') + 1;
  for (*way = COST_CPU; *way < COST_STAY; ++*way) {
    const size_t length = strlen(cost_way_name(*way));
    if (!strncmp(words, cost_way_name(*way), length) && (words[length] == ',' || !words[length]))
      return true;
  }
  return false;
}

static const char *undecided(const struct choice *choice) {
  if (!choice->known)
    return "no step with state off the device was seen whole yet";
  if (choice->rates.source == RATES_ASSUMED)
    return "this machine's rates were neither measured nor told";
  if (!choice->cost.ways[COST_CPU].possible && !choice->cost.ways[COST_STREAM].possible)
    return "the rates lack the link's or the drives'";
  if (!tells(choice))
    return "steps of so few elements take too little time to choose by";
  return NULL;
}

static void decide_ways(struct choice *choice) {
  enum cost_way way;
  static struct cost unknown; /* all is possible, and nothing known */
  for (enum cost_way i = COST_CPU; i < COST_STAY; i++)
    unknown.ways[i].possible = true;
  const char *why = undecided(choice);
  const bool usable = choice->known && (choice->cost.ways[COST_CPU].possible ||
                                        choice->cost.ways[COST_STREAM].possible);
  const struct cost *cost = usable ? &choice->cost : &unknown;
  if (told_way(choice->step, &way)) {
    decide_force(&choice->any, way, choice->step, "OFFLOAD_TEST_WAYS");
    choice->ways = (struct choice_ways){.first = way, .second = COST_STREAM};
    return;
  }
  struct cost no_cpu = *cost;
  no_cpu.ways[COST_CPU].possible = false;
  choice->ways.first = decide_step(&choice->any, cost, choice->step, why);
  /* While the CPU does it, the second choice is only what is foretold. */
  choice->ways.second = decide_step(&choice->without_cpu, &no_cpu, choice->step, why);
}

/* The context's step is another: the last one's ends, for all functions, and older ones may have been measured. */
static void begin_step(CUcontext context, uint64_t step) {
  struct meter_step measured;
  for (struct choice *choice = choices; choice; choice = choice->next)
    if (choice->context == context && choice->took && choice->step != step) {
      end_step(choice);
      tell(choice);
    }
  while (meter_read(context, &measured))
    note_measured(context, &measured);
}

struct choice_ways choose_ways(struct plan *plan) {
  static const struct choice_ways usual = {.first = COST_CPU, .second = COST_STREAM};
  const struct pace *pace = pace_current();
  struct choice *choice = pace && pace->step ? choice_of(plan, pace->context) : NULL;
  plan->choice = choice;
  if (!choice)
    return usual;
  if (choice->step != pace->step) {
    begin_step(pace->context, pace->step);
    choice->step = pace->step;
    take_rates(choice);
    fill_input(choice, plan);
    decide_ways(choice);
  }
  meter_launch(pace->context, pace->step, plan->stream);
  switch (process_config()->step) {
  case STEP_CPU:
    return usual;
  case STEP_STREAM:
    return (struct choice_ways){.first = COST_STREAM, .second = COST_STREAM};
  case STEP_DIRECT:
    return (struct choice_ways){.first = COST_DIRECT, .second = COST_DIRECT};
  default:
    return choice->ways;
  }
}

void choose_took(const struct plan *plan, enum cost_way way) {
  struct choice *choice = plan->choice;
  if (!choice)
    return;
  meter_launched(choice->context, plan->stream);
  choice->took |= 1u << way;
  choice->present.launches++;
  choice->present.elements += plan->ours_elements + plan->rest_elements;
  choice->present.on_host += plan->resident_elements;
  choice->present.on_drive += plan->ours_elements - plan->resident_elements;
}

bool choose_facts(struct choice_facts *facts) {
  const struct choice *most = NULL;
  for (const struct choice *choice = choices; choice; choice = choice->next)
    if (choice->context && choice->known &&
        (!most || choice->input.on_host + choice->input.on_drive >
                      most->input.on_host + most->input.on_drive))
      most = choice;
  if (!most)
    return false;
  *facts = (struct choice_facts){
      .input = most->input,
      .cost = most->cost,
      .way = most->way,
      .next = most->cost.ways[most->ways.first].possible ? most->ways.first : most->ways.second};
  return true;
}

void choose_forget_context(CUcontext context, bool gone) {
  for (struct choice *choice = choices; choice && context; choice = choice->next)
    if (choice->context == context)
      choice->context = NULL;
  meter_forget(context, gone);
  if (compute.context == context)
    compute.count = 0;
}

void choose_finish(void) {
  for (struct choice *choice = choices; choice; choice = choice->next)
    if (choice->took) {
      end_step(choice);
      tell(choice);
    }
}
