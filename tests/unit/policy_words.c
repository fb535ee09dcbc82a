/* Figures in words: three of them, rounded as printf rounds, and with a point whatever the program's locale; what is a character. */
#include "policy/metrics.h"
#include "policy/report.h"
#include "policy/report_policy.h"
#include "policy/words.h"
#include "tests/lib/tap.h"
#include <errno.h>
#include <locale.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static bool is(const char *text, const char *expected) {
  if (strcmp(text, expected) != 0)
    printf("# %s, not %s\n", text, expected);
  return !strcmp(text, expected);
}

static const double gib = 1024.0 * 1024 * 1024;

static void test_figures(const char *where) {
  char t[WORDS_BYTES];
  tap_ok(is(words_bytes(0, t), "0") && is(words_bytes(1023, t), "1023 bytes") &&
             is(words_bytes(1.5 * gib, t), "1.50 GiB") &&
             is(words_bytes(1.125 * gib, t), "1.12 GiB") &&
             is(words_bytes(1.375 * gib, t), "1.38 GiB") &&
             is(words_bytes(9.999 * gib, t), "10.0 GiB") &&
             is(words_bytes(812.4 * 1024 * 1024, t), "812 MiB") &&
             is(report_size_text(0, t), "0 bytes") && is(report_size_text(3u << 19, t), "1.50 MiB"),
         "bytes have three figures%s", where);
  tap_ok(is(words_seconds(12.34e-6, t), "12.3 us") && is(words_seconds(0.345, t), "345 ms") &&
             is(words_seconds(1.2, t), "1.20 s") && is(words_rate(24.06e9, t), "24.1 GB/s") &&
             is(words_rate(-1.25e9, t), "-1.25 GB/s") && is(words_share(0.0364, t), "3.6 %") &&
             is(words_share(0.125, t), "12 %") && is(words_share(0.0999, t), "10.0 %"),
         "so have times, rates and shares%s", where);
}

static bool has(const char *text, const char *line) {
  return strstr(text, line) != NULL;
}

static void test_metrics(const char *where) {
  static char text[1 << 16], path[] = "/tmp/policy_words.XXXXXX";
  struct config config;
  config_load(&config, NULL);
  const int file = mkstemp(path);
  if (file >= 0)
    close(file);
  config.metrics = path;
  report_step(&(struct report_step){.step = 3,
                                    .way = "cpu",
                                    .step_ns = 1500000001,
                                    .optimizer_ns = 500000000,
                                    .stay_ns = 250000000});
  metrics_write(&config, -1, true);
  FILE *written = fopen(path, "r");
  if (written) {
    text[fread(text, 1, sizeof text - 1, written)] = 0;
    (void)fclose(written);
  }
  unlink(path);
  tap_ok(has(text, "\"} 1.500000001\n") && has(text, "\"} 0.500000000\n") &&
             has(text, "\"} 0.250000000\n") && has(text, "\noffload_move_seconds_total{"),
         "metrics' seconds have a point and nine figures behind it%s", where);
}

/* A locale with a comma, where such a one can be made. */
static bool comma(void) {
  char tree[] = "/tmp/policy_locale.XXXXXX", command[400], number[16];
  if (!mkdtemp(tree))
    return false;
  snprintf(
      command, sizeof command,
      "cd %s && printf 'LC_NUMERIC\\ndecimal_point \",\"\\nthousands_sep \"\"\\ngrouping -1\\n"
      "END LC_NUMERIC\\n' >comma && printf '<code_set_name> ASCII\\nCHARMAP\\n<U0000>..<U007F> "
      "/x00 ALL\\nEND CHARMAP\\n' >ascii && "
      "localedef -c --no-archive -f ./ascii -i ./comma ./made >log 2>&1",
      tree);
  fflush(stdout);
  (void)!system(command);
  setenv("LOCPATH", tree, 1);
  const bool set = setlocale(LC_NUMERIC, "made") || setlocale(LC_NUMERIC, "de_DE.UTF-8");
  snprintf(command, sizeof command, "rm -rf %s", tree);
  (void)!system(command);
  snprintf(number, sizeof number, "%.1f", 1.5);
  return set && is(number, "1,5");
}

static void test_characters(void) {
  char t[16];
  tap_ok(words_character("a") == 1 && words_character("\xc3\xa4") == 2 &&
             words_character("\xe2\x82\xac") == 3 && words_character("\xf0\x9f\x98\x80") == 4,
         "a character of UTF-8 has one to four bytes");
  tap_ok(!words_character("\x80") && !words_character("\xc0\xaf") && !words_character("\xc3") &&
             !words_character("\xe0\x80\xaf") && !words_character("\xed\xa0\x80") &&
             !words_character("\xf0\x80\x80\x80") && !words_character("\xf4\x90\x80\x80") &&
             !words_character("\xf5\x80\x80\x80") && !words_character("\xe2\x82"),
         "overlong forms, surrogates, what is cut off and what is beyond Unicode are none");
  tap_ok(is(words_plain("a\x1b[m\xc2\x9b\xff", t, sizeof t), "a?[m??"),
         "what a terminal would obey becomes a question mark");
}

/* The C library's, which what is written at exit may not call. */
static void test_of_the_c_library(void) {
  enum { ERRORS = 134 };
  const uint64_t day_s = 86400, most_s = 200 * 366 * day_s;
  char text[WORDS_BYTES], theirs[64];
  bool same = true;
  for (uint64_t seconds = 0; seconds < most_s && same; seconds += day_s - 7) {
    const time_t time = (time_t)seconds;
    struct tm utc;
    strftime(theirs, sizeof theirs, "%Y-%m-%dT%H:%M:%S.042Z", gmtime_r(&time, &utc));
    same = is(words_time(seconds * 1000 + 42, text), theirs);
  }
  tap_ok(same, "every day of two centuries is the C library's");
  same = true;
  for (int error = 1; error < ERRORS && same; error++) {
    snprintf(theirs, sizeof theirs, "error %d", error);
    const char *words = words_error(error, text);
    same = !strcmp(words, theirs) || is(words, strerror(error));
  }
  tap_ok(same && is(words_error(ENOSPC, text), "No space left on device"),
         "errors are in its words, or a number");
}

int main(void) {
  test_of_the_c_library();
  test_figures("");
  test_metrics("");
  test_characters();
  if (comma()) {
    test_figures(", in a locale with a comma, too");
    test_metrics(", in a locale with a comma, too");
  } else {
    printf("# no locale with a comma can be had here\n");
  }
  return tap_done();
}
