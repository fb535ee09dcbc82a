/* The report: valid against policy/report.schema.json whatever the strings hold, replacing files whole and nothing else; counters, rows and
   reasons; the lines on stderr. */
#include "policy/report.h"
#include "policy/report_file.h"
#include "tests/lib/tap.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static char directory[] = "/tmp/policy_report.XXXXXX";
static char path[64];
static struct config config;

static void configure(enum config_log log, const char *report_path) {
  config_free(&config);
  config_load(&config, NULL);
  config.log = log;
  config.report = report_path ? strdup(report_path) : NULL;
}

/* A process with that report, and nothing said so far. */
static void begin(const char *report_path) {
  report_reset();
  configure(LOG_QUIET, report_path);
  report_configure(&config);
}

/* Runs `action` with stderr going to a file; returns what was written. */
static const char *stderr_of(void (*action)(void)) {
  static char text[8192];
  char name[64];
  snprintf(name, sizeof name, "%s/stderr", directory);
  const int file = open(name, O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600),
            saved = dup(STDERR_FILENO);
  fflush(stderr);
  dup2(file, STDERR_FILENO);
  action();
  dup2(saved, STDERR_FILENO);
  const ssize_t bytes = pread(file, text, sizeof text - 1, 0);
  text[bytes > 0 ? bytes : 0] = 0;
  close(saved);
  close(file);
  return text;
}

static const char *contents(const char *file) {
  static char text[65536];
  const int fd = open(file, O_RDONLY);
  const ssize_t bytes = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
  text[bytes > 0 ? bytes : 0] = 0;
  if (fd >= 0)
    close(fd);
  return text;
}

static bool valid(void) {
  char command[256];
  snprintf(command, sizeof command, "python3 tests/lib/validate.py policy/report.schema.json %s",
           path);
  fflush(stdout);
  return system(command) == 0;
}

static void finish(void) {
  report_finish(&config);
}

static void fill_function(struct report_function *f) {
  report_set(f->generation, sizeof f->generation, "torch 2.11+");
  report_set(f->decay, sizeof f->decay, "fused");
  report_set(f->mode, sizeof f->mode, "cpu");
  atomic_store(&f->launches, 12);
  atomic_store(&f->launches_cpu, 11);
}

static void test_file(void) {
  configure(LOG_QUIET, path);
  report_configure(&config);
  tap_ok(!*stderr_of(finish) && valid(), "a report of nothing is valid, and quiet");
  report_add(steps, 84);
  report_add(link_bytes_down, UINT64_MAX - 5);
  fill_function(report_function_new("torch_fused_adamw", "AdamW fp32", 3336));
  fill_function(report_function_new("torch_fused_adamw", "AdamW fp32", 3336));
  report_reason("plain");
  report_reason("%s", "quote \" backslash \\ newline \n tab \t bell \a delete \x7f");
  report_reason("%s", "UTF-8 \xc3\xa4 \xe2\x82\xac \xf0\x9f\x90\xa2");
  report_reason("%s", "broken \xff \xc3( \xed\xa0\x80 \xc0\xaf \xf4\x90\x80\x80 end \xe2\x82");
  report.tier = "host_numa";
  report.budget_bytes = 1u << 30;
  snprintf(report.budget_limited_by, sizeof report.budget_limited_by, "MemAvailable");
  config.callers = strdup("a\"b");
  config.host_memory = (struct config_size){.percent = 80, .set = true};
  config.report = config.report ? config.report : strdup(path);
  finish();
  tap_ok(valid(), "a report with rows, any bytes in strings and shares is valid");
  const char *text = contents(path);
  tap_ok(strstr(text, "\"steps\": 84") && strstr(text, "18446744073709551610") &&
             strstr(text, "\"host_memory\": \"80%\"") &&
             strstr(text, "\"limited_by\": "
                          "\"MemAvailable\"") &&
             strstr(text, "\"launches_cpu\": 11"),
         "counters, settings, budget and rows stand in it");
  tap_ok(strstr(text, "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x90\xa2") &&
             strstr(text, "broken \\ufffd \\ufffd( \\ufffd\\ufffd\\ufffd \\ufffd\\ufffd") &&
             strstr(text, "\\u0007") && !strchr(text, '\a'),
         "UTF-8 stays, what is none becomes a replacement character, controls are escaped");
  char command[128];
  snprintf(command, sizeof command, "ls %s | grep -q tmp", directory);
  tap_ok(system(command) != 0, "no temporary file is left");
}

static void test_path(void) {
  char result[64], expected[64], shortest[4];
  snprintf(expected, sizeof expected, "a%%b/%d.%d%%", (int)getpid(), (int)getpid());
  tap_ok(report_file_path("a%b/%p.%p%", result, sizeof result) && strcmp(result, expected) == 0,
         "the two characters percent and p in the path become the process's number, others stay");
  tap_ok(!report_file_path("long", shortest, sizeof shortest) &&
             report_file_path("fit", shortest, sizeof shortest) && !strcmp(shortest, "fit"),
         "a path that is too long is refused");
}

/* While the program runs: what is said only at the end is not said yet. */
static void test_now(void) {
  char now[96];
  snprintf(now, sizeof now, "%s/now.json", directory);
  report_reset();
  configure(LOG_QUIET, NULL);
  fill_function(report_function_new("torch_fused_adamw", "AdamW fp32", 3336));
  atomic_store(&report.functions[0].elements, 4096);
  atomic_store(&report.functions[0].elements_host, 1024);
  report_add(moved_out_bytes, 65536);
  report_add(moved_home_bytes, 16384);
  tap_ok(!report_write(&config, now) && strstr(contents(now), "\"elements\": 4096") &&
             strstr(contents(now), "\"elements_host\": 1024") &&
             strstr(contents(now), "\"moved_out_bytes\": 65536") &&
             strstr(contents(now), "\"moved_home_bytes\": 16384") && !report.reason_count,
         "a report written in between has the counters so far and none of the end's reasons");
  tap_ok(report_write(&config, "/nowhere/at/all/report.json") == ENOENT,
         "one that can't be written is an errno");
}

/* Rows change and reports of one path are written by several threads at once. */
static void *rewrite(void *number) {
  struct report_function *row = &report.functions[0];
  char *words = number;
  for (int i = 0; i < 500; i++) {
    report_set(row->why, sizeof row->why, "%s %s", words, words);
    if (report_write(&config, path) != 0)
      words[0] = '-';
  }
  return NULL;
}

static void test_at_once(void) {
  static char words[4][100];
  pthread_t threads[4];
  report_reset();
  configure(LOG_QUIET, path);
  fill_function(report_function_new("torch_fused_adamw", "AdamW fp32", 3336));
  for (int i = 0; i < 4; i++) {
    memset(words[i], "abcd"[i], sizeof words[i] - 1);
    pthread_create(&threads[i], NULL, rewrite, words[i]);
  }
  for (int i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
  bool right = valid();
  for (int i = 0; i < 4; i++)
    right &= words[i][0] == "abcd"[i];
  const char *why = report.functions[0].why;
  tap_ok(right && strlen(why) == 199 && strspn(why, (char[]){why[0], ' ', 0}) == 199,
         "rows and reports that several threads write at once are whole");
  tap_ok(!report_set(report.functions[0].mode, 4, "cpu") &&
             report_set(report.functions[0].mode, 4, "stream") &&
             !strcmp(report.functions[0].mode, "str"),
         "a text is cut to fit, and is news when it was another");
}

static void test_unwritable(void) {
  begin("/nowhere/at/all/report.json");
  const char *line = stderr_of(finish);
  tap_ok(strstr(line, "OFFLOAD_REPORT=/nowhere/at/all/report.json") &&
             strstr(line, "No such file") && strchr(line, '\n') == line + strlen(line) - 1,
         "a report that can't be written is one line with variable, value, reason and remedy");
  char locked[64];
  snprintf(locked, sizeof locked, "%s/is_a_directory", directory);
  mkdir(locked, 0700);
  begin(locked);
  line = stderr_of(finish);
  char temporary[128];
  snprintf(temporary, sizeof temporary, "ls %s | grep -q tmp", directory);
  tap_ok(strstr(line, "is_a_directory") && system(temporary) != 0,
         "when the rename fails the temporary file is removed");
}

/* Whether the file holds one whole report. */
static bool holds_report(const char *file) {
  const char *text = contents(file);
  return strstr(text, "\"schema\": 1") && strstr(text, "\"reasons\": [");
}

static void test_links(void) {
  char target[96], link[96], chain[96], nowhere[96], lost[96];
  struct stat status;
  snprintf(target, sizeof target, "%s/elsewhere/target.json", directory);
  snprintf(link, sizeof link, "%s/link.json", directory);
  snprintf(nowhere, sizeof nowhere, "%s/nowhere.json", directory);
  snprintf(lost, sizeof lost, "%s/lost", directory);
  *strrchr(target, '/') = 0;
  mkdir(target, 0700);
  target[strlen(target)] = '/';
  close(open(target, O_WRONLY | O_CREAT, 0600));
  begin(link);
  tap_ok(!symlink("elsewhere/target.json", link) && !*stderr_of(finish) && holds_report(target) &&
             !lstat(link, &status) && S_ISLNK(status.st_mode),
         "behind a link the target is replaced, and the link stays");
  snprintf(chain, sizeof chain, "%s/chain.json", directory);
  begin(chain);
  tap_ok(!symlink(link, chain) && !truncate(target, 0) && !*stderr_of(finish) &&
             holds_report(target) && !lstat(link, &status) && S_ISLNK(status.st_mode),
         "behind two links, the first of them absolute, too");
  begin(nowhere);
  tap_ok(!symlink(lost, nowhere) && strstr(stderr_of(finish), "could not be written") &&
             !lstat(nowhere, &status) && S_ISLNK(status.st_mode) && access(lost, F_OK),
         "a link that leads nowhere is said, and stays");
}

static void test_special_files(void) {
  char fifo[96], node[96];
  struct stat status;
  snprintf(fifo, sizeof fifo, "%s/fifo", directory);
  snprintf(node, sizeof node, "%s/null", directory);
  begin(fifo);
  tap_ok(!mkfifo(fifo, 0600) && strstr(stderr_of(finish), "could not be written"),
         "a FIFO that nobody reads is an error, not a wait");
  const int reader = open(fifo, O_RDONLY | O_NONBLOCK);
  char text[65536] = "";
  const char *line = stderr_of(finish);
  const ssize_t bytes = read(reader, text, sizeof text - 1);
  tap_ok(!*line && bytes > 0 && strstr(text, "\"schema\": 1") && !stat(fifo, &status) &&
             S_ISFIFO(status.st_mode),
         "a FIFO is written, and stays one");
  begin(fifo);
  const int writer = open(fifo, O_WRONLY | O_NONBLOCK);
  while (write(writer, text, sizeof text) > 0)
    ;
  alarm(20); /* a wait without end */
  tap_ok(errno == EAGAIN && strstr(stderr_of(finish), "could not be written"),
         "a FIFO whose reader has stopped is an error, not a wait");
  close(writer);
  alarm(0);
  close(reader);
  begin(node);
  if (mknod(node, S_IFCHR | 0600, makedev(1, 3)))
    snprintf(node, sizeof node, "/dev/null"), begin(node);
  tap_ok(!*stderr_of(finish) && !stat(node, &status) && S_ISCHR(status.st_mode),
         "a device node is written, and stays one");
  begin("/dev/full");
  tap_ok(strstr(stderr_of(finish), "/dev/full could not be written") != NULL,
         "a device that takes nothing is told");
  begin("/dev/stderr");
  line = stderr_of(finish);
  tap_ok(strstr(line, "\"schema\": 1") != NULL, "/dev/stderr gets the report behind what was said");
}

static void finish_with_broken_output(void) {
  int ends[2];
  if (pipe(ends))
    return;
  fflush(stdout);
  const int saved = dup(STDOUT_FILENO);
  dup2(ends[1], STDOUT_FILENO);
  close(ends[0]);
  finish();
  dup2(saved, STDOUT_FILENO);
  close(saved);
  close(ends[1]);
}

/* SIGPIPE would end this program. */
static void test_lost_reader(void) {
  begin("/dev/stdout");
  tap_ok(strstr(stderr_of(finish_with_broken_output), "could not be written (Broken pipe)") != NULL,
         "a pipe whose reader went away is told, and doesn't end the program");
}

/* "report in" only when it is there. */
static void test_announcement(void) {
  report_reset();
  configure(LOG_NORMAL, "/nowhere/report.json");
  report_configure(&config);
  const char *line = stderr_of(finish);
  tap_ok(strstr(line, "could not be written") && !strstr(line, "report in"),
         "a report that wasn't written is not announced");
  configure(LOG_NORMAL, path);
  char announced[96];
  snprintf(announced, sizeof announced, "; report in %s\n", path);
  tap_ok(strstr(stderr_of(finish), announced) != NULL, "one that was is");
}

static void test_end_reasons(void) {
  report_reset();
  configure(LOG_QUIET, NULL);
  report_caller_refused("/opt/lib/liballocator.so.1");
  report_caller_refused("/opt/lib/libsecond.so");
  report_small_allocation(3 << 10);
  report_small_allocation(1 << 10);
  report_add(allocations_seen, 4);
  report_add(steps, 2);
  finish();
  finish();
  tap_ok(report.reason_count == 1 && strstr(report.reasons[0], "OFFLOAD_CALLERS=liballocator.so.1"),
         "memory that only an unknown module asked for: one reason, with the module's name");
  report_reset();
  report_small_allocation(3 << 10);
  report_add(steps, 2);
  finish();
  tap_ok(
      report.reason_count == 1 &&
          strstr(report.reasons[0], "OFFLOAD_MIN_ALLOCATION (2.00 MiB; the largest was 3.00 KiB"),
      "allocations that are all too small: a reason with the variable and the largest");
  report_reset();
  report_caller_refused("libother.so");
  report_small_allocation(1);
  report_add(allocations_seen, 4);
  report_add(ranges, 1);
  report_add(steps, 2);
  finish();
  tap_ok(!report.reason_count, "neither when there were ranges");
  config.mode = MODE_PRESSURE;
  finish();
  tap_ok(report.reason_count == 1 && strstr(report.reasons[0], "OFFLOAD_MODE=pressure: the device"),
         "with OFFLOAD_MODE=pressure on a device that never ran short: a reason that says so");
  report_reset();
  report_add(ranges, 1);
  report_add(steps, 2);
  report_moved(1 << 20);
  finish();
  tap_ok(!report.reason_count, "but not when state moved");
  config.mode = MODE_FULL;
}

static void test_exit_line(void) {
  report_reset();
  configure(LOG_NORMAL, NULL);
  tap_ok(!*stderr_of(finish), "before cuInit succeeded no line is written");
  report_reset();
  report_configure(&config);
  tap_ok(!*stderr_of(finish) && !report.reason_count,
         "a program that asked for no memory gets none");
  report_small_allocation(1);
  tap_ok(strstr(stderr_of(finish), "nothing was moved") != NULL,
         "one that asked for a byte gets one");
  report_reset();
  report_configure(&config);
  report_reason("no known Adam kernel was launched");
  tap_ok(!strcmp(stderr_of(finish),
                 "liboffload: nothing was moved: no known Adam kernel was launched; no fused Adam "
                 "step was recognised; PyTorch: fused=True\n"),
         "without a step the line says so, what PyTorch needs, and the reasons");
  report_add(steps, 84);
  tap_ok(strstr(stderr_of(finish), "no optimizer state was moved in 84 steps: no known") != NULL,
         "with steps but nothing moved too");
  report_reset();
  report_configure(&config);
  report_add(ranges, 1);
  report_add(steps, 1);
  tap_ok(strstr(stderr_of(finish),
                "no optimizer state was moved in 1 step: state moves in the second step") != NULL,
         "after a single step the line says that state moves in the second");
  report_reset();
  report_configure(&config);
  report_add(steps, 2);
  report_moved((int64_t)1 << 20);
  report_moved(-((int64_t)1 << 20));
  config.nvme = "/mnt/a";
  tap_ok(strstr(stderr_of(finish), "; nothing on drives, which take what is beyond the budget\n"),
         "drives that were named and not needed are said to hold nothing");
  report.kept_bytes = 3 << 20;
  report.kept = KEPT_SHARED;
  tap_ok(strstr(stderr_of(finish),
                "; nothing on drives, which take no piece that is also used by "
                "others, or whose partners stay: 3.00 MiB stays on the device\n"),
         "drives that take no piece are said to, with what stays");
  report.kept = KEPT_FULL;
  tap_ok(strstr(stderr_of(finish), "; nothing on drives, which have no room ("),
         "and so are drives without room");
  report.kept_bytes = 0;
  report_notice("no state goes to drives: OFFLOAD_NVME: /mnt/a: no such directory");
  tap_ok(!strstr(stderr_of(finish), "nothing on drives"), "unless a line has said why");
  config.nvme = NULL;
  report_reset();
  report_configure(&config);
  report_add(steps, 84);
  report_on_drives((int64_t)3 << 20);
  report_on_drives(-((int64_t)1 << 20));
  report_add(drive_written_bytes, 12 << 20);
  const char *line = stderr_of(finish);
  tap_ok(strstr(line, "liboffload: 0 bytes of optimizer state was on the host, budget ") == line &&
             strstr(line, "; 3.00 MiB on drives, 12.0 MiB written there\n"),
         "state that was on drives alone was moved, and the line says how much");
  report_moved((int64_t)812 << 20);
  report_moved(-((int64_t)812 << 20));
  report_add(elements_cpu, 960);
  report_add(elements_direct, 40);
  report_add(refusals, 3);
  report_add(provisional_bytes, 5 << 20);
  line = stderr_of(finish);
  tap_ok(strstr(line, "liboffload: 812 MiB of optimizer state was on the host, budget ") == line &&
             strstr(line, "84 steps by cpu 96%, direct 4%;") &&
             strstr(line, "5.00 MiB began there because the device was full") &&
             strstr(line, "3 launches refused by the proof"),
         "else the most that was on the host comes first, then budget, modes' parts and refusals");
  configure(LOG_QUIET, NULL);
  report_configure(&config);
  tap_ok(!*stderr_of(finish), "OFFLOAD_LOG=quiet silences it");
}

static void say_verbose(void) {
  report_reason("a verbose reason");
  report_reason("a verbose reason");
}

static void say_long(void) {
  char text[5000];
  memset(text, 'x', sizeof text);
  text[sizeof text - 1] = 0;
  report_line(LOG_NORMAL, "%s", text);
}

static void *add(void *unused) {
  (void)unused;
  for (int i = 0; i < 10000; i++) {
    report_add(proofs, 1);
    report_moved(2);
    report_moved(-2);
    report_reason("reason %d", i % 8);
  }
  return NULL;
}

static void test_lists(void) {
  report_reset();
  configure(LOG_VERBOSE, path);
  report_configure(&config);
  const char *text = stderr_of(say_verbose);
  tap_ok(!strcmp(text, "liboffload: a verbose reason\n") && report.reason_count == 1,
         "a reason is kept and, when verbose, printed once");
  text = stderr_of(say_long);
  tap_ok(strlen(text) < 1100 && text[strlen(text) - 1] == '\n', "a long line is cut, and ends");
  report_reset();
  pthread_t threads[4];
  for (int i = 0; i < 4; i++)
    pthread_create(&threads[i], NULL, add, NULL);
  for (int i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
  tap_ok(report.totals.proofs == 40000 && !report.totals.moved_bytes &&
             report.totals.moved_bytes_peak >= 2 && report.totals.moved_bytes_peak <= 8 &&
             report.reason_count == 8,
         "counters, the peak and reasons are right under four threads");
  size_t rows = 0;
  while (report_function_new("family", "name", 0))
    rows++;
  for (int i = 0; i < 100; i++)
    report_reason("many %d", i);
  tap_ok(rows == REPORT_FUNCTIONS && report.reason_count == REPORT_REASONS &&
             strstr(report.reasons[8], "more than 64 functions"),
         "full tables refuse more, and the rows' end is a reason");
  configure(LOG_QUIET, path);
  report_configure(&config);
  finish();
  tap_ok(valid(), "a report with full tables is valid");
  report_reset();
  tap_ok(!report.reason_count && !report.totals.proofs && !report.function_count,
         "after a reset nothing is known");
}

/* The validator itself must refuse: a wrong type, a missing key, one too many. */
static void test_validator(void) {
  static const char *const spoils[] = {
      "d['totals']['steps']='84'", "del d['totals']['steps']",          "d['totals']['new_one']=1",
      "d['tier']='moon'",          "d['settings']['host_memory']='80'", "d['schema']=2"};
  report_reset();
  configure(LOG_QUIET, path);
  report_configure(&config);
  size_t refused = 0;
  for (size_t i = 0; i < sizeof spoils / sizeof *spoils; i++) {
    char command[512];
    finish();
    snprintf(command, sizeof command,
             "python3 -c \"import json; d=json.load(open('%s')); %s; json.dump(d,open('%s','w'))\"",
             path, spoils[i], path);
    refused += !system(command) && !valid();
  }
  tap_ok(refused == sizeof spoils / sizeof *spoils, "the schema refuses spoilt reports");
}

int main(void) {
  if (!mkdtemp(directory))
    return 1;
  snprintf(path, sizeof path, "%s/report.json", directory);
  test_file();
  test_path();
  test_unwritable();
  test_links();
  test_special_files();
  test_lost_reader();
  test_now();
  test_at_once();
  test_announcement();
  test_end_reasons();
  test_exit_line();
  test_lists();
  test_validator();
  config_free(&config);
  char command[64];
  snprintf(command, sizeof command, "rm -r %s", directory);
  tap_ok(!system(command), "nothing is left behind");
  return tap_done();
}
