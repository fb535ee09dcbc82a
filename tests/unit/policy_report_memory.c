/* The series of memory: what a sample holds, its interval, and how it is thinned; beside it, what OFFLOAD_METRICS makes of rows that
   have one name, and what offload added to a step. */
#include "policy/json.h"
#include "policy/metrics.h"
#include "policy/report.h"
#include "policy/report_memory.h"
#include "policy/report_policy.h"
#include "tests/lib/tap.h"
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static char path[] = "/tmp/policy_report_memory.XXXXXX";
static int file;

/* Whether the series answers true; $all has "steps" too. */
static bool says(const char *filter) {
  char command[512];
  struct json json;
  (void)ftruncate(file, 0);
  (void)lseek(file, 0, SEEK_SET);
  json_open(&json, file);
  json_begin(&json, NULL, '{');
  report_memory_json(&json);
  report_steps_json(&json);
  json_end(&json, '}');
  if (json_close(&json))
    return false;
  snprintf(command, sizeof command, "jq -e '. as $all | .memory | %s' %s > /dev/null", filter,
           path);
  fflush(stdout);
  return system(command) == 0;
}

static void test_series(void) {
  const uint64_t start = 5000000, interval = 1000;
  tap_ok(report_memory_sample(start, true) == UINT64_MAX &&
             says(".samples == [] and .device_bytes == null"),
         "before it begins there is nothing");
  report_memory_begin(start, interval);
  tap_ok(report_memory_sample(start, false) == interval, "the next is due an interval later");
  report_moved(4096);
  report_on_drives(512);
  report_memory_state(8192);
  report_memory_device(700, 1000);
  tap_ok(report_memory_sample(start + 400, false) == 600 && says(".samples | length == 1"),
         "none is taken before");
  report_memory_sample(start + 1000, false);
  tap_ok(says(".samples[0] == {time_ns: 0, host_bytes: 0, drive_bytes: 0, state_bytes: 0, "
              "device_used_bytes: null}"),
         "what isn't known is null");
  tap_ok(says(".samples[1] == {time_ns: 1000, host_bytes: 4096, drive_bytes: 512, state_bytes: "
              "8192, device_used_bytes: 700} and .device_bytes == 1000"),
         "a sample has what is so then");
  report_memory_sample(start + 1100, true);
  tap_ok(says(".samples | length == 3 and .[2].time_ns == 1100"), "the last one is taken at once");
  for (uint64_t i = 3; i < REPORT_MEMORY_SAMPLES; i++)
    report_memory_sample(start + i * interval, false);
  tap_ok(says(".samples | length == 512") && says(".interval_ns == 1000"), "as many as fit");
  report_memory_sample(start + 600 * interval, false);
  tap_ok(says(".interval_ns == 2000 and (.samples | length == 257 and .[0].time_ns == 0 and "
              ".[1].time_ns == 1100 and .[128].time_ns == 256000 and .[256].time_ns == 600000)"),
         "at the bound every second sample goes, and the interval doubles");
  for (uint64_t i = 601; i < 20000; i++)
    report_memory_sample(start + i * interval, false);
  tap_ok(says("(.samples | length <= 512 and length > 128) and .interval_ns == 64000") &&
             says(".samples | [.[].time_ns] | . == sort and .[-1] > 19900000"),
         "it stays bounded and in order, and reaches from the first to the last");
}

static void test_added(void) {
  const struct report_step step = {
      .step = 7, .way = "cpu", .step_ns = 1000, .optimizer_ns = 700, .stay_ns = 200};
  struct report_step behind = step; /* the device is a step behind the program */
  behind.optimizer_ns = 1700;
  report_step(&step);
  tap_ok(says("$all.steps | .last[0].exposed_ns == 500 and .median_exposed_ns == 500"),
         "what offload added to a step is what is more than with all state on the device");
  report_step(&behind);
  tap_ok(says("$all.steps | .last[1].exposed_ns == 1000 and .last[1].optimizer_ns == 1700"),
         "and no more than the whole step");
  tap_ok(says("$all.steps | .median_exposed_ns == 750 and .median_step_ns == 1000"),
         "of an even number of steps the median is the mean of the middle two");
  struct report_step unmeasured = step; /* its events were not over in time */
  unmeasured.optimizer_ns = 0;
  unmeasured.step_ns = 9000;
  report_step(&unmeasured);
  report_step(&unmeasured);
  report_step(&unmeasured);
  const struct report_medians medians = report_steps_medians();
  tap_ok(says("$all.steps | .count == 5 and .median_step_ns == 1000 and .median_exposed_ns == 750"),
         "the step that it is a share of is the median of the same steps");
  tap_ok(medians.measured == 2 && medians.step_ns == 1000 && medians.exposed_ns == 750,
         "and who asks for the medians gets those that the report tells");
  struct report_step still = step; /* nothing of it was moved */
  still.way = "stay";
  report_step(&still);
  tap_ok(says("$all.steps.last[5] | .exposed_ns == 0 and .optimizer_ns == 700"),
         "to a step of which nothing was moved it added nothing, whatever was foretold of it");
}

/* Writes the metrics, and reads them as Prometheus does, for metrics_say. */
static bool metrics_parse(const struct config *config, bool running) {
  char command[512];
  metrics_write(config, 5, running);
  snprintf(command, sizeof command, "python3 tests/lib/prometheus.py %s > %s.json", path, path);
  fflush(stdout);
  return system(command) == 0;
}

static bool metrics_say(const char *filter) {
  char command[512];
  snprintf(command, sizeof command, "jq -e '%s' %s.json > /dev/null", filter, path);
  return system(command) == 0;
}

static void test_metrics(void) {
  struct config config;
  char parsed[sizeof path + 8];
  config_load(&config, NULL);
  config.metrics = path;
  for (unsigned i = 0; i < 2; i++) {
    struct report_function *row = report_function_new("family", "Adam \"fp32\"", 3336);
    atomic_store(&row->ways_before, i ? REPORT_WAY_CPU : REPORT_WAY_DIRECT);
    atomic_store(&row->ways, REPORT_WAY_STREAM);
    atomic_store(&row->launches_cpu, 20 + i);
  }
  tap_ok(metrics_parse(&config, true), "two rows of one name are one series");
  tap_ok(
      metrics_say("[.offload_function_launches_total.samples[] | select(.labels.way == \"cpu\")] "
                  "| length == 1 and .[0].value == 41 and .[0].labels.device == \"5\""),
      "of their sum");
  tap_ok(metrics_say("(.offload_exposed_seconds.samples | length == 1 and .[0].value == 0) and "
                     ".offload_optimizer_seconds.samples[0].value > 0"),
         "the last step's exposed time is as the report has it");
  tap_ok(metrics_say("[.offload_way.samples[] | select(.value == 1) | .labels.way] == "
                     "[\"cpu\", \"direct\"]"),
         "all ways of the last whole step are told while the process runs");
  tap_ok(metrics_parse(&config, false) &&
             metrics_say("[.offload_way.samples[] | select(.value == 1) | .labels.way] == "
                         "[\"stream\"]"),
         "and those of the last at its end");
  snprintf(parsed, sizeof parsed, "%s.json", path);
  (void)unlink(parsed);
}

int main(void) {
  file = mkstemp(path);
  test_series();
  test_added();
  test_metrics();
  (void)unlink(path);
  return tap_done();
}
