/* The page's first sections: advice, and what moved where to. See page_build.h. */
#define _GNU_SOURCE
#include "page_build.h"
#include <math.h>
#include <string.h>

/* ---- advice, and what moved ---- */

void section_advice(const struct build *build) {
  page_section(build->page, "advice", "What to change");
  if (build_has(build, "advice", "older releases give no advice in it") &&
      !build_sentences(build, "advice", "text"))
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
    return page_print(page, "%sno optimizer state was moved in %s steps.%s",
                      build_whose(build, report), words_count((uint64_t)steps, text[0]), cost);
  return page_print(page, "%s%s at most; %s steps.%s", build_whose(build, report), where,
                    words_count((uint64_t)steps, text[2]), cost);
}

/* The figures that one looks for first. */
static void tiles(const struct build *build) {
  static const struct {
    const char *one, *several, *expression;
    enum page_unit unit;
    bool sum;
  } shown[] = {
      {"state in host memory", "state in host memory, all ranks", "totals.moved_bytes_peak",
       UNIT_BYTES, true},
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
    if (!build_all(build, shown[i].expression, shown[i].sum, &value))
      continue;
    page_cell(build->page, build->count == 1 ? shown[i].one : shown[i].several);
    page_cell(build->page, page_value(build->page, shown[i].unit, true, value));
  }
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
      build_series(chart, "device", "device", false);
      build_series(chart, "host memory", "host", false);
      build_series(chart, "drives", "drives", false);
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

/* When it was written, and that it isn't the last word where it isn't. */
static void written(const struct build *build) {
  for (size_t i = 0; i < build->count; i++) {
    const json_t *root = build->reports[i].root, *final = view_at(root, "final");
    if (json_is_false(final))
      page_paragraph(
          build->page,
          page_print(build->page,
                     "%sWritten at %s, before the end: the process ran on, or was killed.",
                     build_whose(build, i), view_text(root, "written")));
  }
}

/* What OFFLOAD_FREE and the signal brought, of those that were asked for. */
static void asked_for(const struct build *build) {
  struct page *page = build->page;
  char text[2][WORDS_BYTES];
  for (size_t i = 0; i < build->count; i++) {
    const json_t *root = build->reports[i].root, *devices = view_at(root, "free.devices");
    double asked = 0, freed = 0, home = 0, step = 0;
    view_number(root, "free.asked_bytes", &asked);
    for (size_t k = 0; k < json_array_size(devices); k++) {
      const json_t *device = json_array_get(devices, k);
      if (!view_number(device, "freed_bytes", &freed))
        continue;
      const char *why = view_text(device, "why");
      page_paragraph(page, page_print(page, "%sOFFLOAD_FREE: %s freed, %s asked for%s%s.",
                                      build_whose(build, i), words_bytes(freed, text[0]),
                                      words_bytes(asked, text[1]), *why ? ": " : "", why));
    }
    if (!json_is_true(view_at(root, "switch.used")))
      continue;
    view_number(root, "switch.home_bytes", &home);
    view_number(root, "switch.step", &step);
    page_paragraph(page,
                   page_print(page, "%sSIG%s ended offloading after step %.0f: %s came home%s.",
                              build_whose(build, i), view_text(root, "switch.signal"), step,
                              words_bytes(home, text[0]),
                              json_is_true(view_at(root, "switch.whole")) ? "" : ", not all"));
  }
}

void section_moved(const struct build *build) {
  page_section(build->page, "moved", "What moved, and where to");
  tiles(build);
  for (size_t i = 0; i < build->count; i++)
    page_paragraph(build->page, in_short(build, i));
  written(build);
  asked_for(build);
  if (!build_has(build, "totals", "what moved isn't known"))
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
  build_figures(build, "moved", NULL);
  build_figures(build, "exact", "Exactness");
  where_chart(build);
}
