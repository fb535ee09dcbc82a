/* Advice: each kind is given for the facts it is about, isn't for those a little beside them, and has the right numbers. */
#include "policy/advice.h"
#include "tests/lib/tap.h"
#include <string.h>

#define GIB ((uint64_t)1 << 30)

static struct advice given[ADVICE_MOST];

/* The sentence of that kind whose text has `words`; NULL: none. */
static const char *find(const struct advice_facts *facts, enum advice_kind kind,
                        const char *words) {
  const size_t count = advice_give(facts, given);
  for (size_t i = 0; i < count; i++)
    if (given[i].kind == kind && (!words || strstr(given[i].text, words)))
      return given[i].text;
  return NULL;
}

static void gives(const struct advice_facts *facts, enum advice_kind kind, const char *words,
                  const char *sentence) {
  if (tap_ok(find(facts, kind, words), "%s: %s", advice_kind_name(kind), sentence))
    return;
  const char *text = find(facts, kind, NULL);
  printf("# %s\n", text ? text : "nothing of that kind is given");
}

static void keeps_quiet(const struct advice_facts *facts, enum advice_kind kind,
                        const char *sentence) {
  const char *text = find(facts, kind, NULL);
  if (!tap_ok(!text, "%s: %s", advice_kind_name(kind), sentence))
    printf("# %s\n", text);
}

/* A billion parameters in fp32, whose step takes 0.1 s on the host, 0.2 streamed, and of which forward and backward take 0.4. */
static struct advice_facts job(void) {
  struct advice_facts facts = {.target = 0.05,
                               .tokens = 4096,
                               .device_bytes = 80 * GIB,
                               .device_used_bytes = 20 * GIB,
                               .parameter_bytes = 4 * GIB,
                               .gradient_bytes = 4 * GIB,
                               .state_bytes = 8 * GIB,
                               .budget_bytes = 64 * GIB,
                               .budget_limited_by = "MemAvailable",
                               .ranks = 1,
                               .driver = 12040};
  facts.input.elements = facts.input.on_host = 1e9;
  facts.input.family = cost_families[0];
  facts.input.compute = 0.4;
  facts.cost.ways[COST_CPU] =
      (struct cost_of_way){.possible = true, .seconds = 0.1, .exposed = 0.1, .bound = COST_HOST};
  facts.cost.ways[COST_STREAM] =
      (struct cost_of_way){.possible = true, .seconds = 0.2, .exposed = 0.2, .bound = COST_UP};
  facts.cost.ways[COST_STAY] = (struct cost_of_way){.possible = true};
  facts.cost.best = COST_CPU;
  return facts;
}

static void check_seen(void) {
  struct advice_facts facts = job();
  keeps_quiet(&facts, ADVICE_no_optimizer, "not for a job that steps");
  facts.no_optimizer = true;
  gives(&facts, ADVICE_no_optimizer, "fused=True", "says which optimizer is known");

  facts = job();
  keeps_quiet(&facts, ADVICE_fused, "not without foreach state");
  facts.foreach_bytes = 8 * GIB;
  gives(&facts, ADVICE_fused, "8.00 GiB of state on the device, 10 % of it",
        "says how much fused=True would let move");
  facts.device_bytes = 0;
  gives(&facts, ADVICE_fused, "8.00 GiB of state on the device: with fused=True",
        "also where the device's size is not known");

  facts = job();
  keeps_quiet(&facts, ADVICE_foreign, "not without another optimizer");
  facts.foreign_name = "bitsandbytes 8-bit Adam";
  facts.foreign_bytes = 2 * GIB;
  gives(&facts, ADVICE_foreign, "bitsandbytes 8-bit Adam is not taken over: its 2.00 GiB",
        "names the optimizer and what it keeps");
  facts.foreign_bytes = 0;
  gives(&facts, ADVICE_foreign, "8-bit Adam is not taken over: its state", "also of unknown size");

  facts = job();
  facts.unknown_state_bytes = GIB;
  keeps_quiet(&facts, ADVICE_unknown, "not without a kernel's name");
  facts.unknown_kernel = "lion_update_kernel";
  facts.unknown_ranges = 4;
  facts.unknown_bytes = 2 * GIB;
  gives(&facts, ADVICE_unknown,
        "the kernel lion_update_kernel uses 4 ranges of one size, 2.00 GiB a step, 1.00 GiB of "
        "them alone: it looks like an optimizer that is not known",
        "names the kernel and its bytes");
  char name[1000];
  memset(name, 'k', sizeof name - 1);
  name[sizeof name - 1] = 0;
  facts.unknown_kernel = name;
  gives(&facts, ADVICE_unknown, "fused=True", "a long name leaves room for the remedy");
}

static void check_machine(void) {
  struct advice_facts facts = job();
  keeps_quiet(&facts, ADVICE_allocator, "not with PyTorch's own settings");
  facts.expandable_segments = true;
  gives(&facts, ADVICE_allocator, "expandable_segments:True", "expandable segments");
  keeps_quiet(&facts, ADVICE_driver, "none of the driver for the allocator's settings");
  facts.async_allocator = facts.memory_fraction = true;
  gives(&facts, ADVICE_allocator, "cudaMallocAsync", "the driver's pools");
  gives(&facts, ADVICE_allocator, "set_per_process_memory_fraction", "a memory fraction");

  facts = job();
  keeps_quiet(&facts, ADVICE_driver, "not of the first driver that moves memory");
  facts.driver = 12030;
  gives(&facts, ADVICE_driver, "offers CUDA 12.3; memory moves from 12.4", "names both versions");
  facts.driver = 0;
  keeps_quiet(&facts, ADVICE_driver, "not of a driver that was not asked");
  facts.wsl = true;
  gives(&facts, ADVICE_driver, "WSL2", "WSL2");
  facts.seccomp = true;
  gives(&facts, ADVICE_driver, "--cap-add SYS_NICE", "seccomp, with the flag");

  facts = job();
  keeps_quiet(&facts, ADVICE_memlock, "not without a limit that bounds");
  facts.memlock_bytes = 65536;
  gives(&facts, ADVICE_memlock, "no more than 64.0 KiB may be locked", "says the limit");
}

static void check_activations(void) {
  struct advice_facts facts = job();
  /* 16 GiB are known. 40 in use: 24 are 60 %. */
  facts.device_used_bytes = 40 * GIB;
  keeps_quiet(&facts, ADVICE_activations, "not up to three fifths of what is in use");
  facts.device_used_bytes = 48 * GIB;
  gives(&facts, ADVICE_activations,
        "32.0 GiB of the 48.0 GiB in use on the device, optimizer "
        "state 8.00 GiB",
        "says how much they are beside the state");
  facts.parameter_bytes = 0;
  keeps_quiet(&facts, ADVICE_activations, "not where parameters are not known");
}

static void check_accumulate(void) {
  struct advice_facts facts = job();
  /* 0.1 of 0.5 s are 20 %; 5 % are 2 s, so forward and backward take 1.9: 4.75 times 0.4. */
  gives(&facts, ADVICE_accumulate,
        "offload is foretold to take 100 ms of a step, 20 %; a target of 5.0 % needs 5 times "
        "the tokens a step (20,480 for 4,096): accumulate 5 "
        "micro-batches where there is one now, and it takes 4.8 %",
        "computes how many times the tokens reach the target");
  facts.input.compute = 0;
  keeps_quiet(&facts, ADVICE_accumulate, "not where the length of a step is not known");
  facts.step_seconds = 0.5;
  gives(&facts, ADVICE_accumulate, "needs 5 times", "the whole step's time will do");
  facts.tokens = 0;
  gives(&facts, ADVICE_accumulate, "5 times the tokens a step: accumulate",
        "without the number of tokens it is left out");
  facts = job();
  facts.target = 0;
  gives(&facts, ADVICE_accumulate, "a target of 5.0 %", "without a target it is 5 %");
  facts.input.compute = 1.9;
  keeps_quiet(&facts, ADVICE_accumulate, "not when the step meets the target");
  facts.input.compute = 1.8;
  gives(&facts, ADVICE_accumulate, "needs 2 times", "but from just above it on");
  facts = job();
  facts.cost.ways[COST_STAY].seconds = 0.3;
  /* 1.9 - 0.3 on the device */
  gives(&facts, ADVICE_accumulate, "needs 4 times", "the optimizer's own time counts in the step");
  facts = job();
  facts.set_way = "stream";
  gives(&facts, ADVICE_accumulate, "to take 200 ms of a step", "the way that is set is what costs");
  facts.measured = true;
  facts.step_seconds = 1;
  facts.exposed_seconds = 0.4;
  /* of 8 s, forward and backward take 7.6: 12.7 times 0.6 */
  gives(&facts, ADVICE_accumulate,
        "offload takes 400 ms of a step, 40 %; a target of 5.0 % needs 13 times",
        "what was measured counts before what was foretold, of the whole step that was measured");
  facts.exposed_seconds = 0.01;
  keeps_quiet(&facts, ADVICE_accumulate, "not when it was measured to meet the target");
  facts.exposed_seconds = 0;
  keeps_quiet(&facts, ADVICE_accumulate, "nor when it was measured to be nothing");
  facts.input.elements = 0;
  facts.exposed_seconds = 0.4;
  keeps_quiet(&facts, ADVICE_accumulate, "not before a step was seen");
}

static void check_size(void) {
  struct advice_facts facts = job();
  keeps_quiet(&facts, ADVICE_lora, "not while all fits and the target is near");
  facts.input.compute = 0.11; /* 1.9 s are 18 times that */
  gives(&facts, ADVICE_lora, "gradients and state are 123 MiB and not 12.0 GiB",
        "where more than 16 times the tokens were needed");
  facts = job();
  facts.device_bytes = 15 * GIB;
  gives(&facts, ADVICE_lora, "LoRA", "where parameters fit and the rest doesn't");

  facts = job();
  keeps_quiet(&facts, ADVICE_shard, "not for one GPU that has room");
  facts.device_bytes = 7 * GIB;
  /* 8 GiB over two devices of 5.6 */
  gives(&facts, ADVICE_shard,
        "parameters and gradients alone are 8.00 GiB, the device has 7.00 "
        "GiB: moving state can't make them fit; FSDP or ZeRO-3 over 2 GPUs "
        "leaves 4.00 GiB",
        "says how many GPUs hold parameters and gradients");
  facts = job();
  facts.ranks = 8;
  keeps_quiet(&facts, ADVICE_shard, "not for ranks that share the state");
  facts.replicated = true;
  gives(&facts, ADVICE_shard,
        "each of 8 ranks keeps and steps the same 8.00 GiB of state, 64.0 GiB "
        "in all: ZeRO-1 (ZeroRedundancyOptimizer) or FSDP leaves 1.00 GiB",
        "says what ranks that repeat the state would save");
  facts.ranks = 1;
  keeps_quiet(&facts, ADVICE_shard, "a single rank repeats nothing");
}

static void check_host(void) {
  struct advice_facts facts = job();
  keeps_quiet(&facts, ADVICE_host, "not when the budget has room for the state");
  facts.budget_bytes = 2 * GIB;
  keeps_quiet(&facts, ADVICE_host, "nor when what is beyond it stays for other reasons");
  facts.kept_bytes = 6 * GIB;
  gives(&facts, ADVICE_host,
        "is 2.00 GiB, by MemAvailable, so 6.00 GiB of it stays on the device: "
        "add host memory, run fewer jobs beside this one, or name directories on local drives in "
        "OFFLOAD_NVME",
        "says what stays, and which limit it is");
  facts.drives_named = true;
  const char *text = find(&facts, ADVICE_host, NULL);
  tap_ok(text && !strstr(text, "OFFLOAD_NVME"), "host: names no drives where drives are named");
  facts.drives_full = true;
  gives(&facts, ADVICE_host, "make room on the drives (OFFLOAD_NVME_LIMIT",
        "says that drives are full");
  facts.drives_full = false;
  facts.drives_decline = true;
  gives(&facts, ADVICE_host,
        "6.00 GiB of it stays on the device, as drives take no piece that is also used by others",
        "says why drives don't take it");
  facts.budget_limited_by = "cgroup memory limit";
  gives(&facts, ADVICE_host, "Docker --memory", "a control group's remedy");
  facts.budget_limited_by = "OFFLOAD_HOST_MEMORY";
  gives(&facts, ADVICE_host, "raise OFFLOAD_HOST_MEMORY", "the setting's remedy");
  facts.budget_limited_by = "RLIMIT_MEMLOCK";
  gives(&facts, ADVICE_host, "ulimit -l unlimited", "locked memory's remedy");
}

static void check_way(void) {
  struct advice_facts facts = job();
  keeps_quiet(&facts, ADVICE_way, "not when nothing is set");
  facts.set_way = "cpu";
  keeps_quiet(&facts, ADVICE_way, "not when the best is set");
  facts.set_way = "stream";
  gives(&facts, ADVICE_way,
        "OFFLOAD_STEP=stream makes a step 200 ms longer, bound by link up; cpu "
        "would make it 100 ms longer: set OFFLOAD_STEP=cpu",
        "says what either way costs, and what bounds the one that is set");
  facts.cost.ways[COST_STREAM].exposed = 0.11;
  keeps_quiet(&facts, ADVICE_way, "not for less than a tenth");
  facts.set_way = "direct";
  keeps_quiet(&facts, ADVICE_way, "not about a way that is not possible");
}

static void check_whole(void) {
  struct advice_facts nothing = {0};
  nothing.cost.best = COST_STAY;
  tap_ok(advice_give(&nothing, given) == 0, "nothing is said where nothing is known");
  struct advice_facts facts = job();
  facts.no_optimizer = facts.expandable_segments = facts.async_allocator = facts.memory_fraction =
      facts.wsl = facts.seccomp = facts.replicated = true;
  facts.foreach_bytes = facts.foreign_bytes = facts.unknown_bytes = facts.unknown_state_bytes = GIB;
  facts.foreign_name = facts.unknown_kernel = "a kernel";
  facts.driver = 11080;
  facts.memlock_bytes = 1;
  facts.device_used_bytes = 1000 * GIB;
  facts.device_bytes = GIB;
  facts.ranks = 8;
  facts.budget_bytes = 1;
  facts.input.compute = 0.001;
  facts.set_way = "stream";
  const size_t count = advice_give(&facts, given);
  bool ordered = true, whole = true;
  for (size_t i = 0; i < count; i++) {
    ordered = ordered && (i == 0 || given[i].kind >= given[i - 1].kind);
    whole = whole && strlen(given[i].text) < sizeof given[i].text - 1;
  }
  tap_ok(count == ADVICE_MOST, "no more sentences are given than there is room for");
  tap_ok(ordered && given[0].kind == ADVICE_no_optimizer, "the most useful come first");
  tap_ok(whole, "no sentence is cut");
  bool named = true;
  for (int kind = 0; kind < ADVICE_KINDS; kind++)
    named = named && strcmp(advice_kind_name((enum advice_kind)kind), "none") != 0;
  tap_ok(named && !strcmp(advice_kind_name(ADVICE_accumulate), "accumulate"),
         "each kind has the name that the list gives it");
}

int main(void) {
  check_seen();
  check_machine();
  check_activations();
  check_accumulate();
  check_size();
  check_host();
  check_way();
  check_whole();
  return tap_done();
}
