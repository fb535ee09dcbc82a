/* A plan as text of at most 80 columns on stdout. */
#include "command.h"
#include "plan.h"
#include "words.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 80, EXPLAIN_MOST = 8192 };

static void wrap(const char *first, const char *text) {
  fputs(first, stdout);
  print_wrapped(text, strlen(first), COLUMNS);
  putchar('\n');
}

static void row(const char *name, double without, double with) {
  char a[WORDS_BYTES], b[WORDS_BYTES];
  printf("  %-34s %14s %14s\n", name, words_bytes(without, a), words_bytes(with, b));
}

static void left_row(const struct plan *plan) {
  const double both[] = {plan->without.left, plan->with.left};
  char text[2][WORDS_BYTES + 8];
  for (int i = 0; i < 2; i++) {
    char size[WORDS_BYTES];
    words_bytes(both[i] < 0 ? -both[i] : both[i], size);
    snprintf(text[i], sizeof text[i], "%s%s", both[i] < 0 ? "-" : "", size);
  }
  printf("  %-34s %14s %14s\n", "left for activations", text[0], text[1]);
  printf("  %-34s %14s %14s\n", "fits", plan->without.fits ? "yes" : "no",
         plan->with.fits ? "yes" : "no");
}

static void print_head(const struct plan_request *request, const char *machine) {
  char line[1280], count[WORDS_BYTES], tokens[WORDS_BYTES + 32] = "", number[WORDS_BYTES];
  if (request->tokens > 0)
    snprintf(tokens, sizeof tokens, ", %s tokens a GPU and step",
             words_count((uint64_t)request->tokens, number));
  snprintf(line, sizeof line, "%s: %s parameters, %s, %s%s", request->model.name,
           words_count((uint64_t)request->model.parameters, count), request->optimizer,
           request->dtype, tokens);
  wrap("", line);
  if (request->model.like) {
    snprintf(line, sizeof line,
             "model_type \"%s\" is not known; its parameters are counted as a Llama's",
             request->model.type);
    wrap("", line);
  }
  if (*request->model.dtype && strcmp(plan_dtype_of(request->model.dtype), request->dtype) != 0) {
    snprintf(
        line, sizeof line,
        "its config.json says %s; planned is %s, which --dtype tells: what the program keeps its "
        "parameters in while it trains",
        request->model.dtype, request->dtype);
    wrap("", line);
  }
  if (request->model.active < request->model.parameters)
    printf("%s of them work on a token\n", words_count((uint64_t)request->model.active, count));
  snprintf(line, sizeof line, "%s; %u GPU%s, %s", machine, request->gpus,
           request->gpus > 1 ? "s" : "",
           request->gpus == 1             ? "nothing to shard"
           : request->shard == PLAN_NONE  ? "each with everything (DDP): what one takes, all do"
           : request->shard == PLAN_ZERO1 ? "sharing the state (ZeRO-1)"
                                          : "sharing parameters, gradients and state (FSDP)");
  wrap("", line);
}

static void print_bytes(const struct plan_request *request, const struct plan *plan) {
  char size[WORDS_BYTES], title[64] = "a GPU's memory";
  if (request->device_bytes > 0)
    snprintf(title, sizeof title, "a GPU's memory, %s", words_bytes(request->device_bytes, size));
  printf("\n%-36s %14s %14s\n", title, "without", "with");
  row("parameters", plan->without.parameters, plan->with.parameters);
  row("gradients", plan->without.gradients, plan->with.gradients);
  row("optimizer state", plan->without.state, plan->with.state);
  row("staging", plan->without.staging, plan->with.staging);
  if (request->device_bytes > 0)
    left_row(plan);
  printf("%s\n", request->gpus > 1 ? "off the device, of all GPUs" : "off the device");
  row("host memory", 0, plan->host * request->gpus);
  row("drives", 0, plan->drives * request->gpus);
}

static void print_seconds(const struct plan_request *request, const struct plan *plan) {
  char seconds[WORDS_BYTES], exposed[WORDS_BYTES], hidden[WORDS_BYTES], share[WORDS_BYTES + 1];
  printf("\n%-15s %10s %10s %10s %10s  %s\n", "step by", "takes", "exposed", "hidden", "longer",
         "bound by");
  for (int way = 0; way < COST_WAYS; way++) {
    const struct cost_of_way *of = &plan->cost.ways[way];
    const char *name = way == COST_STAY ? "on the device" : cost_way_name((enum cost_way)way);
    if (!of->possible) {
      printf("  %-13s not possible\n", name);
      continue;
    }
    const double part = plan_share(plan, (enum cost_way)way);
    snprintf(share, sizeof share, "-");
    if (part >= 0)
      words_share(part, share);
    printf("%c %-13s %10s %10s %10s %10s  %s\n",
           way == (int)plan->cost.best && plan->moves ? '*' : ' ', name,
           words_seconds(of->seconds, seconds), words_seconds(of->exposed, exposed),
           words_seconds(of->hidden, hidden), share, cost_resource_name(of->bound));
  }
  if (plan->compute > 0)
    printf("forward and backward: %s a step; longer: beside one with all state on the\n"
           "device; *: the way that OFFLOAD_STEP=auto takes\n",
           words_seconds(plan->compute, seconds));
  else
    printf("longer: unknown without %s%s%s\n", request->tokens > 0 ? "" : "--tokens",
           request->tokens > 0 || request->bf16_flops > 0 ? "" : " and ",
           request->bf16_flops > 0 ? "" : "a known --gpu");
}

void plan_text(const struct plan_request *request, const struct plan *plan, const char *machine,
               bool explain) {
  print_head(request, machine);
  print_bytes(request, plan);
  if (plan->moves)
    print_seconds(request, plan);
  if (explain) {
    static char text[EXPLAIN_MOST];
    cost_explain(&plan->input, &plan->cost, text, sizeof text);
    printf("\n%s", text);
  }
  for (size_t i = 0; i < plan->advice_count; i++) {
    if (i == 0)
      putchar('\n');
    wrap("- ", plan->advice[i].text);
  }
}
