/* The OFFLOAD_* variables: what is understood, what is refused, and what is said about it. */
#include "adam/adam.h"
#include "policy/config.h"
#include "tests/lib/tap.h"
#include <string.h>
#include <unistd.h>

static struct config config;

/* Loads up to three entries. */
static const struct config *load(const char *first, const char *second, const char *third) {
  static char entries[3][4096];
  char *environment[4] = {NULL};
  const char *const given[3] = {first, second, third};
  size_t count = 0;
  config_free(&config);
  for (size_t i = 0; i < 3; i++)
    if (given[i]) {
      snprintf(entries[count], sizeof entries[count], "%s", given[i]);
      environment[count] = entries[count];
      count++;
    }
  config_load(&config, environment);
  return &config;
}

static bool says(const char *text) {
  return strstr(config.problems, text) != NULL;
}

static void test_sizes(void) {
  static const struct {
    const char *text;
    uint64_t bytes;
    unsigned percent;
  } good[] = {{"0", 0, 0},
              {"4096", 4096, 0},
              {"1B", 1, 0},
              {"3KiB", 3072, 0},
              {"512MiB", (uint64_t)512 << 20, 0},
              {"20GiB", (uint64_t)20 << 30, 0},
              {"20gib", (uint64_t)20 << 30, 0},
              {"1TiB", (uint64_t)1 << 40, 0},
              {"18446744073709551615", UINT64_MAX, 0},
              {"1%", 0, 1},
              {"100%", 0, 100}};
  static const char *const bad[] = {"",
                                    "GiB",
                                    "20GB",
                                    "20G",
                                    "-1",
                                    "1.5GiB",
                                    "0%",
                                    "101%",
                                    "80%%",
                                    "18446744073709551616",
                                    "16777216TiB",
                                    " 1",
                                    "1 ",
                                    "0x10",
                                    "1GiBx"};
  size_t wrong = 0;
  struct config_size size;
  for (size_t i = 0; i < sizeof good / sizeof *good; i++)
    wrong += !config_parse_size(good[i].text, &size) || size.bytes != good[i].bytes ||
             size.percent != good[i].percent || !size.set;
  tap_ok(!wrong, "sizes are plain bytes, B, KiB, MiB, GiB, TiB or a share");
  wrong = 0;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    if (config_parse_size(bad[i], &size)) {
      wrong++;
      printf("# '%s' was taken\n", bad[i]);
    }
  tap_ok(!wrong, "what is no size, too large or no share is refused");
}

static void test_values(void) {
  load(NULL, NULL, NULL);
  tap_ok(config.mode == MODE_FULL && config.step == STEP_AUTO && !config.host_memory.set &&
             config.device_staging.bytes == 256u << 20 && config.min_allocation.bytes == 2u << 20 &&
             config.overflow && !config.threads && config.isa == ADAM_ISA_AUTO &&
             config.log == LOG_NORMAL && !config.report && !config.callers && !config.piece.bytes &&
             !config.problems[0],
         "without variables the initial values of the list stand and nothing is wrong");
  load("OFFLOAD_MODE=pressure", "OFFLOAD_STEP=stream", "OFFLOAD_LOG=quiet");
  tap_ok(config.mode == MODE_PRESSURE && config.step == STEP_STREAM && config.log == LOG_QUIET &&
             !config.problems[0],
         "words are taken");
  load("OFFLOAD_ISA=avx512", "OFFLOAD_THREADS=12", "OFFLOAD_OVERFLOW=0");
  tap_ok(config.isa == ADAM_ISA_AVX512 && config.threads == 12 && !config.overflow &&
             !config.problems[0],
         "the instruction set's words are adam's numbers; counts and flags are taken");
  load("OFFLOAD_HOST_MEMORY=25%", "OFFLOAD_REPORT=/tmp/r.json", "PATH=/bin");
  tap_ok(config.host_memory.percent == 25 && !strcmp(config.report, "/tmp/r.json") &&
             !config.problems[0],
         "shares and paths are taken, other programs' variables left alone");
  char directory[2048], expected[4096];
  load("OFFLOAD_REPORT=out/r.json", NULL, NULL);
  snprintf(expected, sizeof expected, "%s/out/r.json",
           getcwd(directory, sizeof directory) ? directory : "");
  tap_ok(!strcmp(config.report, expected), "a relative path counts from where the program started");
  load("OFFLOAD_MODE=off", "OFFLOAD_MODE=full", NULL);
  tap_ok(config.mode == MODE_OFF, "of two entries the first counts, as with getenv");
  load("OFFLOAD_MODE=", "OFFLOAD_STEP=", "OFFLOAD_REPORT=");
  tap_ok(config.mode == MODE_FULL && !config.report && !config.problems[0],
         "an empty value is as none");
}

static void test_problems(void) {
  load("OFFLOAD_MODE=fast", NULL, NULL);
  tap_ok(config.mode == MODE_FULL && says("OFFLOAD_MODE=fast") &&
             says("full, pressure, observe, off") && says("stays at full"),
         "a bad word: variable, value and remedy are named, the initial value stays");
  load("OFFLOAD_HOST_MEMORY=20GB", "OFFLOAD_THREADS=many", "OFFLOAD_OVERFLOW=yes");
  tap_ok(!config.host_memory.set && says("OFFLOAD_HOST_MEMORY=20GB") &&
             says("is ignored: write 20GiB") && says("OFFLOAD_THREADS=many") &&
             says("whole number") && says("OFFLOAD_OVERFLOW=yes") && says("0 or 1") &&
             config.overflow,
         "bad sizes, counts and flags likewise, each in its line");
  load("OFFLOAD_PIECE=10%", "OFFLOAD_THREADS=5000", NULL);
  tap_ok(!config.piece.percent && says("OFFLOAD_PIECE=10%") && !config.threads &&
             says("OFFLOAD_THREADS=5000"),
         "a share where none makes sense and a count too large are refused");
  load("OFFLOAD_HOST_MEMROY=1GiB", NULL, NULL);
  tap_ok(!config.host_memory.set && says("OFFLOAD_HOST_MEMROY") &&
             says("did you mean OFFLOAD_HOST_MEMORY?"),
         "a misspelt name is told with the one that was meant");
  load("OFFLOAD_TELEPORT=1", "OFFLOAD_=1", "OFFLOADED=1");
  tap_ok(says("OFFLOAD_TELEPORT is not a variable") && !says("did you mean") && !says("OFFLOADED"),
         "an unknown name without a neighbour is told alone; other prefixes are not ours");
  load("OFFLOAD_MODE=\033[31mred", NULL, NULL);
  tap_ok(!strchr(config.problems, '\033') && says("?[31mred"),
         "control characters of a value don't reach the terminal");
  char entry[4096];
  snprintf(entry, sizeof entry, "OFFLOAD_MODE=%04000d", 1);
  load(entry, NULL, NULL);
  tap_ok(strlen(config.problems) < 300 && says("..."), "a very long value is shortened");
}

static void test_combinations(void) {
  load("OFFLOAD_MODE=observe", "OFFLOAD_STEP=cpu", NULL);
  tap_ok(says("OFFLOAD_STEP=cpu has no effect with OFFLOAD_MODE=observe"),
         "a step mode while nothing moves is named");
  load("OFFLOAD_STEP=direct", "OFFLOAD_ISA=avx2", NULL);
  tap_ok(says("OFFLOAD_ISA has no effect with OFFLOAD_STEP=direct"),
         "an instruction set without a CPU step is named");
  load("OFFLOAD_HOST_MEMORY=0", NULL, NULL);
  tap_ok(says("OFFLOAD_HOST_MEMORY=0") && says("OFFLOAD_MODE=observe"),
         "no host memory at all is named with the mode that was meant");
  load("OFFLOAD_HOST_MEMORY=4KiB", "OFFLOAD_PIECE=16KiB", NULL);
  tap_ok(says("smaller than one piece"), "a budget below one piece is named");
  load("OFFLOAD_MODE=off", "OFFLOAD_STEP=cpu", "OFFLOAD_HOST_MEMORY=0");
  tap_ok(!config.problems[0], "off is always possible: nothing is said");
}

static void test_wear(void) {
  static const struct {
    const char *text;
    struct wear_limit limit;
  } good[] = {{"20TB", {.set = true, .bytes = 20000000000000}},
              {"20tb", {.set = true, .bytes = 20000000000000}},
              {"1PB", {.set = true, .bytes = 1000000000000000}},
              {"500GB", {.set = true, .bytes = 500000000000}},
              {"18TiB", {.set = true, .bytes = (uint64_t)18 << 40}},
              {"1PiB", {.set = true, .bytes = (uint64_t)1 << 50}},
              {"4096", {.set = true, .bytes = 4096}},
              {"90%", {.set = true, .percent = 90}},
              {"255%", {.set = true, .percent = 255}}};
  static const char *const bad[] = {"",      "0",     "0TB",     "0%",      "256%", "20T",
                                    "1.5TB", "20 TB", "-1TB",    "TB",      "%",    "90%%",
                                    "1EB",   "20TBW", "20000PB", "16385PiB"};
  size_t wrong = 0;
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    struct wear_limit limit = {0};
    const struct wear_limit *expected = &good[i].limit;
    if (!config_parse_wear(good[i].text, &limit) || !limit.set || limit.bytes != expected->bytes ||
        limit.percent != expected->percent) {
      wrong++;
      printf("# %s: %llu bytes, %u%%\n", good[i].text, (unsigned long long)limit.bytes,
             limit.percent);
    }
  }
  tap_ok(!wrong, "a wear limit is bytes, in which TB are 10^12, or a share of the rated endurance");
  wrong = 0;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    struct wear_limit limit;
    if (config_parse_wear(bad[i], &limit)) {
      wrong++;
      printf("# '%s' was taken\n", bad[i]);
    }
  }
  load("OFFLOAD_NVME_WEAR_LIMIT=0", "OFFLOAD_NVME=/mnt/a", NULL);
  tap_ok(!wrong && !config.nvme_wear_limit.set && says("OFFLOAD_NVME_WEAR_LIMIT=0 is ignored") &&
             says("20TB (10^12"),
         "no wear at all, more than can be, and other forms are refused with what to write");
}

static void test_drives(void) {
  load(NULL, NULL, NULL);
  tap_ok(!config.nvme && !config.nvme_limit.set && !config.nvme_wear_limit.set &&
             config.nvme_staging.bytes == 256u << 20 && config.nvme_checksum && !config.test_nvme &&
             !config.test_nvme_rung && !config.problems[0],
         "without variables no drive is named, and checksums are on");
  load("OFFLOAD_NVME=/mnt/a:/mnt/b", "OFFLOAD_NVME_LIMIT=1TiB", "OFFLOAD_NVME_WEAR_LIMIT=20TB");
  tap_ok(config.nvme && !strcmp(config.nvme, "/mnt/a:/mnt/b") &&
             config.nvme_limit.bytes == (uint64_t)1 << 40 &&
             config.nvme_wear_limit.bytes == 20000000000000 && !config.problems[0],
         "drives' directories, their limit and the wear limit are taken");
  load("OFFLOAD_NVME_STAGING=64MiB", "OFFLOAD_NVME_CHECKSUM=0", "OFFLOAD_TEST_NVME=read_eio=3");
  tap_ok(config.nvme_staging.bytes == 64u << 20 && !config.nvme_checksum && config.test_nvme &&
             !strcmp(config.test_nvme, "read_eio=3") && !config.problems[0],
         "drives' staging, checksums and faults are taken");
  char directory[2048], expected[8192];
  load("OFFLOAD_NVME=one:/mnt/b:two", "OFFLOAD_TEST_NVME_RUNG=threads", NULL);
  const char *here = getcwd(directory, sizeof directory) ? directory : "";
  snprintf(expected, sizeof expected, "%s/one:/mnt/b:%s/two", here, here);
  tap_ok(config.nvme && !strcmp(config.nvme, expected) && config.test_nvme_rung &&
             !strcmp(config.test_nvme_rung, "threads") && !config.problems[0],
         "relative directories count from where the program started");
  static const char *const bad[] = {":", "/mnt/a:", ":/mnt/a", "/mnt/a::/mnt/b"};
  size_t wrong = 0;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char entry[64];
    snprintf(entry, sizeof entry, "OFFLOAD_NVME=%s", bad[i]);
    load(entry, NULL, NULL);
    wrong += config.nvme || !says(entry) || !says("separated by single colons");
  }
  tap_ok(!wrong, "an empty directory in the list is refused with what to write");
  load("OFFLOAD_NVME_LIMIT=1GiB", NULL, NULL);
  tap_ok(says("OFFLOAD_NVME_LIMIT has no effect without OFFLOAD_NVME"),
         "a limit of drives without drives is named");
  load("OFFLOAD_NVME=/mnt/a", "OFFLOAD_STEP=direct", "OFFLOAD_NVME_LIMIT=0");
  tap_ok(says("OFFLOAD_NVME has no effect with OFFLOAD_STEP=direct") &&
             says("OFFLOAD_NVME_LIMIT=0 lets nothing go to drives") && !config.nvme,
         "drives that can hold nothing are named");
  load("OFFLOAD_NVME=/mnt/a", "OFFLOAD_HOST_MEMORY=0", NULL);
  tap_ok(!config.problems[0], "with drives, no host memory at all is no mistake");
}

static void test_many_problems(void) {
  static char entries[100][64];
  char *environment[101] = {NULL};
  for (size_t i = 0; i < 100; i++) {
    snprintf(entries[i], sizeof entries[i], "OFFLOAD_UNKNOWN_%zu=1", i);
    environment[i] = entries[i];
  }
  config_free(&config);
  config_load(&config, environment);
  const char *last = strrchr(config.problems, '\n');
  const char *more = "more is wrong";
  tap_ok(strlen(config.problems) < sizeof config.problems && last &&
             !strncmp(last + 1, more, strlen(more)) && strstr(config.problems, more) == last + 1,
         "more problems than fit end in one line that says so");
}

/* What was typed, and what the error says to write. */
static void test_meant(void) {
  static const char *const pairs[][2] = {{"20GB", "write 20GiB"},
                                         {"20G", "write 20GiB"},
                                         {"20g", "write 20GiB"},
                                         {"20 GiB", "write 20GiB"},
                                         {"512m", "write 512MiB"},
                                         {"4kb", "write 4KiB"},
                                         {"1.5GiB", "write 1536MiB"},
                                         {"1,5 TB", "write 1536GiB"},
                                         {"0.5KiB", "write 512B"},
                                         {"80 %", "write 80%"},
                                         {"999999999TB", "512MiB"},
                                         {"lots", "512MiB"},
                                         {"20GX", "512MiB"},
                                         {"20Gigabytes", "512MiB"},
                                         {"-20GB", "512MiB"},
                                         {"99999999999999999999G", "512MiB"},
                                         {"G", "512MiB"},
                                         {"101 %", "512MiB"}};
  size_t wrong = 0;
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
    char entry[64];
    snprintf(entry, sizeof entry, "OFFLOAD_HOST_MEMORY=%s", pairs[i][0]);
    load(entry, NULL, NULL);
    if (config.host_memory.set || !says(pairs[i][1])) {
      printf("# %s: %s\n", entry, config.problems);
      wrong++;
    }
  }
  load("OFFLOAD_PIECE=20%", NULL, NULL);
  wrong += !says("write 20GiB, 512MiB or plain bytes");
  tap_ok(!wrong, "a wrong size is told the right form of what was typed, or the grammar");
}

static void test_strict(void) {
  char mode[] = "OFFLOAD_MODE=fll", unknown[] = "OFFLOAD_MOED=full", size[] = "OFFLOAD_PIECE=2MB";
  char *settings[] = {mode, unknown, size, NULL};
  config_free(&config);
  config_check(&config, settings);
  tap_ok(says("OFFLOAD_MODE=fll: write one of full") && says("did you mean OFFLOAD_MODE?") &&
             says("OFFLOAD_PIECE=2MB: write 2MiB") && !says("ignored") && !says("stays"),
         "settings that must be good: nothing is called ignored");
}

static void test_callers(void) {
  load("OFFLOAD_CALLERS=libfoo,libbar.so.2,,train", NULL, NULL);
  tap_ok(config_caller_allowed(&config, "/usr/lib/libfoo.so") &&
             config_caller_allowed(&config, "/opt/x/libfoo.so.1.2") &&
             config_caller_allowed(&config, "libbar.so") &&
             config_caller_allowed(&config, "/home/u/train"),
         "callers are named by base name up to .so");
  tap_ok(!config_caller_allowed(&config, "/usr/lib/libfoo2.so") &&
             !config_caller_allowed(&config, "/usr/lib/libfo.so") &&
             !config_caller_allowed(&config, "/train/other") &&
             !config_caller_allowed(&config, "") && !config_caller_allowed(&config, NULL),
         "other modules are not");
  load("OFFLOAD_CALLERS=*", NULL, NULL);
  tap_ok(config_caller_allowed(&config, "/any/thing"), "* means every caller");
  load(NULL, NULL, NULL);
  tap_ok(!config_caller_allowed(&config, "/usr/lib/libfoo.so"), "unset, none is named");
}

int main(void) {
  test_sizes();
  test_values();
  test_problems();
  test_combinations();
  test_wear();
  test_drives();
  test_many_problems();
  test_meant();
  test_strict();
  test_callers();
  config_free(&config);
  return tap_done();
}
