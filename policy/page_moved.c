/* The page's first sections: advice, and what moved where to, or would have moved of a job that was only observed. See page_build.h. */
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

static bool observed(const struct build *build, size_t report) {
  double state;
  return view_number(build->reports[report].root, "observed.state_bytes", &state) && state > 0;
}

/* What it would cost to move what was observed. The share is that of the step as it would be. */
static const char *would_cost(const struct build *build, const json_t *root) {
  double added = 0, now = 0;
  char text[4][WORDS_BYTES];
  const char *way = view_text(root, "observed.way"), *rates = view_text(root, "observed.rates");
  struct page *page = build->page;
  if (!*way || !view_number(root, "observed.exposed_ns", &added))
    return " What that would cost was not foretold yet: let it run for more steps.";
  words_seconds(added / 1e9, text[0]);
  if (!view_number(root, "observed.step_ns", &now) || now <= 0)
    return page_print(page, " A step would get %s longer, by %s and %s rates.", text[0], way,
                      rates);
  return page_print(
      page, " A step would take %s instead of %s: offload would add %s (%s), by %s and %s rates.",
      words_seconds((now + added) / 1e9, text[1]), words_seconds(now / 1e9, text[2]), text[0],
      words_share(added / (now + added), text[3]), way, rates);
}

/* "Only observed, so no optimizer state was moved in 60 steps. 96.0 MiB of 97.7 MiB of it would move ..." */
static const char *would_move(const struct build *build, size_t report) {
  const json_t *root = build->reports[report].root;
  double state = 0, move = 0, budget = 0, steps = 0;
  char text[4][WORDS_BYTES];
  view_number(root, "observed.state_bytes", &state);
  view_number(root, "observed.move_bytes", &move);
  view_number(root, "observed.budget_bytes", &budget);
  view_number(root, "totals.steps", &steps);
  const char *where = json_is_false(view_at(root, "observed.possible"))
                          ? "this driver makes no host memory for it"
                          : page_print(build->page, "the budget of host memory is %s",
                                       words_bytes(budget, text[0]));
  return page_print(build->page,
                    "%sonly observed, so no optimizer state was moved in %s steps. Without "
                    "OFFLOAD_MODE=observe %s of %s would move; %s.%s",
                    build_whose(build, report), words_count((uint64_t)steps, text[1]),
                    words_bytes(move, text[2]), words_bytes(state, text[3]), where,
                    move > 0 ? would_cost(build, root) : "");
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
  const bool away = build_away(build, report);
  if (view_number(root, "steps.median_step_ns", &step) && step > 0 && !away)
    cost = page_print(page, " A step takes %s.", words_seconds(step / 1e9, text[0]));
  else if (step > 0 && view_number(root, "steps.median_exposed_ns", &exposed))
    cost = page_print(page, " A step takes %s; of it offload adds %s (%s).",
                      words_seconds(step / 1e9, text[0]), words_seconds(exposed / 1e9, text[1]),
                      words_share(exposed / step, text[2]));
  if (!away)
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
    enum { OF_ALL, OF_MOVED, OF_OBSERVED } of;
  } shown[] = {
      {"state that would move", "state that would move, all ranks", "observed.move_bytes",
       UNIT_BYTES, true, OF_OBSERVED},
      {"state in host memory", "state in host memory, all ranks", "totals.moved_bytes_peak",
       UNIT_BYTES, true, OF_ALL},
      {"state on drives", "state on drives, all ranks", "totals.drive_bytes_peak", UNIT_BYTES, true,
       OF_ALL},
      {"the median step", "the longest median step", "steps.median_step_ns", UNIT_NS, false,
       OF_ALL},
      {"would be added by offload", "would be added by offload, at most", "observed.exposed_ns",
       UNIT_NS, false, OF_OBSERVED},
      {"added by offload", "added by offload, at most", "steps.median_exposed_ns", UNIT_NS, false,
       OF_MOVED},
      {"foretold to be added", "foretold to be added, at most", "steps.median_foretold_ns", UNIT_NS,
       false, OF_MOVED},
  };
  bool foreseen = false;
  for (size_t i = 0; i < build->count; i++)
    foreseen |= observed(build, i) && *view_text(build->reports[i].root, "observed.way");
  page_tiles(build->page);
  for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
    double value;
    if ((shown[i].of == OF_MOVED && !build_any_away(build)) ||
        (shown[i].of == OF_OBSERVED && shown[i].unit == UNIT_NS && !foreseen) ||
        !build_all(build, shown[i].expression, shown[i].sum, &value))
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
  size_t only = 0;
  for (size_t i = 0; i < build->count; i++)
    only += observed(build, i);
  page_section(build->page, "moved",
               only == build->count ? "What would move, and what that would cost"
                                    : "What moved, and where to");
  tiles(build);
  for (size_t i = 0; i < build->count; i++)
    page_paragraph(build->page, observed(build, i) ? would_move(build, i) : in_short(build, i));
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
