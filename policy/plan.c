/* See plan.h: the arithmetic of a plan. */
#include "plan.h"
#include "nearest.h"
#include <stdio.h>
#include <string.h>

const struct plan_gpu plan_gpus[] = {
#define PROFILE(id, text, ...) {.name = #id, .words = (text), __VA_ARGS__},
#include "gpus.def"
#undef PROFILE
    {.name = NULL},
};

const struct plan_optimizer plan_optimizers[] = {
#define OPTIMIZER(name, p, g, s, states, master, other, prepared, stays, help) {#name, help},
#include "optimizers.def"
#undef OPTIMIZER
    {NULL, NULL},
};

enum { NAMES_MOST = 32 };
static const double flops_a_token = 6, utilisation = 0.5;
/* Slots of OFFLOAD_DEVICE_STAGING; the CPU step has four of at most 16 MiB in all, each two parts of floats (shim/ring.c, shim/staging.c). */
static const double stream_slots = 16, cpu_slots = 4, cpu_staging_most = 16 << 20;
static const double chunk_elements = 65536, chunks_a_launch = 320; /* PyTorch's lists */

const char *plan_shard_name(enum plan_shard shard) {
  static const char *const names[] = {"none", "zero1", "fsdp"};
  return names[shard];
}

/* ---- machines ---- */

static void list_gpus(char *text, size_t bytes) {
  size_t used = 0;
  for (const struct plan_gpu *gpu = plan_gpus; gpu->name && used < bytes; gpu++)
    used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", gpu->name);
}

const struct plan_gpu *plan_gpu_find(const char *name, unsigned gpus, char *problem,
                                     size_t problem_bytes) {
  const struct plan_gpu *found = NULL;
  char shared[64], known[256];
  size_t begins = 0;
  snprintf(shared, sizeof shared, "%s-%u", name, gpus);
  for (const struct plan_gpu *gpu = plan_gpus; gpu->name; gpu++)
    if (!strcmp(gpu->name, shared))
      return gpu;
  for (const struct plan_gpu *gpu = plan_gpus; gpu->name; gpu++)
    if (!strcmp(gpu->name, name))
      return gpu;
  for (const struct plan_gpu *gpu = plan_gpus; gpu->name && *name; gpu++)
    if (!strncmp(gpu->name, name, strlen(name))) {
      found = gpu;
      begins++;
    }
  if (begins == 1)
    return found;
  list_gpus(known, sizeof known);
  snprintf(problem, problem_bytes,
           "--gpu %.40s is %s: known are %s; for another, --rates FILE and --device-memory SIZE",
           name, begins ? "more than one machine" : "no known machine", known);
  return NULL;
}

void plan_gpu_rates(const struct plan_gpu *gpu, struct rates *rates) {
  const double giga = 1e9, micro = 1e-6;
  rates->up = gpu->up * giga;
  rates->down = gpu->down * giga;
  rates->up_both = gpu->up_both * giga;
  rates->down_both = gpu->down_both * giga;
  rates->kernel_read = gpu->sm_read * giga;
  rates->kernel_write = gpu->sm_write * giga;
  rates->device = gpu->hbm * giga;
  rates->dram = gpu->dram * giga;
  rates->launch = gpu->launch * micro;
  /* Of its CPU nothing is known but its memory. */
  rates->dram_thread = rates->cpu_elements = 0;
  rates->source = RATES_TOLD;
}

/* ---- optimizers ---- */

struct kind {
  const char *name, *stays;
  struct cost_family family;
  double other; /* bytes beside parameters */
};

static const struct {
  const char *name, *word;
  unsigned bytes;
} types[] = {{"fp32", "float32", 4},
             {"bf16", "bfloat16", 2},
             {"fp16", "float16", 2},
             {"fp64", "float64", 8}};
enum { TYPES = sizeof types / sizeof *types };

const char *plan_dtype_of(const char *word) {
  for (size_t i = 0; i < TYPES; i++)
    if (!strcmp(types[i].word, word))
      return types[i].name;
  return word;
}

static bool kind_of(const struct plan_request *request, struct kind *kind, char *problem,
                    size_t problem_bytes) {
  unsigned t = 0;
  for (size_t i = 0; i < TYPES; i++)
    if (!strcmp(types[i].name, request->dtype))
      t = types[i].bytes;
  if (!t) {
    snprintf(problem, problem_bytes, "--dtype %.40s is none of fp32, bf16, fp16, fp64",
             request->dtype);
    return false;
  }
  const unsigned o = t > 4 ? t : 4;
#define OPTIMIZER(called, p, g, s, states, master, beside, prepared, whose, help)                  \
  if (!strcmp(#called, request->optimizer)) {                                                      \
    *kind = (struct kind){#called, whose, cost_family_of(p, g, s, states, o, master, prepared),    \
                          beside};                                                                 \
    return true;                                                                                   \
  }
#include "optimizers.def"
#undef OPTIMIZER
  const char *names[NAMES_MOST];
  size_t count = 0;
  char known[512] = "";
  for (const struct plan_optimizer *each = plan_optimizers; each->name && count < NAMES_MOST;
       each++) {
    names[count++] = each->name;
    snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", count > 1 ? ", " : "",
             each->name);
  }
  const char *nearest = nearest_name(request->optimizer, names, count);
  snprintf(problem, problem_bytes, "--optimizer %.40s is not known%s%s: known are %s",
           request->optimizer, nearest ? ", the nearest is " : "", nearest ? nearest : "", known);
  return false;
}

/* ---- the plan ---- */

static double smaller(double a, double b) {
  return a < b ? a : b;
}

static void sum_up(const struct plan_request *request, struct plan_bytes *bytes) {
  const double used = bytes->parameters + bytes->gradients + bytes->state + bytes->staging;
  bytes->left = request->device_bytes > 0 ? request->device_bytes - used : 0;
  bytes->fits = bytes->left >= 0;
}

static void place(const struct plan_request *request, const struct kind *kind, struct plan *plan) {
  const double all = request->model.parameters, ranks = request->gpus;
  const double held = request->shard == PLAN_FSDP ? all / ranks : all;
  plan->elements = request->shard == PLAN_NONE ? all : all / ranks;
  const double state = plan->elements * kind->family.state;
  plan->without.parameters = held * (kind->family.parameter + kind->other);
  plan->without.gradients = held * kind->family.gradient;
  plan->without.state = state;
  plan->with = plan->without;
  if (plan->moves) {
    plan->host = request->host_bytes > 0 ? smaller(state, request->host_bytes / ranks) : state;
    plan->drives = request->drives ? state - plan->host : 0;
    plan->with.state = state - plan->host - plan->drives;
    plan->with.staging = smaller(request->staging_bytes, plan->host + plan->drives);
  }
  sum_up(request, &plan->without);
  sum_up(request, &plan->with);
}

/* Elements of a slot, in whole chunks. */
static double cpu_piece(double staging_bytes) {
  const double part = smaller(staging_bytes, cpu_staging_most) / cpu_slots / 2;
  const double chunks = (part - 64) / 4 / chunk_elements;
  return (chunks > 1 ? (double)(uint64_t)chunks : 1) * chunk_elements;
}

static void foretell(const struct plan_request *request, const struct kind *kind,
                     struct plan *plan) {
  struct cost_input *input = &plan->input;
  *input = (struct cost_input){.rates = request->rates,
                               .family = kind->family,
                               .elements = plan->elements,
                               .on_host = plan->host / kind->family.state,
                               .on_drive = plan->drives / kind->family.state,
                               .staged = request->staging_bytes / kind->family.state,
                               .threads = request->threads,
                               .sharers = request->gpus};
  input->cpu_piece = cpu_piece(request->staging_bytes);
  input->stream_piece = request->staging_bytes / stream_slots / kind->family.state;
  input->launches = (unsigned)(plan->elements / chunk_elements / chunks_a_launch) + 1;
  if (request->tokens > 0 && request->bf16_flops > 0)
    plan->compute = flops_a_token * request->model.active * request->tokens /
                    (utilisation * request->bf16_flops);
  input->compute = plan->compute;
  cost_estimate(input, &plan->cost);
}

static void advise(const struct plan_request *request, struct plan *plan) {
  struct advice_facts facts = {
      .input = plan->input,
      .cost = plan->cost,
      .tokens = request->tokens,
      .target = request->target,
      .device_bytes = (uint64_t)request->device_bytes,
      .state_bytes = (uint64_t)plan->without.state,
      .parameter_bytes = (uint64_t)plan->without.parameters,
      .gradient_bytes = (uint64_t)plan->without.gradients,
      .ranks = request->gpus,
      .replicated = request->shard == PLAN_NONE && request->gpus > 1,
  };
  if (!plan->moves && !strcmp(request->optimizer, "foreach"))
    facts.foreach_bytes = facts.state_bytes;
  else if (!plan->moves) {
    facts.foreign_name = plan->not_moved;
    facts.foreign_bytes = facts.state_bytes;
  }
  if (plan->moves && request->host_bytes > 0) {
    facts.budget_bytes = (uint64_t)(request->host_bytes / request->gpus);
    facts.budget_limited_by = "--host-memory";
    facts.kept_bytes = (uint64_t)plan->with.state;
  }
  if (plan->compute > 0)
    facts.step_seconds = plan->compute + plan->cost.ways[COST_STAY].seconds;
  plan->advice_count = advice_give(&facts, plan->advice);
}

bool plan_make(const struct plan_request *request, struct plan *plan, char *problem,
               size_t problem_bytes) {
  struct kind kind;
  if (!kind_of(request, &kind, problem, problem_bytes))
    return false;
  *plan = (struct plan){.moves = !kind.stays, .not_moved = kind.stays};
  place(request, &kind, plan);
  foretell(request, &kind, plan);
  advise(request, plan);
  return true;
}

double plan_share(const struct plan *plan, enum cost_way way) {
  const double step = plan->compute + plan->cost.ways[COST_STAY].seconds;
  return plan->compute > 0 && plan->cost.ways[way].possible ? plan->cost.ways[way].exposed / step
                                                            : -1;
}
