/* What `offload report` shows of reports, in order: what to change, what moved, what a step costs, memory, bytes, functions, drives,
   ranks, settings, rates, reasons, all counters. Several reports (ranks) have a column each, or a row.

   An object that no report has is left out with a line; what it is for is said there. */
#define _GNU_SOURCE
#include "page.h"
#include "page_settings.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The reports, and the page that is made of them. */
struct build {
  struct page *page;
  const struct report_view *reports;
  size_t count;
};

enum zero { ALWAYS, NONZERO };
static const struct figure {
  const char *group, *key, *label, *expression;
  enum page_unit unit;
  enum zero shown;
} figures[] = {
#define FIGURE(group, key, label, unit, shown, expression)                                         \
  {#group, #key, label, expression, UNIT_##unit, shown},
#include "figures.def"
#undef FIGURE
};
enum { FIGURES = sizeof figures / sizeof *figures };

static const struct counter {
  const char *name, *help;
} counters[] = {
#define COUNTER(name, help) {#name, help},
#include "counters.def"
#undef COUNTER
};
enum { COUNTERS = sizeof counters / sizeof *counters };

/* ---- what several sections need ---- */

static bool any_has(const struct build *build, const char *path) {
  for (size_t i = 0; i < build->count; i++) {
    const json_t *value = view_at(build->reports[i].root, path);
    if (value && !json_is_null(value))
      return true;
  }
  return false;
}

/* False, and the line that says so, when no report has it. */
static bool has(const struct build *build, const char *path, const char *what) {
  if (any_has(build, path))
    return true;
  page_paragraph(build->page,
                 page_print(build->page, "%s no \"%s\" here: %s.",
                            build->count == 1 ? "The report has" : "The reports have", path, what));
  return false;
}

/* "", or "rank 3: " where there are several. */
static const char *whose(const struct build *build, size_t report) {
  return build->count == 1 ? "" : page_print(build->page, "%s: ", build->reports[report].label);
}

static void value_heads(const struct build *build, const char *first) {
  page_cell(build->page, first);
  for (size_t i = 0; i < build->count; i++)
    page_cell(build->page, build->count == 1 ? "" : build->reports[i].label);
}

/* A table of a group of figures: a row each, a column each report. */
static void figure_table(const struct build *build, const char *group, const char *caption) {
  page_table(build->page, caption, build->count + 1, ~1u);
  value_heads(build, "");
  for (size_t f = 0; f < FIGURES; f++) {
    double value[REPORTS_MOST];
    bool known[REPORTS_MOST], any = false;
    if (strcmp(figures[f].group, group) != 0)
      continue;
    for (size_t i = 0; i < build->count; i++) {
      known[i] = view_figure(build->reports[i].root, figures[f].expression, &value[i]);
      any |= known[i] && (figures[f].shown == ALWAYS || value[i] > 0);
    }
    if (!any)
      continue;
    page_cell(build->page, figures[f].label);
    for (size_t i = 0; i < build->count; i++)
      page_cell(build->page, page_value(build->page, figures[f].unit, known[i], value[i]));
  }
}

/* Sentences of an array, each once, with whose they are. `key`: of objects, NULL where they are strings. */
static size_t sentences(const struct build *build, const char *path, const char *key) {
  size_t found = 0;
  for (size_t i = 0; i < build->count; i++) {
    const json_t *array = view_at(build->reports[i].root, path);
    for (size_t k = 0; k < json_array_size(array); k++) {
      const json_t *item = json_array_get(array, k);
      const char *text = key ? view_text(item, key) : json_string_value(item);
      if (!text || !*text)
        continue;
      const size_t begin = strlen(whose(build, i));
      const struct page_block *list = found ? page_last(build->page) : NULL;
      bool fresh = true;
      for (size_t n = 0; list && n < list->count; n++) {
        const char *there = list->cells[n], *colon = build->count == 1 ? NULL : strstr(there, ": ");
        const char *said = colon ? colon + 2 : there;
        if (strcmp(said, text) != 0)
          continue;
        fresh = false;
        /* "rank 0, rank 1: the sentence" */
        if (begin && strncmp(there, whose(build, i), begin) != 0)
          list->cells[n] = page_print(build->page, "%.*s, %s%s", (int)(colon - there), there,
                                      whose(build, i), text);
      }
      if (fresh && !found++)
        page_list(build->page);
      if (fresh)
        page_cell(build->page, page_print(build->page, "%s%s", whose(build, i), text));
    }
  }
  return found;
}

/* ---- advice, and what moved ---- */

static void advice(const struct build *build) {
  page_section(build->page, "advice", "What to change");
  if (has(build, "advice", "older releases give no advice in it") &&
      !sentences(build, "advice", "text"))
    page_paragraph(build->page, "Nothing: no advice applies.");
}

/* "1.20 GiB of optimizer state was in host memory, ...": the report in a sentence each. */
static const char *in_short(const struct build *build, size_t report) {
  const json_t *root = build->reports[report].root;
  double moved = 0, drives = 0, steps = 0, step = 0, exposed = 0;
  char text[3][WORDS_BYTES];
  struct page *page = build->page;
  view_number(root, "totals.moved_bytes_peak", &moved);
  view_number(root, "totals.drive_bytes_peak", &drives);
  view_number(root, "totals.steps", &steps);
  const char *where =
      drives > 0 ? page_print(page, "%s of optimizer state was in host memory and %s on drives",
                              words_bytes(moved, text[0]), words_bytes(drives, text[1]))
                 : page_print(page, "%s of optimizer state was in host memory",
                              words_bytes(moved, text[0]));
  const char *cost = "";
  if (view_number(root, "steps.median_step_ns", &step) && step > 0 &&
      view_number(root, "steps.median_exposed_ns", &exposed))
    cost = page_print(page, " A step takes %s; of it offload adds %s (%s).",
                      words_seconds(step / 1e9, text[0]), words_seconds(exposed / 1e9, text[1]),
                      words_share(exposed / step, text[2]));
  if (moved <= 0 && drives <= 0)
    return page_print(page, "%sno optimizer state was moved in %s steps.%s", whose(build, report),
                      words_count((uint64_t)steps, text[0]), cost);
  return page_print(page, "%s%s at most; %s steps.%s", whose(build, report), where,
                    words_count((uint64_t)steps, text[2]), cost);
}

/* The largest of the reports', or their sum. */
static bool of_all(const struct build *build, const char *expression, bool sum, double *all) {
  bool known = false;
  *all = 0;
  for (size_t i = 0; i < build->count; i++) {
    double value;
    if (!view_figure(build->reports[i].root, expression, &value))
      continue;
    *all = sum ? *all + value : fmax(*all, value);
    known = true;
  }
  return known;
}

/* The figures that one looks for first. */
static void tiles(const struct build *build) {
  static const struct {
    const char *one, *several, *expression;
    enum page_unit unit;
    bool sum;
  } shown[] = {
      {"state in host memory", "state in host memory, all ranks", "totals.moved_bytes", UNIT_BYTES,
       true},
      {"state on drives", "state on drives, all ranks", "totals.drive_bytes_peak", UNIT_BYTES,
       true},
      {"the median step", "the longest median step", "steps.median_step_ns", UNIT_NS, false},
      {"added by offload", "added by offload, at most", "steps.median_exposed_ns", UNIT_NS, false},
      {"foretold to be added", "foretold to be added, at most", "steps.median_foretold_ns", UNIT_NS,
       false},
  };
  page_tiles(build->page);
  for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
    double value;
    if (!of_all(build, shown[i].expression, shown[i].sum, &value))
      continue;
    page_cell(build->page, build->count == 1 ? shown[i].one : shown[i].several);
    page_cell(build->page, page_value(build->page, shown[i].unit, true, value));
  }
}

static void series(struct chart *chart, const char *name, const char *ink, bool below) {
  struct chart_series *fresh = &chart->series[chart->series_count++];
  *fresh = (struct chart_series){name, ink, below, fresh->values};
}

/* Of the samples that one with the most state away from the device; NULL where none has any. */
static const json_t *most_away(const json_t *samples) {
  const json_t *most = NULL;
  double most_bytes = 0;
  for (size_t i = 0; i < json_array_size(samples); i++) {
    const json_t *sample = json_array_get(samples, i);
    double host = 0, drives = 0;
    view_number(sample, "host_bytes", &host);
    view_number(sample, "drive_bytes", &drives);
    if (host + drives > most_bytes) {
      most = sample;
      most_bytes = host + drives;
    }
  }
  return most;
}

/* What a step names and lies nowhere else is on the device. */
static void where_chart(const struct build *build) {
  struct chart *chart = NULL;
  for (size_t i = 0; i < build->count; i++) {
    const json_t *sample = most_away(view_at(build->reports[i].root, "memory.samples"));
    double host = 0, drives = 0, state = 0;
    if (!sample)
      continue;
    if (!chart) {
      chart = page_chart_new(build->page, CHART_ROWS, build->count);
      chart->title = "Where state lay when the most was away from the device";
      chart->says = "State on the device, in host memory and on drives, of each report.";
      chart->unit = UNIT_BYTES;
      series(chart, "device", "device", false);
      series(chart, "host memory", "host", false);
      series(chart, "drives", "drives", false);
      for (size_t k = 0; k < build->count; k++)
        chart->labels[k] = build->reports[k].label;
    }
    view_number(sample, "host_bytes", &host);
    view_number(sample, "drive_bytes", &drives);
    view_number(sample, "state_bytes", &state);
    chart->series[0].values[i] = fmax(0, state - host - drives);
    chart->series[1].values[i] = host;
    chart->series[2].values[i] = drives;
  }
}

static void moved(const struct build *build) {
  page_section(build->page, "moved", "What moved, and where to");
  tiles(build);
  for (size_t i = 0; i < build->count; i++)
    page_paragraph(build->page, in_short(build, i));
  if (!has(build, "totals", "what moved isn't known"))
    return;
  page_table(build->page, "Kind of host memory, and what bounds it", 3, 0);
  page_cell(build->page, "");
  page_cell(build->page, "tier");
  page_cell(build->page, "budget limited by");
  for (size_t i = 0; i < build->count; i++) {
    const json_t *root = build->reports[i].root;
    page_cell(build->page, build->reports[i].label);
    page_cell(build->page, page_print(build->page, "%s", view_text(root, "tier")));
    page_cell(build->page, page_print(build->page, "%s", view_text(root, "budget.limited_by")));
  }
  figure_table(build, "moved", NULL);
  figure_table(build, "exact", "Exactness");
  where_chart(build);
}

/* ---- a step ---- */

/* The last steps of one report, of the first device that it tells of. */
static void step_chart(const struct build *build, size_t report) {
  const json_t *last = view_at(build->reports[report].root, "steps.last");
  const size_t count = json_array_size(last);
  double device = 0, value;
  char text[2][WORDS_BYTES];
  size_t points = 0;
  if (!count)
    return;
  view_number(json_array_get(last, 0), "device", &device);
  struct chart *chart = page_chart_new(build->page, CHART_STEPS, count);
  chart->title = page_print(build->page, "%sthe last steps", whose(build, report));
  chart->x_name = "step";
  chart->unit = UNIT_NS;
  series(chart, "the program", "compute", false);
  series(chart, "added by offload (exposed)", "exposed", false);
  series(chart, "CPU step behind the program (hidden)", "hidden", true);
  for (size_t i = 0; i < count; i++) {
    const json_t *step = json_array_get(last, i);
    double whole, exposed = 0, cpu = 0;
    if (!view_number(step, "device", &value) || value != device ||
        !view_number(step, "step_ns", &whole))
      continue;
    view_number(step, "exposed_ns", &exposed);
    view_number(step, "cpu_ns", &cpu);
    if (!view_number(step, "step", &chart->x[points]))
      chart->x[points] = (double)i;
    chart->series[0].values[points] = fmax(0, whole - exposed);
    chart->series[1].values[points] = exposed;
    chart->series[2].values[points] = fmax(0, cpu - exposed);
    points++;
  }
  chart->points = points;
  double step = 0, exposed = 0;
  view_number(build->reports[report].root, "steps.median_step_ns", &step);
  view_number(build->reports[report].root, "steps.median_exposed_ns", &exposed);
  chart->says =
      page_print(build->page, "%zu steps, median %s, of which offload adds %s.", points,
                 unit_words(UNIT_NS, step, text[0]), unit_words(UNIT_NS, exposed, text[1]));
}

static double median_cpu(const json_t *root);

static void median_chart(const struct build *build) {
  if (!any_has(build, "steps.median_step_ns"))
    return;
  struct chart *chart = page_chart_new(build->page, CHART_ROWS, build->count);
  chart->title = "The median step";
  chart->unit = UNIT_NS;
  series(chart, "the program", "compute", false);
  series(chart, "added by offload (exposed)", "exposed", false);
  series(chart, "CPU step behind the program (hidden)", "hidden", true);
  for (size_t i = 0; i < build->count; i++) {
    const json_t *root = build->reports[i].root;
    double step, exposed = 0;
    chart->labels[i] = build->reports[i].label;
    if (!view_number(root, "steps.median_step_ns", &step))
      continue;
    view_number(root, "steps.median_exposed_ns", &exposed);
    chart->series[0].values[i] = fmax(0, step - exposed);
    chart->series[1].values[i] = exposed;
    chart->series[2].values[i] = fmax(0, median_cpu(root) - exposed);
  }
  chart->says = "The program's own time, what offload adds, and what is hidden, of each report; "
                "the table below has the figures.";
}

static int by_value(const void *a, const void *b) {
  const double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

static double median_cpu(const json_t *root) {
  const json_t *last = view_at(root, "steps.last");
  const size_t count = json_array_size(last);
  double *values = calloc(count + 1, sizeof *values), median = 0;
  size_t known = 0;
  for (size_t i = 0; values && i < count; i++)
    known += view_number(json_array_get(last, i), "cpu_ns", &values[known]);
  if (known) {
    qsort(values, known, sizeof *values, by_value);
    median = values[known / 2];
  }
  free(values);
  return median;
}

/* What each way was foretold to cost, and which was taken. */
static void ways(const struct build *build) {
  static const char *const names[] = {"cpu", "stream", "direct", "stay"};
  struct page *page = build->page;
  if (!has(build, "policy.functions", "how each way was foretold isn't known"))
    return;
  page_table(page, "Ways of stepping: what each was foretold to add, which is taken", 8, 0xfcu);
  static const char *const heads[] = {"function", "way",  "cpu",      "stream",
                                      "direct",   "stay", "foretold", "measured"};
  for (size_t i = 0; i < 8; i++)
    page_cell(page, heads[i]);
  for (size_t i = 0; i < build->count; i++) {
    const json_t *rows = view_at(build->reports[i].root, "policy.functions");
    for (size_t k = 0; k < json_array_size(rows); k++) {
      const json_t *row = json_array_get(rows, k);
      double number = 0;
      page_cell(page, page_print(page, "%s%s", whose(build, i), view_text(row, "function")));
      page_cell(page, page_print(page, "%s", view_text(row, "way")));
      for (size_t way = 0; way < 4; way++) {
        const json_t *cost = view_at(view_at(row, "foretold"), names[way]);
        const bool known =
            json_is_true(view_at(cost, "possible")) && view_number(cost, "exposed_ns", &number);
        page_cell(page, page_value(page, UNIT_NS, known, number));
      }
      bool known = view_number(row, "foretold_ns", &number);
      page_cell(page, page_value(page, UNIT_NS, known, number));
      known = view_number(row, "measured_ns", &number);
      page_cell(page, page_value(page, UNIT_NS, known, number));
    }
  }
  size_t listed = 0;
  for (size_t i = 0; i < build->count; i++) {
    const json_t *rows = view_at(build->reports[i].root, "policy.functions");
    for (size_t k = 0; k < json_array_size(rows); k++) {
      const json_t *row = json_array_get(rows, k), *switches = view_at(row, "switches");
      if (*view_text(row, "why")) {
        if (!listed++)
          page_list(page);
        page_cell(page, page_print(page, "%s%s: %s", whose(build, i), view_text(row, "function"),
                                   view_text(row, "why")));
      }
      for (size_t n = 0; n < json_array_size(switches); n++) {
        const json_t *change = json_array_get(switches, n);
        double step = 0;
        view_number(change, "step", &step);
        if (!listed++)
          page_list(page);
        page_cell(page, page_print(page, "%s%s, step %.0f: from %s to %s, %s", whose(build, i),
                                   view_text(row, "function"), step, view_text(change, "from"),
                                   view_text(change, "to"), view_text(change, "why")));
      }
    }
  }
}

static void cost(const struct build *build) {
  page_section(build->page, "steps", "What a step costs");
  if (has(build, "steps", "the time of a step isn't known")) {
    if (!any_has(build, "steps.median_step_ns"))
      page_paragraph(build->page,
                     "No step was measured: first steps aren't, nor those in which state moved.");
    median_chart(build);
    for (size_t i = 0; i < build->count; i++)
      step_chart(build, i);
  }
  figure_table(build, "cost", NULL);
  ways(build);
}

/* ---- memory and bytes ---- */

static void memory_chart(const struct build *build, size_t report) {
  const json_t *root = build->reports[report].root, *samples = view_at(root, "memory.samples");
  const size_t count = json_array_size(samples);
  static const char *const keys[] = {"device_used_bytes", "host_bytes", "drive_bytes"};
  char text[3][WORDS_BYTES];
  double most[3] = {0}, total = 0;
  if (!count)
    return;
  struct chart *chart = page_chart_new(build->page, CHART_LINES, count);
  view_number(root, "memory.device_bytes", &total);
  chart->title = page_print(build->page, "%sdevice, host and drives", whose(build, report));
  chart->x_name = "seconds since the first step";
  chart->unit = UNIT_BYTES;
  series(chart, "device, by everybody", "device", false);
  series(chart, "state in host memory", "host", false);
  series(chart, "state on drives", "drives", false);
  for (size_t i = 0; i < count; i++) {
    const json_t *sample = json_array_get(samples, i);
    double value;
    if (view_number(sample, "time_ns", &value))
      chart->x[i] = value / 1e9;
    for (size_t k = 0; k < 3; k++)
      if (view_number(sample, keys[k], &value)) {
        chart->series[k].values[i] = value;
        most[k] = fmax(most[k], value);
      }
  }
  for (size_t k = 0; k < 3; k++)
    words_bytes(most[k], text[k]);
  chart->says = page_print(
      build->page, "At most %s of the device%s, %s in host memory, %s on drives.", text[0],
      total > 0 ? page_print(build->page, "'s %s", page_value(build->page, UNIT_BYTES, true, total))
                : "",
      text[1], text[2]);
}

static void memory(const struct build *build) {
  page_section(build->page, "memory", "Memory over time");
  if (!has(build, "memory.samples", "older releases take no samples"))
    return;
  for (size_t i = 0; i < build->count; i++)
    memory_chart(build, i);
}

static void bytes(const struct build *build) {
  page_section(build->page, "bytes", "Bytes over the link, a step");
  if (!has(build, "totals", "nothing was counted"))
    return;
  struct chart *chart = page_chart_new(build->page, CHART_ROWS, build->count);
  chart->title = "Link, a step";
  chart->unit = UNIT_BYTES;
  series(chart, "down: from the device", "down", false);
  series(chart, "up: to the device", "up", false);
  for (size_t i = 0; i < build->count; i++) {
    const json_t *root = build->reports[i].root;
    chart->labels[i] = build->reports[i].label;
    view_figure(root, "totals.link_bytes_down / totals.steps", &chart->series[0].values[i]);
    view_figure(root, "totals.link_bytes_up / totals.steps", &chart->series[1].values[i]);
  }
  chart->says = "Bytes down and up over the link in a step, of each report; \"What a step costs\" "
                "has the figures.";
}

/* ---- tables ---- */

static void functions(const struct build *build) {
  static const struct {
    const char *head, *key;
    bool number;
  } columns[] = {{"function", "name", false},
                 {"mode", "mode", false},
                 {"launches", "launches", true},
                 {"cpu", "launches_cpu", true},
                 {"stream", "launches_stream", true},
                 {"direct", "launches_direct", true},
                 {"elements", "elements", true},
                 {"on host", "elements_host", true},
                 {"what stands in the way", "why", false}};
  enum { COLUMNS = sizeof columns / sizeof *columns };
  struct page *page = build->page;
  page_section(page, "functions", "Functions");
  if (!has(build, "functions", "none is listed"))
    return;
  size_t found = 0;
  for (size_t i = 0; i < build->count; i++) {
    const json_t *rows = view_at(build->reports[i].root, "functions");
    for (size_t k = 0; k < json_array_size(rows); k++) {
      const json_t *row = json_array_get(rows, k);
      if (!found++) {
        page_table(page, NULL, COLUMNS, 0xfcu);
        for (size_t c = 0; c < COLUMNS; c++)
          page_cell(page, columns[c].head);
      }
      for (size_t c = 0; c < COLUMNS; c++) {
        double number = 0;
        const char *before = c ? "" : whose(build, i);
        if (columns[c].number) {
          const bool known = view_number(row, columns[c].key, &number);
          page_cell(page, page_value(page, UNIT_COUNT, known, number));
        } else
          page_cell(page, page_print(page, "%s%s", before, view_text(row, columns[c].key)));
      }
    }
  }
  if (found)
    page_drop_empty(page);
  else
    page_paragraph(page, "No optimizer function was recognised.");
}

static void drives(const struct build *build) {
  struct page *page = build->page;
  static const char *const heads[] = {"directory", "drive", "written",
                                      "a step",    "used",  "days left"};
  page_section(page, "drives", "Drives");
  if (!any_has(build, "drives")) {
    page_paragraph(page, "None is used (OFFLOAD_NVME names directories on them).");
    return;
  }
  page_table(page, NULL, 6, 0x3cu);
  for (size_t c = 0; c < 6; c++)
    page_cell(page, heads[c]);
  for (size_t i = 0; i < build->count; i++) {
    const json_t *rows = view_at(build->reports[i].root, "drives.directories");
    for (size_t k = 0; k < json_array_size(rows); k++) {
      const json_t *row = json_array_get(rows, k);
      double written = 0, each = 0, used = 0, days = 0;
      const char *model = view_text(row, "model"), *device = view_text(row, "device");
      page_cell(page, page_print(page, "%s%s%s", whose(build, i), view_text(row, "path"),
                                 json_is_true(view_at(row, "failed")) ? " (failed)" : ""));
      page_cell(page, page_print(page, "%s", *model ? model : device));
      bool known = view_number(row, "written_bytes", &written);
      page_cell(page, page_value(page, UNIT_BYTES, known, written));
      known = view_number(row, "bytes_per_step", &each);
      page_cell(page, page_value(page, UNIT_BYTES, known, each));
      known = view_number(row, "percent_used", &used);
      page_cell(page, page_value(page, UNIT_SHARE, known, used / 100));
      known = view_number(row, "days_left", &days);
      page_cell(page, page_value(page, UNIT_COUNT, known, days));
    }
  }
}

static void settings(const struct build *build) {
  struct page *page = build->page;
  page_section(page, "settings", "Settings that aren't the initial ones");
  if (!has(build, "settings", "they aren't known"))
    return;
  size_t found = 0;
  for (size_t s = 0; s < settings_count(); s++) {
    bool differs = false;
    for (size_t i = 0; i < build->count; i++)
      differs |= settings_differs(s, view_at(build->reports[i].root, "settings"));
    if (!differs)
      continue;
    if (!found++) {
      page_table(page, NULL, build->count + 2, 0);
      page_cell(page, "variable");
      page_cell(page, "initial");
      for (size_t i = 0; i < build->count; i++)
        page_cell(page, build->count == 1 ? "here" : build->reports[i].label);
    }
    page_cell(page, page_print(page, "OFFLOAD_%s", settings_name(s)));
    page_cell(page, *settings_initial(s) ? settings_initial(s) : "-");
    for (size_t i = 0; i < build->count; i++) {
      char text[256];
      page_cell(page, page_print(page, "%s",
                                 settings_words(s, view_at(build->reports[i].root, "settings"),
                                                text, sizeof text)));
    }
  }
  if (!found)
    page_paragraph(page, "None: all are as they are when nothing is set.");
}

static void reasons(const struct build *build) {
  page_section(build->page, "reasons", "Why something was not done");
  if (has(build, "reasons", "none is given") && !sentences(build, "reasons", NULL))
    page_paragraph(build->page, "Nothing stood in the way.");
}

static void all_counters(const struct build *build) {
  struct page *page = build->page;
  page_section(page, "counters", "All that was counted");
  if (!has(build, "totals", "nothing was counted"))
    return;
  page_table(page, "Counters that aren't 0", build->count + 1, ~1u);
  page_last(page)->aside = true;
  value_heads(build, "counter");
  for (size_t c = 0; c < COUNTERS; c++) {
    const char *path = page_print(page, "totals.%s", counters[c].name);
    const size_t length = strlen(counters[c].name);
    const enum page_unit unit = !strcmp(counters[c].name + length - 3, "_ns") ? UNIT_NS
                                : strstr(counters[c].name, "bytes")           ? UNIT_BYTES
                                                                              : UNIT_COUNT;
    bool any = false;
    double value;
    for (size_t i = 0; i < build->count; i++)
      any |= view_number(build->reports[i].root, path, &value) && value > 0;
    if (!any)
      continue;
    page_cell(page, counters[c].help);
    for (size_t i = 0; i < build->count; i++) {
      const bool known = view_number(build->reports[i].root, path, &value);
      page_cell(page, page_value(page, unit, known, value));
    }
  }
}

static void heading(const struct build *build) {
  struct page *page = build->page;
  const char *version = view_text(build->reports[0].root, "version");
  double schema = 1;
  page->title = "What liboffload did";
  if (build->count == 1)
    page->subtitle = page_print(page, "%s, by liboffload %s", build->reports[0].label, version);
  else
    page->subtitle = page_print(page, "%zu processes, by liboffload %s", build->count, version);
  for (size_t i = 0; i < build->count; i++)
    if (view_number(build->reports[i].root, "schema", &schema) && schema > 1) {
      page->subtitle = page_print(
          page, "%s; a newer release wrote it (schema %.0f): what this one knows is shown",
          page->subtitle, schema);
      break;
    }
}

struct page *page_build(const struct report_view *reports, size_t count) {
  const struct build build = {page_new(), reports, count};
  heading(&build);
  advice(&build);
  moved(&build);
  cost(&build);
  memory(&build);
  bytes(&build);
  functions(&build);
  drives(&build);
  settings(&build);
  reasons(&build);
  all_counters(&build);
  return build.page;
}

int page_json(const struct report_view *reports, size_t count, FILE *out) {
  json_t *all = json_array();
  for (size_t i = 0; i < count; i++) {
    json_t *one = json_object(), *numbers = json_object();
    const json_t *root = reports[i].root;
    double value;
    json_object_set_new(one, "file", json_string(reports[i].path));
    json_object_set_new(one, "label", json_string(reports[i].label));
    json_object_set(one, "pid", json_object_get(root, "pid"));
    for (size_t f = 0; f < FIGURES; f++)
      json_object_set_new(numbers, figures[f].key,
                          view_figure(root, figures[f].expression, &value) ? json_real(value)
                                                                           : json_null());
    json_object_set_new(one, "figures", numbers);
    json_t *said = json_object_get(root, "advice"), *why = json_object_get(root, "reasons");
    json_object_set(one, "advice", json_is_array(said) ? said : json_null());
    json_object_set(one, "reasons", json_is_array(why) ? why : json_null());
    json_array_append_new(all, one);
  }
  json_t *top = json_pack("{s:i, s:o}", "schema", 1, "reports", all);
  const int failed = !top || json_dumpf(top, out, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) ||
                     fputc('\n', out) == EOF;
  json_decref(top);
  return failed ? -1 : 0;
}
