/* Advice: which sentence applies to what is known of a job, and its numbers. One function a kind of advice.def, called in that order.
   Pure. A sentence is given only for facts that are known, and always names what to do. */
#include "advice.h"
#include "words.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Most that a job is asked to accumulate before fewer trainable parameters are the better advice. */
static const double accumulate_most = 16;
/* Other memory than parameters, gradients and state, of all in use, from which on activations matter more. */
static const double activations_share = 0.6;
/* Of the device that parameters and gradients may fill, so that a step has room. */
static const double device_share = 0.8;
/* A way must be so much cheaper to be worth a setting. */
static const double way_gain = 0.9;
/* Of the parameters, as LoRA usually trains. */
static const double lora_share = 0.01;
enum { DRIVER_LEAST = 12040 };

struct given {
  struct advice *advice;
  size_t count;
};

static void __attribute__((format(printf, 3, 4)))
give(struct given *given, enum advice_kind kind, const char *format, ...) {
  if (given->count == ADVICE_MOST)
    return;
  struct advice *advice = &given->advice[given->count++];
  va_list arguments;
  advice->kind = kind;
  va_start(arguments, format);
  vsnprintf(advice->text, sizeof advice->text, format, arguments);
  va_end(arguments);
}

const char *advice_kind_name(enum advice_kind kind) {
  static const char *const names[ADVICE_KINDS] = {
#define ADVICE(name, when) #name,
#include "advice.def"
#undef ADVICE
  };
  return kind < ADVICE_KINDS ? names[kind] : "none";
}

/* The way whose cost the job has: what is set, where that is possible, else the best. */
static enum cost_way way_of(const struct advice_facts *facts) {
  for (int way = 0; facts->set_way && way < COST_STAY; way++)
    if (!strcmp(facts->set_way, cost_way_name((enum cost_way)way)) &&
        facts->cost.ways[way].possible)
      return (enum cost_way)way;
  return facts->cost.best;
}

static double target_of(const struct advice_facts *facts) {
  return facts->target > 0 ? facts->target : ADVICE_TARGET;
}

static const struct cost_of_way *cost_of(const struct advice_facts *facts) {
  return &facts->cost.ways[way_of(facts)];
}

static bool exposed_told(const struct advice_facts *facts) {
  return facts->measured || facts->exposed_seconds > 0;
}

/* What offload adds to a step: as the user is told it elsewhere, else as foretold. */
static double exposed_of(const struct advice_facts *facts) {
  return exposed_told(facts) ? facts->exposed_seconds : cost_of(facts)->exposed;
}

/* Seconds that a step with more tokens makes longer: forward and backward. 0: not known. What is told of a whole step is divided so that
   its parts add up to it. */
static double compute_of(const struct advice_facts *facts) {
  if (facts->input.compute > 0 && !(exposed_told(facts) && facts->step_seconds > 0))
    return facts->input.compute;
  const double rest = facts->step_seconds - exposed_of(facts) - facts->cost.ways[COST_STAY].seconds;
  return facts->step_seconds > 0 && rest > 0 ? rest : 0;
}

/* The step's length with `times` as many tokens. */
static double step_of(const struct advice_facts *facts, double times) {
  return times * compute_of(facts) + facts->cost.ways[COST_STAY].seconds + exposed_of(facts);
}

/* Whether offload takes a larger share of a step than it may, and how many times the tokens would do; 0: it doesn't, or isn't known. */
static double times_needed(const struct advice_facts *facts) {
  const double exposed = exposed_of(facts), compute = compute_of(facts);
  if (facts->input.elements <= 0 || compute <= 0 || exposed <= target_of(facts) * step_of(facts, 1))
    return 0;
  const double times =
      (exposed / target_of(facts) - exposed - facts->cost.ways[COST_STAY].seconds) / compute;
  const double most = 1e9;
  if (!(times < most))
    return most;
  const double whole = (double)(uint64_t)times;
  return times > whole ? whole + 1 : whole;
}

static void give_no_optimizer(const struct advice_facts *facts, struct given *given) {
  if (facts->no_optimizer)
    give(given, ADVICE_no_optimizer,
         "no step of an optimizer that is known was seen, so nothing could move: create it as "
         "torch.optim.AdamW(..., fused=True) or Adam(..., fused=True) of PyTorch 2.0 or later, "
         "with the parameters on the GPU");
}

static void give_fused(const struct advice_facts *facts, struct given *given) {
  char state[WORDS_BYTES], share[WORDS_BYTES];
  if (!facts->foreach_bytes)
    return;
  words_bytes((double)facts->foreach_bytes, state);
  if (facts->device_bytes)
    give(given, ADVICE_fused,
         "PyTorch's foreach Adam keeps %s of state on the device, %s of it: with fused=True in "
         "the optimizer's arguments it can move",
         state, words_share((double)facts->foreach_bytes / (double)facts->device_bytes, share));
  else
    give(given, ADVICE_fused,
         "PyTorch's foreach Adam keeps %s of state on the device: with fused=True in the "
         "optimizer's arguments it can move",
         state);
}

static void give_foreign(const struct advice_facts *facts, struct given *given) {
  char state[WORDS_BYTES];
  if (facts->foreign_name && facts->foreign_bytes)
    give(given, ADVICE_foreign,
         "%.100s is not taken over: its %s of state stay on the device; "
         "torch.optim.AdamW(..., fused=True) in its place would have its own moved",
         facts->foreign_name, words_bytes((double)facts->foreign_bytes, state));
  else if (facts->foreign_name)
    give(given, ADVICE_foreign,
         "%.100s is not taken over: its state stays on the device; torch.optim.AdamW(..., "
         "fused=True) in its place would have its own moved",
         facts->foreign_name);
}

static void give_unknown(const struct advice_facts *facts, struct given *given) {
  char bytes[WORDS_BYTES], state[WORDS_BYTES];
  if (facts->unknown_kernel && facts->unknown_state_bytes)
    give(given, ADVICE_unknown,
         "no known optimizer was seen; the kernel %.80s uses %zu ranges of one size, %s a step, %s "
         "of them alone: it looks like an optimizer that is not known, whose state stays on the "
         "device; torch.optim.AdamW(..., fused=True) would have its own moved; please report the "
         "kernel's name",
         facts->unknown_kernel, facts->unknown_ranges,
         words_bytes((double)facts->unknown_bytes, bytes),
         words_bytes((double)facts->unknown_state_bytes, state));
}

static void give_allocator(const struct advice_facts *facts, struct given *given) {
  if (facts->expandable_segments)
    give(given, ADVICE_allocator,
         "with expandable_segments:True PyTorch maps memory by itself, and it stays where it is: "
         "take that out of PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF");
  if (facts->async_allocator)
    give(given, ADVICE_allocator,
         "memory of the driver's pools (backend:cudaMallocAsync) stays where it is: take that "
         "out of PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF");
  if (facts->memory_fraction)
    give(given, ADVICE_allocator,
         "PyTorch's own limit (set_per_process_memory_fraction) counts moved state as if it were "
         "on the device: raise it by what moves, or leave it out");
}

static void give_driver(const struct advice_facts *facts, struct given *given) {
  if (facts->driver > 0 && facts->driver < DRIVER_LEAST)
    give(given, ADVICE_driver,
         "the driver offers CUDA %d.%d; memory moves from 12.4 (driver 550.54) on: update the "
         "driver",
         facts->driver / 1000, facts->driver % 1000 / 10);
  if (facts->wsl)
    give(given, ADVICE_driver,
         "WSL2's driver has no host memory that keeps a device address: nothing moves; run on "
         "Linux itself");
  if (facts->seccomp)
    give(given, ADVICE_driver,
         "the container's seccomp profile forbids choosing a NUMA node (set_mempolicy, mbind): "
         "start it with --cap-add SYS_NICE (Docker) or capabilities: add: [SYS_NICE] "
         "(Kubernetes)");
}

static void give_memlock(const struct advice_facts *facts, struct given *given) {
  char limit[WORDS_BYTES];
  if (facts->memlock_bytes)
    give(given, ADVICE_memlock,
         "no more than %s may be locked (ulimit -l): raise it by ulimit -l unlimited, Docker's "
         "--ulimit memlock=-1, or LimitMEMLOCK=infinity of the batch system's service",
         words_bytes((double)facts->memlock_bytes, limit));
}

static void give_activations(const struct advice_facts *facts, struct given *given) {
  char other[WORDS_BYTES], used[WORDS_BYTES], state[WORDS_BYTES];
  const uint64_t known = facts->parameter_bytes + facts->gradient_bytes + facts->state_bytes;
  if (!facts->parameter_bytes || facts->device_used_bytes <= known)
    return;
  const uint64_t rest = facts->device_used_bytes - known;
  if ((double)rest > activations_share * (double)facts->device_used_bytes)
    give(given, ADVICE_activations,
         "activations and the rest are %s of the %s in use on the device, optimizer state %s: "
         "activation checkpointing (torch.utils.checkpoint) or a smaller micro-batch frees more "
         "than moving state does",
         words_bytes((double)rest, other), words_bytes((double)facts->device_used_bytes, used),
         words_bytes((double)facts->state_bytes, state));
}

static void give_accumulate(const struct advice_facts *facts, struct given *given) {
  char exposed[WORDS_BYTES], now[WORDS_BYTES], then[WORDS_BYTES], target[WORDS_BYTES];
  char tokens[2 * WORDS_BYTES + 16] = "", few[WORDS_BYTES], many[WORDS_BYTES];
  const double times = times_needed(facts), cost = exposed_of(facts);
  if (times <= 0)
    return;
  if (facts->tokens > 0 && facts->tokens * times < 1e15)
    snprintf(tokens, sizeof tokens, " (%s for %s)",
             words_count((uint64_t)(facts->tokens * times), many),
             words_count((uint64_t)facts->tokens, few));
  give(given, ADVICE_accumulate,
       "offload %s %s of a step, %s; a target of %s needs %.0f times the tokens a step%s: "
       "accumulate %.0f micro-batches where there is one now, and it takes %s",
       facts->measured ? "takes" : "is foretold to take", words_seconds(cost, exposed),
       words_share(cost / step_of(facts, 1), now), words_share(target_of(facts), target), times,
       tokens, times, words_share(cost / step_of(facts, times), then));
}

static void give_lora(const struct advice_facts *facts, struct given *given) {
  char now[WORDS_BYTES], then[WORDS_BYTES];
  const uint64_t all = facts->gradient_bytes + facts->state_bytes;
  const bool full = facts->device_bytes && facts->parameter_bytes + all > facts->device_bytes;
  if (all && (times_needed(facts) > accumulate_most ||
              (full && facts->parameter_bytes < facts->device_bytes)))
    give(given, ADVICE_lora,
         "if training %.0f %% of the parameters is enough (LoRA, adapters), gradients and state "
         "are %s and not %s, and need not move",
         lora_share * 100, words_bytes(lora_share * (double)all, then),
         words_bytes((double)all, now));
}

static void give_shard(const struct advice_facts *facts, struct given *given) {
  char need[WORDS_BYTES], device[WORDS_BYTES], each[WORDS_BYTES];
  const double fixed = (double)facts->parameter_bytes + (double)facts->gradient_bytes;
  if (facts->device_bytes && fixed > (double)facts->device_bytes) {
    const double room = device_share * (double)facts->device_bytes;
    const unsigned long gpus = (unsigned long)(fixed / room) + 1;
    give(given, ADVICE_shard,
         "parameters and gradients alone are %s, the device has %s: moving state can't make "
         "them fit; FSDP or ZeRO-3 over %lu GPUs leaves %s of them on each",
         words_bytes(fixed, need), words_bytes((double)facts->device_bytes, device), gpus,
         words_bytes(fixed / (double)gpus, each));
  }
  if (facts->replicated && facts->ranks > 1 && facts->state_bytes)
    give(given, ADVICE_shard,
         "each of %u ranks keeps and steps the same %s of state, %s in all: ZeRO-1 "
         "(ZeroRedundancyOptimizer) or FSDP leaves %s to each, and divides the step's cost by %u",
         facts->ranks, words_bytes((double)facts->state_bytes, need),
         words_bytes((double)facts->state_bytes * facts->ranks, device),
         words_bytes((double)facts->state_bytes / facts->ranks, each), facts->ranks);
}

static void give_host(const struct advice_facts *facts, struct given *given) {
  char budget[WORDS_BYTES], left[WORDS_BYTES];
  if (!facts->budget_limited_by || !facts->kept_bytes)
    return;
  const char *remedy = "add host memory, run fewer jobs beside this one";
  if (!strcmp(facts->budget_limited_by, "OFFLOAD_HOST_MEMORY"))
    remedy = "raise OFFLOAD_HOST_MEMORY";
  else if (strstr(facts->budget_limited_by, "cgroup"))
    remedy = "raise the job's memory limit (Docker --memory, Slurm --mem, Kubernetes "
             "limits.memory)";
  else if (!strcmp(facts->budget_limited_by, "RLIMIT_MEMLOCK"))
    remedy = "raise the locked-memory limit (ulimit -l unlimited)";
  const char *drives = "", *or_drives = "";
  if (!facts->drives_named)
    or_drives = ", or name directories on local drives in OFFLOAD_NVME";
  else if (facts->drives_full)
    or_drives = ", or make room on the drives (OFFLOAD_NVME_LIMIT, or what is free there)";
  else if (facts->drives_decline)
    drives = ", as drives take no piece that is also used by others, or whose partners stay";
  give(given, ADVICE_host,
       "host memory for state is %s, by %.64s, so %s of it stays on the device%s: %s%s",
       words_bytes((double)facts->budget_bytes, budget), facts->budget_limited_by,
       words_bytes((double)facts->kept_bytes, left), drives, remedy, or_drives);
}

static void give_way(const struct advice_facts *facts, struct given *given) {
  char now[WORDS_BYTES], then[WORDS_BYTES];
  const enum cost_way set = way_of(facts), best = facts->cost.best;
  if (!facts->set_way || facts->input.elements <= 0 || best >= COST_STAY || set == best)
    return;
  const double cost = facts->cost.ways[set].exposed, least = facts->cost.ways[best].exposed;
  if (!strcmp(facts->set_way, cost_way_name(set)) && least < way_gain * cost)
    give(given, ADVICE_way,
         "OFFLOAD_STEP=%s makes a step %s longer, bound by %s; %s would make it %s longer: set "
         "OFFLOAD_STEP=%s, or leave it unset",
         facts->set_way, words_seconds(cost, now), cost_resource_name(facts->cost.ways[set].bound),
         cost_way_name(best), words_seconds(least, then), cost_way_name(best));
}

size_t advice_give(const struct advice_facts *facts, struct advice advice[ADVICE_MOST]) {
  struct given given = {advice, 0};
#define ADVICE(name, when) give_##name(facts, &given);
#include "advice.def"
#undef ADVICE
  return given.count;
}
