/* What the drive tier makes of its drives' wear: the limit, the warning, the report. The store, the drives and the settings are the
   test's own; each case is a process, as what is measured lives as long as one. */
#include "nvme/endurance.h"
#include "policy/report.h"
#include "shim/process.h"
#include "shim/wear.h"
#include "tests/lib/tap.h"
#include <inttypes.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TERA ((uint64_t)1000000000000)
#define GIGA ((uint64_t)1000000000)

static struct config config;
static struct drive_health drives[2];
static uint64_t written[2];
static unsigned directories = 2, questions;
static bool failed;

const struct config *process_config(void) {
  return &config;
}
struct store_stats store_stats(struct store *store) {
  (void)store;
  return (struct store_stats){.directories = directories,
                              .rung = ENGINE_PLAIN,
                              .block_bytes = 2 << 20,
                              .depth = 8,
                              .read_bytes = 7,
                              .written_bytes = written[0] + written[1],
                              .kept_bytes = 5,
                              .resident_bytes = 6,
                              .checksum_ns = 9,
                              .failed_directories = failed};
}
const char *store_directory(struct store *store, unsigned i, uint64_t *device) {
  static const char *const paths[] = {"/mnt/a", "/mnt/b"};
  (void)store;
  if (device)
    *device = i;
  return i < directories ? paths[i] : NULL;
}
uint64_t store_directory_written(struct store *store, unsigned i) {
  (void)store;
  return i < directories ? written[i] : 0;
}
bool store_directory_failed(struct store *store, unsigned i) {
  (void)store;
  return failed && i == 1;
}
const char *engine_rung_name(enum engine_rung rung) {
  return rung == ENGINE_PLAIN ? "plain" : "unknown";
}
struct drive_health __wrap_drive_health(uint64_t device, const char *root);
struct drive_health __wrap_drive_health(uint64_t device, const char *root) {
  (void)root;
  questions++;
  return drives[device];
}

static struct store *const store = (struct store *)&directories;
static const CUcontext context = (CUcontext)&written, other_context = (CUcontext)&config;
static char path[] = "/tmp/shim_wear.XXXXXX";

static bool said(const char *text) {
  bool found = false;
  for (unsigned i = 0; i < report.reason_count; i++)
    found |= strstr(report.reasons[i], text) != NULL;
  return found;
}

/* The report as one line without blanks, valid against the schema. */
static const char *told(void) {
  static char text[32768];
  char command[256];
  wear_report();
  if (report_write(&config, path))
    return "";
  snprintf(command, sizeof command, "python3 tests/lib/validate.py policy/report.schema.json %s",
           path);
  FILE *file = system(command) ? NULL : fopen(path, "r");
  const size_t bytes = file ? fread(text, 1, sizeof text - 1, file) : 0;
  size_t kept = 0;
  for (size_t i = 0; i < bytes; i++)
    if (text[i] != ' ' && text[i] != '\n')
      text[kept++] = text[i];
  text[kept] = 0;
  if (file)
    fclose(file);
  return text;
}

static void consumer_drive(void) {
  drives[0] = (struct drive_health){.name = "nvme0n1",
                                    .model = "Samsung SSD 990 PRO 2TB",
                                    .source = "nvme log",
                                    .capacity_bytes = 2 * TERA,
                                    .consumer = true,
                                    .written_known = true,
                                    .written_bytes = 200 * TERA,
                                    .rated_known = true,
                                    .rated_bytes = 1200 * TERA};
}

/* Steps of 84 GB on the first drive and 1 GB on the second, after a first one that also brings the state there. */
static void steps(unsigned count) {
  for (unsigned i = 0; i < count; i++) {
    wear_step(store, context);
    usleep(2000);
    written[0] += 84 * GIGA + (i ? 0 : 500 * GIGA);
    written[1] += GIGA;
  }
}

static bool consumer(void) {
  consumer_drive();
  steps(2);
  const bool early = report.reason_count;
  wear_step(store, context);
  const bool once = report.reason_count == 1;
  wear_step(store, context);
  return !early && once && report.reason_count == 1 &&
         said("nvme0n1 under /mnt/a (Samsung SSD 990 PRO 2TB) is a consumer drive, rated for 1200 "
              "TB of writes, of which 200.0 TB are written: at 84 GB a step") &&
         said("it lasts 11905 steps") && said("OFFLOAD_NVME_WEAR_LIMIT");
}

static bool consumer_of_unknown_age(void) {
  consumer_drive();
  drives[0].written_known = false;
  steps(4);
  return report.reason_count == 1 &&
         said("rated for 1200 TB of writes, all of them left if it is new") &&
         said("it lasts 14286 steps");
}

static bool consumer_unrated(void) {
  consumer_drive();
  drives[0].rated_known = false;
  steps(4);
  return report.reason_count == 1 && said("a consumer drive, and 84 GB are written there");
}

static bool not_warned(void) {
  consumer_drive();
  config.nvme_wear_limit = (struct wear_limit){.set = true, .bytes = UINT64_MAX};
  steps(4);
  return !report.reason_count;
}

static bool data_center(void) {
  steps(4);
  return !report.reason_count;
}

static bool reported(void) {
  const bool none = strstr(told(), "\"drives\":null") != NULL;
  consumer_drive();
  (void)wear_ended(store);
  const bool before =
      strstr(told(), "\"steps\":0,\"bytes_per_step\":null,\"step_ns\":null") != NULL;
  steps(5);
  wear_step(store, other_context);
  failed = true;
  const char *text = told();
  return none && before &&
         strstr(text, "\"drives\":{\"rung\":\"plain\",\"block_bytes\":2097152,\"depth\":8,\"read_"
                      "bytes\":7,\"written_bytes\":925000000000,\"resident_bytes\":6,\"kept_"
                      "bytes\":5,\"checksum_ns\":9,\"steps\":4,\"bytes_per_step\":85000000000,") &&
         strstr(text, "\"wear_limit_reached\":false,\"failed_directories\":1,\"directories\":[{"
                      "\"path\":\"/mnt/a\",\"device\":\"nvme0n1\",\"model\":"
                      "\"SamsungSSD990PRO2TB\",\"source\":\"nvmelog\",\"capacity_bytes\":"
                      "2000000000000,\"consumer\":true,\"percent_used\":null,\"rated_bytes\":"
                      "1200000000000000,\"life_written_bytes\":200000000000000,\"boot_written_"
                      "bytes\":null,\"written_bytes\":920000000000,\"bytes_per_step\":84000000000,"
                      "\"steps_left\":11904,\"days_left\":") &&
         strstr(text, "\"failed\":false},{\"path\":\"/mnt/b\",\"device\":null,\"model\":null,"
                      "\"source\":null,\"capacity_bytes\":null,\"consumer\":false,\"percent_used\":"
                      "null,\"rated_bytes\":null,\"life_written_bytes\":null,\"boot_written_"
                      "bytes\":null,\"written_bytes\":5000000000,\"bytes_per_step\":1000000000,"
                      "\"steps_left\":null,\"days_left\":null,\"failed\":true}]}");
}

static bool limit_by_bytes(void) {
  config.nvme_wear_limit = (struct wear_limit){.set = true, .bytes = 2 * TERA};
  written[0] = TERA;
  written[1] = TERA - 1;
  const bool early = wear_ended(store);
  written[1]++;
  const bool at = wear_ended(store), again = wear_ended(store);
  return !early && at && again && report.reason_count == 1 && !questions &&
         said("OFFLOAD_NVME_WEAR_LIMIT is reached, 2 of 2 TB are written") &&
         strstr(told(), "\"wear_limit_reached\":true");
}

static bool limit_at_the_end(void) {
  config.nvme_wear_limit = (struct wear_limit){.set = true, .bytes = 100000000};
  const bool before = wear_ended(store);
  written[0] = 99999999;
  wear_report();
  const bool early = report.reason_count;
  written[0] = 159400000;
  wear_report();
  wear_report();
  return !before && !early && report.reason_count == 1 && wear_ended(store) &&
         report.reason_count == 1 && said("reached, 159 of 100 MB are written") &&
         strstr(told(), "\"wear_limit_reached\":true");
}

static bool limit_by_percent(void) {
  config.nvme_wear_limit = (struct wear_limit){.set = true, .percent = 90};
  drives[0].percent_known = drives[1].percent_known = true;
  drives[0].percent_used = 89;
  drives[1].percent_used = 91;
  snprintf(drives[1].name, sizeof drives[1].name, "sda");
  return wear_ended(store) && wear_ended(store) && report.reason_count == 1 &&
         said("90% is reached, 91% of the endurance of sda under /mnt/b is used") &&
         strstr(told(), "\"wear_limit_reached\":true");
}

static bool below_percent(void) {
  config.nvme_wear_limit = (struct wear_limit){.set = true, .percent = 90};
  drives[0].percent_known = drives[1].percent_known = true;
  drives[0].percent_used = drives[1].percent_used = 89;
  const bool first = wear_ended(store);
  const unsigned asked = questions;
  drives[0].percent_used = 95; /* within ten minutes nobody asks again */
  return !first && !wear_ended(store) && asked == 2 && questions == asked && !report.reason_count;
}

static bool percent_unknown(void) {
  config.nvme_wear_limit = (struct wear_limit){.set = true, .percent = 90};
  drives[0].percent_known = true;
  return wear_ended(store) && wear_ended(store) && report.reason_count == 1 &&
         said("OFFLOAD_NVME_WEAR_LIMIT=90% can't be held") && said("under /mnt/b") &&
         strstr(told(), "\"wear_limit_reached\":false");
}

static void in_process(bool (*scenario)(void), const char *sentence) {
  fflush(stdout);
  int status = -1;
  const pid_t child = fork();
  if (!child) {
    const bool good = scenario();
    for (unsigned i = 0; !good && i < report.reason_count; i++)
      printf("# %s\n", report.reasons[i]);
    if (!good)
      printf("# %s\n", told());
    fflush(stdout);
    _exit(good ? 0 : 1);
  }
  waitpid(child, &status, 0);
  tap_ok(!status, "%s", sentence);
}

int main(void) {
  const int file = mkstemp(path);
  config_load(&config, NULL);
  in_process(consumer, "a consumer drive is warned of once, with the arithmetic, when the bytes of "
                       "a step are known");
  in_process(consumer_of_unknown_age, "one that doesn't tell its wear is taken as new");
  in_process(consumer_unrated, "one without a known rating is named with its bytes a step");
  in_process(not_warned, "with a wear limit nobody is warned");
  in_process(data_center, "of other drives nobody is warned");
  in_process(reported, "the report has drives, rates and what is left of their lives; unknown is "
                       "null");
  in_process(limit_at_the_end,
             "a limit that the last bytes pass is noticed when the report is written, once");
  in_process(limit_by_bytes, "a limit in bytes ends it at that byte, once and for good, and asks "
                             "no drive");
  in_process(limit_by_percent, "a limit in percent ends it when one drive reaches it");
  in_process(below_percent, "below it nothing ends, and drives are not asked at each step");
  in_process(percent_unknown, "a limit in percent that can't be held lets nothing go to drives");
  config_free(&config);
  close(file);
  unlink(path);
  return tap_done();
}
