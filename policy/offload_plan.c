/* `offload plan`: what a job would need and cost, before it runs. Reads what is asked; plan.c does the arithmetic, plan_text.c,
   plan_json.c and plan_svg.c show it. Looks at no GPU. */
#include "command.h"
#include "config.h"
#include "cpus.h"
#include "plan.h"
#include "rates_cache.h"
#include "words.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
  OPTION_GPUS = 256,
  OPTION_TOKENS,
  OPTION_OPTIMIZER,
  OPTION_DTYPE,
  OPTION_GPU,
  OPTION_RATES,
  OPTION_DEVICE_MEMORY,
  OPTION_SHARD,
  OPTION_HOST_MEMORY,
  OPTION_NVME,
  OPTION_DRIVES,
  OPTION_STAGING,
  OPTION_THREADS,
  OPTION_TARGET,
  OPTION_EXPLAIN,
  OPTION_JSON,
  OPTION_SVG,
  GPUS_MOST = 1024,
  DRIVES_MOST = 64
};

/* A second, reading or writing: a modest one. */
static const double drive_bytes = 5e9;

struct asked {
  struct plan_request request;
  const char *model, *gpu, *rates, *svg, *nvme;
  unsigned drives;
  bool explain, json, threads_told;
};

static const struct argp_option options[] = {
    {"gpus", OPTION_GPUS, "N", 0, "GPUs of the node (1)", 0},
    {"tokens", OPTION_TOKENS, "N", 0, "tokens of a GPU and step, all micro-batches: 16K, 65536", 0},
    {"optimizer", OPTION_OPTIMIZER, "NAME", 0,
     "the optimizer, of those listed under Optimizers (adamw)", 0},
    {"dtype", OPTION_DTYPE, "fp32|bf16|fp16|fp64", 0, "of parameters and gradients (fp32)", 0},
    {"gpu", OPTION_GPU, "NAME", 0,
     "a known machine, of those listed under Machines: its rates, memory and speed by public "
     "figures",
     0},
    {"rates", OPTION_RATES, "FILE", 0, "this machine's rates, as OFFLOAD_RATES", 0},
    {"device-memory", OPTION_DEVICE_MEMORY, "SIZE", 0, "of a GPU: 80GiB", 0},
    {"shard", OPTION_SHARD, "none|zero1|fsdp", 0, "what the GPUs divide among each other (none)",
     0},
    {"host-memory", OPTION_HOST_MEMORY, "SIZE", 0,
     "host memory of the node for state (as much as it takes)", 0},
    {"nvme", OPTION_NVME, "DIRECTORY", 0,
     "state beyond the host memory goes to drives, one for each directory, separated by colons", 0},
    {"drives", OPTION_DRIVES, "N", 0, "the same, to so many drives", 0},
    {"device-staging", OPTION_STAGING, "SIZE", 0, "as OFFLOAD_DEVICE_STAGING (256MiB)", 0},
    {"threads", OPTION_THREADS, "N", 0, "of a GPU's CPU step (its share of this machine's)", 0},
    {"target", OPTION_TARGET, "PERCENT", 0, "of a step that offload may take (5%)", 0},
    {"explain", OPTION_EXPLAIN, NULL, 0, "print the arithmetic, too", 0},
    {"json", OPTION_JSON, NULL, 0, "print JSON", 0},
    {"svg", OPTION_SVG, "FILE", 0,
     "write a picture, too; - is standard output, with nothing else on it", 0},
    {0},
};

static double whole(struct argp_state *state, const char *name, const char *text, double most) {
  char *end = NULL;
  double value = isdigit((unsigned char)*text) ? strtod(text, &end) : 0;
  const double kilo = 1024, mega = kilo * kilo;
  const char unit = (char)(end ? toupper((unsigned char)*end) : 0);
  if (unit == 'K' || unit == 'M') {
    value *= unit == 'K' ? kilo : mega;
    end++;
  }
  if (!end || *end || !(value >= 1 && value <= most) || value != floor(value))
    argp_error(state, "--%s %s: give a whole number from 1 to %.0f", name, text, most);
  return value;
}

static double size(struct argp_state *state, const char *name, const char *text) {
  struct config_size found;
  if (!config_parse_size(text, &found) || found.percent || !found.bytes)
    argp_error(state, "--%s %s: give a size such as 80GiB", name, text);
  return (double)found.bytes;
}

static double percent(struct argp_state *state, const char *text) {
  char *end = NULL;
  const double value = isdigit((unsigned char)*text) ? strtod(text, &end) : 0;
  const double most = 100;
  if (end && *end == '%')
    end++;
  if (!end || *end || !(value > 0 && value < most))
    argp_error(state, "--target %s: give a share of a step such as 5%%", text);
  return value / most;
}

static enum plan_shard shard(struct argp_state *state, const char *text) {
  for (int i = PLAN_NONE; i <= PLAN_FSDP; i++)
    if (!strcmp(plan_shard_name((enum plan_shard)i), text))
      return (enum plan_shard)i;
  argp_error(state, "--shard %s is none of none, zero1, fsdp", text);
  return PLAN_NONE;
}

static unsigned directories(struct argp_state *state, const char *text) {
  unsigned count = 0;
  for (const char *part = text; *part; part += *part == ':') {
    const size_t length = strcspn(part, ":");
    count += length > 0;
    part += length;
  }
  if (!count)
    argp_error(state, "--nvme '%s' names no directory: give one for each drive", text);
  return count;
}

static error_t parse_option(int key, char *argument, struct argp_state *state) {
  const double tokens_most = 1e12, threads_most = 4096;
  struct asked *asked = state->input;
  struct plan_request *request = &asked->request;
  switch (key) {
  case OPTION_GPUS:
    request->gpus = (unsigned)whole(state, "gpus", argument, GPUS_MOST);
    break;
  case OPTION_TOKENS:
    request->tokens = whole(state, "tokens", argument, tokens_most);
    break;
  case OPTION_OPTIMIZER:
    request->optimizer = argument;
    break;
  case OPTION_DTYPE:
    request->dtype = argument;
    break;
  case OPTION_GPU:
    asked->gpu = argument;
    break;
  case OPTION_RATES:
    asked->rates = argument;
    break;
  case OPTION_DEVICE_MEMORY:
    request->device_bytes = size(state, "device-memory", argument);
    break;
  case OPTION_SHARD:
    request->shard = shard(state, argument);
    break;
  case OPTION_HOST_MEMORY:
    request->host_bytes = size(state, "host-memory", argument);
    break;
  case OPTION_NVME:
    asked->drives = directories(state, argument);
    asked->nvme = argument;
    break;
  case OPTION_DRIVES:
    asked->drives = (unsigned)whole(state, "drives", argument, DRIVES_MOST);
    break;
  case OPTION_STAGING:
    request->staging_bytes = size(state, "device-staging", argument);
    break;
  case OPTION_THREADS:
    request->threads = (unsigned)whole(state, "threads", argument, threads_most);
    break;
  case OPTION_TARGET:
    request->target = percent(state, argument);
    break;
  case OPTION_EXPLAIN:
    asked->explain = true;
    break;
  case OPTION_JSON:
    asked->json = true;
    break;
  case OPTION_SVG:
    asked->svg = argument;
    break;
  case ARGP_KEY_ARG:
    if (asked->model)
      argp_error(state, "one model at a time, so not '%s' beside '%s'", argument, asked->model);
    asked->model = argument;
    break;
  case ARGP_KEY_NO_ARGS:
    argp_error(state, "no model: give a size such as 7B, or a config.json");
    break;
  case ARGP_KEY_END:
    if (asked->json && asked->svg && !strcmp(asked->svg, "-"))
      argp_error(state, "--json and --svg - are two answers: ask for one, or name a file");
    break;
  default:
    return ARGP_ERR_UNKNOWN;
  }
  return 0;
}

/* ---- the machine ---- */

/* Kept rates of a GPU that is there, or assumed ones: the words say whose. */
static void kept_rates(const struct asked *asked, struct rates *rates, char *machine,
                       size_t machine_bytes) {
  static struct rates_kept kept;
  struct rates others;
  char path[256], name[128], day[32] = "?";
  const char *root = getenv("OFFLOAD_SYSROOT");
  const bool here = rates_cached_newest(root, true, asked->nvme, rates, &kept);
  if (!here && !rates_cached_newest(root, false, NULL, &others, &kept)) {
    snprintf(machine, machine_bytes,
             "rates assumed of a modest machine (--gpu or --rates tells others)");
    return;
  }
  const time_t when = (time_t)kept.when;
  struct tm local;
  if (localtime_r(&when, &local))
    strftime(day, sizeof day, "%Y-%m-%d %H:%M", &local);
  words_plain(kept.path, path, sizeof path);
  words_plain(*kept.name ? kept.name : "GPU", name, sizeof name);
  if (here)
    snprintf(machine, machine_bytes, "rates measured on this machine's %s %s, %s, %s", name,
             kept.gpu, day, path);
  else
    snprintf(machine, machine_bytes,
             "rates assumed of a modest machine (--gpu or --rates tells others; those kept of %s "
             "%s, which is not here, are not taken: --rates %s)",
             name, kept.gpu, path);
}

/* The CPU's threads and the drives, where they aren't of the machine that the rates are of. */
static void add_others(struct asked *asked, bool of_gpu, char *machine, size_t machine_bytes) {
  struct plan_request *request = &asked->request;
  char each[WORDS_BYTES];
  size_t used = strlen(machine);
  if (!of_gpu && request->rates.source == RATES_ASSUMED)
    used += (size_t)snprintf(machine + used, machine_bytes - used, ", but %u thread%s a GPU, %s",
                             request->threads, request->threads == 1 ? "" : "s",
                             asked->threads_told ? "by --threads" : "which this machine has");
  if (!asked->drives || (request->rates.drive_read > 0 && request->rates.drive_write > 0) ||
      used >= machine_bytes)
    return;
  snprintf(machine + used, machine_bytes - used, ", drives assumed (%s each)",
           words_rate(drive_bytes, each));
  if (request->rates.drive_read <= 0)
    request->rates.drive_read = asked->drives * drive_bytes;
  if (request->rates.drive_write <= 0)
    request->rates.drive_write = asked->drives * drive_bytes;
}

/* What is known of it, and the words for that. False: said. */
static bool find_machine(struct asked *asked, char *machine, size_t machine_bytes) {
  const double gibi = 1 << 30, tera = 1e12;
  struct plan_request *request = &asked->request;
  char problem[1024];
  const struct plan_gpu *gpu = NULL;
  char shown[256];
  rates_assume(&request->rates);
  if (!asked->gpu && !asked->rates)
    kept_rates(asked, &request->rates, machine, machine_bytes);
  if (asked->gpu) {
    gpu = plan_gpu_find(asked->gpu, request->gpus, problem, sizeof problem);
    if (!gpu) {
      say("%s", problem);
      return false;
    }
    plan_gpu_rates(gpu, &request->rates);
    request->bf16_flops = gpu->bf16 * tera;
    if (request->device_bytes <= 0)
      request->device_bytes = gpu->memory * gibi;
    char whose[80] = "";
    if ((unsigned)gpu->gpus != request->gpus)
      snprintf(whose, sizeof whose, ", of a machine with %d GPU%s, not %u", gpu->gpus,
               gpu->gpus == 1 ? "" : "s", request->gpus);
    snprintf(machine, machine_bytes, "%s: %s, by public figures%s", gpu->name, gpu->words, whose);
  }
  if (asked->rates) {
    if (!rates_read(&request->rates, asked->rates, problem, sizeof problem)) {
      say("%s", problem);
      return false;
    }
    words_plain(asked->rates, shown, sizeof shown);
    snprintf(machine, machine_bytes, "rates of %s%s%s", shown, gpu ? ", else of " : "",
             gpu ? gpu->name : "");
  }
  asked->threads_told = request->threads > 0;
  if (!request->threads)
    request->threads = gpu && !asked->rates ? 1 : cpus_threads(request->gpus, NULL);
  request->drives = asked->drives > 0;
  add_others(asked, gpu && !asked->rates, machine, machine_bytes);
  return true;
}

/* The lists below the options. */
static void describe(char *text, size_t bytes) {
  size_t used = (size_t)snprintf(text, bytes, "Optimizers:\n");
  for (const struct plan_optimizer *o = plan_optimizers; o->name && used < bytes; o++)
    used += (size_t)snprintf(text + used, bytes - used, "  %-12s %s\n", o->name, o->help);
  if (used < bytes)
    used += (size_t)snprintf(text + used, bytes - used, "\nMachines:\n");
  for (const struct plan_gpu *gpu = plan_gpus; gpu->name && used < bytes; gpu++)
    used += (size_t)snprintf(text + used, bytes - used, "  %-12s %s\n", gpu->name, gpu->words);
}

int offload_plan(int argc, char **argv) {
  static char lists[3072];
  struct asked asked = {.request = {.optimizer = "adamw",
                                    .dtype = "fp32",
                                    .gpus = 1,
                                    .target = ADVICE_TARGET,
                                    .staging_bytes = 256 << 20}};
  char problem[1024], machine[1024];
  struct plan plan;
  describe(lists, sizeof lists);
  const struct argp argp = {.options = options, .parser = parse_option, .doc = lists};
  command_parse(&argp, argc, argv, 0, &asked);
  if (!find_machine(&asked, machine, sizeof machine))
    return EXIT_USAGE;
  if (!plan_model_read(asked.model, &asked.request.model, problem, sizeof problem) ||
      !plan_make(&asked.request, &plan, problem, sizeof problem)) {
    say("%s", problem);
    return EXIT_USAGE;
  }
  bool written = true;
  if (asked.svg && !strcmp(asked.svg, "-"))
    written = plan_svg(&asked.request, &plan, machine, asked.svg);
  else if (asked.json)
    written = plan_json(&asked.request, &plan, machine);
  else
    plan_text(&asked.request, &plan, machine, asked.explain);
  if (!output_end())
    return EXIT_BLOCKED;
  if (!written) {
    say("no memory for the JSON");
    return EXIT_BLOCKED;
  }
  if (asked.svg && strcmp(asked.svg, "-") != 0 &&
      !plan_svg(&asked.request, &plan, machine, asked.svg)) {
    say("--svg %s: %s", asked.svg, strerror(errno));
    return EXIT_BLOCKED;
  }
  return EXIT_SUCCESS;
}
