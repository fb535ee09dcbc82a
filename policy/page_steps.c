/* The page's sections of a step: what it costs, memory in the course of steps, bytes over the link. See page_build.h. */
#define _GNU_SOURCE
#include "page_build.h"
#include "sort.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- a step ---- */

/* What a step's time is made of; all of it is the program's where nothing moved. */
enum { PROGRAM, ADDED, BEHIND };
static void step_series(struct chart *chart, bool away) {
  build_series(chart, "the program", "compute", false);
  if (!away)
    return;
  build_series(chart, "added by offload (exposed)", "exposed", false);
  build_series(chart, "CPU step behind the program (hidden)", "hidden", true);
}

/* `exposed` and `cpu` are 0 where nothing moved. */
static void step_point(struct chart *chart, size_t point, double whole, double exposed,
                       double cpu) {
  chart->series[PROGRAM].values[point] = fmax(0, whole - exposed);
  chart->series[ADDED].values[point] = exposed;
  chart->series[BEHIND].values[point] = fmax(0, cpu - exposed);
}

/* The last steps of one report, of the first device that it tells of. */
static void step_chart(const struct build *build, size_t report) {
  const json_t *last = view_at(build->reports[report].root, "steps.last");
  const size_t count = json_array_size(last);
  const bool away = build_away(build, report);
  double device = 0, value;
  char text[2][WORDS_BYTES];
  size_t points = 0;
  if (!count)
    return;
  view_number(json_array_get(last, 0), "device", &device);
  struct chart *chart = page_chart_new(build->page, CHART_STEPS, count);
  chart->title = page_print(build->page, "%s%s", build_whose(build, report),
                            build->count > 1 ? "the last steps" : "The last steps");
  chart->x_name = "step";
  chart->unit = UNIT_NS;
  step_series(chart, away);
  for (size_t i = 0; i < count; i++) {
    const json_t *step = json_array_get(last, i);
    double whole, exposed = 0, cpu = 0;
    if (!view_number(step, "device", &value) || value != device ||
        !view_number(step, "step_ns", &whole))
      continue;
    if (away) {
      view_number(step, "exposed_ns", &exposed);
      view_number(step, "cpu_ns", &cpu);
    }
    if (!view_number(step, "step", &chart->x[points]))
      chart->x[points] = (double)i;
    step_point(chart, points++, whole, exposed, cpu);
  }
  chart->points = points;
  double step = 0, exposed = 0;
  view_number(build->reports[report].root, "steps.median_step_ns", &step);
  view_number(build->reports[report].root, "steps.median_exposed_ns", &exposed);
  unit_words(UNIT_NS, step, text[0]);
  unit_words(UNIT_NS, exposed, text[1]);
  const char *plural = points == 1 ? "" : "s";
  chart->says = away ? page_print(build->page, "%zu step%s, median %s, of which offload adds %s.",
                                  points, plural, text[0], text[1])
                     : page_print(build->page, "%zu step%s, median %s; nothing of them was moved.",
                                  points, plural, text[0]);
}

static double median_cpu(const json_t *root);

static void median_chart(const struct build *build) {
  if (!build_any(build, "steps.median_step_ns"))
    return;
  struct chart *chart = page_chart_new(build->page, CHART_ROWS, build->count);
  chart->title = "The median step";
  chart->unit = UNIT_NS;
  step_series(chart, build_any_away(build));
  for (size_t i = 0; i < build->count; i++) {
    const json_t *root = build->reports[i].root;
    const bool away = build_away(build, i);
    double step, exposed = 0;
    chart->labels[i] = build->reports[i].label;
    if (!view_number(root, "steps.median_step_ns", &step))
      continue;
    if (away)
      view_number(root, "steps.median_exposed_ns", &exposed);
    step_point(chart, i, step, exposed, away ? median_cpu(root) : 0);
  }
  chart->says =
      build_any_away(build)
          ? "The program's own time, what offload adds, and what is hidden, of each report; "
            "the table below has the figures."
          : "The program's own time, of each report; the table below has the figures.";
}

static double median_cpu(const json_t *root) {
  const json_t *last = view_at(root, "steps.last");
  const size_t count = json_array_size(last);
  double *values = calloc(count + 1, sizeof *values), median = 0;
  size_t known = 0;
  for (size_t i = 0; values && i < count; i++)
    known += view_number(json_array_get(last, i), "cpu_ns", &values[known]);
  if (values)
    median = sort_median(values, known);
  free(values);
  return median;
}

/* What each way was foretold to cost, and which was taken. */
static void ways(const struct build *build) {
  static const char *const names[] = {"cpu", "stream", "direct", "stay"};
  struct page *page = build->page;
  if (!build_has(build, "policy.functions", "how each way was foretold isn't known"))
    return;
  page_table(page,
             "Ways of stepping: what each was foretold to add, which is taken, and what all of the "
             "optimizer takes by it",
             8, 0xfcu);
  static const char *const heads[] = {"function", "way",  "cpu",           "stream",
                                      "direct",   "stay", "all, foretold", "measured"};
  for (size_t i = 0; i < 8; i++)
    page_cell(page, heads[i]);
  for (size_t i = 0; i < build->count; i++) {
    const json_t *rows = view_at(build->reports[i].root, "policy.functions");
    for (size_t k = 0; k < json_array_size(rows); k++) {
      const json_t *row = json_array_get(rows, k);
      double number = 0;
      page_cell(page, page_print(page, "%s%s", build_whose(build, i), view_text(row, "function")));
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
        page_cell(page, page_print(page, "%s%s: %s", build_whose(build, i),
                                   view_text(row, "function"), view_text(row, "why")));
      }
      for (size_t n = 0; n < json_array_size(switches); n++) {
        const json_t *change = json_array_get(switches, n);
        double step = 0;
        view_number(change, "step", &step);
        if (!listed++)
          page_list(page);
        page_cell(page,
                  page_print(page, "%s%s, step %.0f: from %s to %s, %s", build_whose(build, i),
                             view_text(row, "function"), step, view_text(change, "from"),
                             view_text(change, "to"), view_text(change, "why")));
      }
    }
  }
}

void section_cost(const struct build *build) {
  page_section(build->page, "steps", "What a step costs");
  if (build_has(build, "steps", "the time of a step isn't known")) {
    if (!build_any(build, "steps.median_step_ns"))
      page_paragraph(build->page,
                     "No step was measured: first steps aren't, nor those in which state moved.");
    median_chart(build);
    for (size_t i = 0; i < build->count; i++)
      step_chart(build, i);
  }
  build_figures(build, "cost", NULL);
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
  chart->title =
      page_print(build->page, "%s%s", build_whose(build, report),
                 build->count > 1 ? "device, host and drives" : "Device, host and drives");
  chart->x_name = "seconds since the first step";
  chart->unit = UNIT_BYTES;
  build_series(chart, "device, by everybody", "device", false);
  build_series(chart, "state in host memory", "host", false);
  build_series(chart, "state on drives", "drives", false);
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

void section_memory(const struct build *build) {
  page_section(build->page, "memory", "Memory over time");
  if (!build_has(build, "memory.samples", "older releases take no samples"))
    return;
  size_t samples = 0;
  for (size_t i = 0; i < build->count; i++) {
    memory_chart(build, i);
    samples += json_array_size(view_at(build->reports[i].root, "memory.samples"));
  }
  if (!samples)
    page_paragraph(build->page, "None: no sample was taken, which is from the first step on.");
}

void section_bytes(const struct build *build) {
  page_section(build->page, "bytes", "Bytes over the link, a step");
  if (!build_has(build, "totals", "nothing was counted"))
    return;
  double moved;
  if (!build_all(build, "totals.link_bytes_down", true, &moved) || moved <= 0) {
    page_paragraph(build->page, "None: no step moved any.");
    return;
  }
  struct chart *chart = page_chart_new(build->page, CHART_ROWS, build->count);
  chart->title = "Link, a step";
  chart->unit = UNIT_BYTES;
  build_series(chart, "down: from the device", "down", false);
  build_series(chart, "up: to the device", "up", false);
  for (size_t i = 0; i < build->count; i++) {
    const json_t *root = build->reports[i].root;
    chart->labels[i] = build->reports[i].label;
    view_figure(root, "totals.link_bytes_down / totals.steps", &chart->series[0].values[i]);
    view_figure(root, "totals.link_bytes_up / totals.steps", &chart->series[1].values[i]);
  }
  chart->says = "Bytes down and up over the link in a step, of each report; \"What a step costs\" "
                "has the figures.";
}
