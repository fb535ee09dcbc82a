/* See observed.h. A report has "observed" where optimizer steps were seen (report.schema.json); what its process would move is added up,
   what a step would cost is that of the process that would pay the most, advice is given once. */
#define _GNU_SOURCE
#include "command.h"
#include "observed.h"
#include "page_read.h"
#include "words.h"
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SENTENCES_MOST = 8, SENTENCE_BYTES = 512 };

struct sum {
  unsigned reports, observed;
  double state_bytes, move_bytes, exposed_ns, step_ns;
  char way[16], rates[16];
  unsigned sentence_count;
  char sentences[SENTENCES_MOST][SENTENCE_BYTES]; /* advice, each once; without any, reasons */
};

/* The pattern of all paths that "%p" may become. */
static void pattern_of(const char *report, char *pattern, size_t bytes) {
  size_t used = 0;
  for (; *report && used + 3 < bytes; report++)
    if (!strncmp(report, "%p", 2)) {
      pattern[used++] = '*';
      report++;
    } else {
      if (strchr("*?[]\\", *report))
        pattern[used++] = '\\';
      pattern[used++] = *report;
    }
  pattern[used] = 0;
}

bool observed_begin(struct observed *observed, const char *report) {
  *observed = (struct observed){.directory = ""};
  clock_gettime(CLOCK_REALTIME, &observed->begun);
  if (!report) {
    const char *temporary = getenv("TMPDIR");
    char setting[PATH_MAX + 32];
    snprintf(observed->directory, sizeof observed->directory - 32,
             "%s/" OBSERVED_DIRECTORY "XXXXXX",
             temporary && *temporary == '/' ? temporary : "/tmp");
    if (!mkdtemp(observed->directory)) {
      say("no directory for reports (%s: %s): set TMPDIR, or name a file with --report",
          observed->directory, strerror(errno));
      observed->directory[0] = 0;
      return false;
    }
    snprintf(setting, sizeof setting, "%s/%%p.json", observed->directory);
    if (setenv("OFFLOAD_REPORT", setting, 1))
      return false;
    pattern_of(setting, observed->pattern, sizeof observed->pattern);
    return true;
  }
  pattern_of(report, observed->pattern, sizeof observed->pattern);
  return true;
}

static void add_sentence(struct sum *sum, const char *text) {
  char plain[SENTENCE_BYTES];
  words_plain(text, plain, sizeof plain);
  for (unsigned i = 0; i < sum->sentence_count; i++)
    if (!strcmp(sum->sentences[i], plain))
      return;
  if (*plain && sum->sentence_count < SENTENCES_MOST)
    memcpy(sum->sentences[sum->sentence_count++], plain, sizeof plain);
}

/* Advice is objects with a text, reasons are texts. */
static void add_sentences(struct sum *sum, const json_t *list) {
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *one = json_array_get(list, i);
    const char *text = json_is_object(one) ? json_string_value(json_object_get(one, "text"))
                                           : json_string_value(one);
    if (text)
      add_sentence(sum, text);
  }
}

static double number_at(const json_t *root, const char *path) {
  double number = 0;
  return view_number(root, path, &number) ? number : 0;
}

static void add_report(struct sum *sum, const json_t *root) {
  sum->reports++;
  add_sentences(sum, view_at(root, "advice"));
  if (number_at(root, "observed.state_bytes") <= 0)
    return;
  sum->observed++;
  sum->state_bytes += number_at(root, "observed.state_bytes");
  sum->move_bytes += number_at(root, "observed.move_bytes");
  const double exposed_ns = number_at(root, "observed.exposed_ns");
  if (*view_text(root, "observed.way") && (!sum->way[0] || exposed_ns > sum->exposed_ns)) {
    sum->exposed_ns = exposed_ns;
    sum->step_ns = number_at(root, "observed.step_ns");
    snprintf(sum->way, sizeof sum->way, "%.15s", view_text(root, "observed.way"));
    snprintf(sum->rates, sizeof sum->rates, "%.15s", view_text(root, "observed.rates"));
  }
}

/* The job's reports: written since it began. A file system's clock may be a little behind. */
static void read_reports(const struct observed *observed, struct sum *sum, bool reasons) {
  glob_t found = {0};
  if (glob(observed->pattern, 0, NULL, &found)) {
    globfree(&found);
    return;
  }
  for (size_t i = 0; i < found.gl_pathc; i++) {
    struct report_view view;
    struct stat at;
    char problem[512];
    if (stat(found.gl_pathv[i], &at) || !S_ISREG(at.st_mode) ||
        at.st_mtim.tv_sec + 1 < observed->begun.tv_sec)
      continue;
    if (!view_read(&view, found.gl_pathv[i], problem, sizeof problem)) {
      say("%s", problem);
      continue;
    }
    if (reasons)
      add_sentences(sum, view_at(view.root, "reasons"));
    else
      add_report(sum, view.root);
    view_free(&view);
  }
  globfree(&found);
}

static void remove_reports(const struct observed *observed) {
  glob_t found = {0};
  if (!glob(observed->pattern, 0, NULL, &found))
    for (size_t i = 0; i < found.gl_pathc; i++)
      unlink(found.gl_pathv[i]);
  globfree(&found);
  if (rmdir(observed->directory) && errno != ENOENT)
    say("%s stays: %s", observed->directory, strerror(errno));
}

static void say_cost(const struct sum *sum) {
  char exposed[WORDS_BYTES], step[WORDS_BYTES], longer[WORDS_BYTES], share[WORDS_BYTES];
  words_seconds(sum->exposed_ns / 1e9, exposed);
  if (!sum->way[0])
    say("observed: what that would cost is not foretold yet: let it run for more steps");
  else if (sum->step_ns <= 0)
    say("observed: a step would get %s longer, by `%s` and %s rates", exposed, sum->way,
        sum->rates);
  else
    say("observed: a step would take %s instead of %s: offload would add %s (%s), by `%s` and %s "
        "rates",
        words_seconds((sum->step_ns + sum->exposed_ns) / 1e9, longer),
        words_seconds(sum->step_ns / 1e9, step), exposed,
        words_share(sum->exposed_ns / (sum->step_ns + sum->exposed_ns), share), sum->way,
        sum->rates);
}

static void say_observed(const struct observed *observed) {
  static struct sum sum;
  char state[WORDS_BYTES], move[WORDS_BYTES];
  read_reports(observed, &sum, false);
  if (!sum.sentence_count && sum.move_bytes < sum.state_bytes)
    read_reports(observed, &sum, true);
  if (!sum.reports)
    say("observed: no process told of CUDA: none initialised it, or all were killed; "
        "`offload check -- COMMAND` tells whether it can on this machine");
  else if (!sum.observed)
    say("observed: no optimizer step that is known was seen; nothing would move");
  else {
    say("observed: %s of %s of optimizer state would move to the host, in %u process%s",
        words_bytes(sum.move_bytes, move), words_bytes(sum.state_bytes, state), sum.observed,
        sum.observed == 1 ? "" : "es");
    if (sum.move_bytes > 0)
      say_cost(&sum);
  }
  for (unsigned i = 0; i < sum.sentence_count; i++)
    say("observed: %s", sum.sentences[i]);
  if (observed->directory[0] && sum.reports)
    say("observed: its reports were temporary: --report FILE keeps one, `offload report FILE` "
        "shows "
        "it");
}

void observed_end(struct observed *observed, bool ran) {
  if (ran)
    say_observed(observed);
  if (observed->directory[0])
    remove_reports(observed);
}
