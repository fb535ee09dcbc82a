/* The page's sections that are tables and lists: functions, drives, ranks, settings, rates, reasons, counters. See page_build.h. */
#define _GNU_SOURCE
#include "page_build.h"
#include "page_settings.h"
#include <math.h>
#include <string.h>

static const struct counter {
  const char *name, *help;
} counters[] = {
#define COUNTER(name, help) {#name, help},
#include "counters.def"
#undef COUNTER
};
enum { COUNTERS = sizeof counters / sizeof *counters };

void section_functions(const struct build *build) {
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
  if (!build_has(build, "functions", "none is listed"))
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
        const char *before = c ? "" : build_whose(build, i);
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

void section_drives(const struct build *build) {
  struct page *page = build->page;
  static const char *const heads[] = {"directory", "drive", "written",
                                      "a step",    "used",  "days left"};
  page_section(page, "drives", "Drives");
  if (!build_any(build, "drives")) {
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
      page_cell(page, page_print(page, "%s%s%s", build_whose(build, i), view_text(row, "path"),
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

void section_settings(const struct build *build) {
  struct page *page = build->page;
  page_section(page, "settings", "Settings that aren't the initial ones");
  if (!build_has(build, "settings", "they aren't known"))
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

void section_reasons(const struct build *build) {
  page_section(build->page, "reasons", "Why something was not done");
  if (build_has(build, "reasons", "none is given") && !build_sentences(build, "reasons", NULL))
    page_paragraph(build->page, "Nothing stood in the way.");
}

void section_counters(const struct build *build) {
  struct page *page = build->page;
  page_section(page, "counters", "All that was counted");
  if (!build_has(build, "totals", "nothing was counted"))
    return;
  page_table(page, "Counters that aren't 0", build->count + 1, ~1u);
  page_last(page)->aside = true;
  build_heads(build, "counter");
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

/* ---- the machine ---- */

static const struct rate {
  const char *name, *unit, *help;
} rates[] = {
#define RATE(name, unit, assumed, help) {#name, unit, help},
#include "rates.def"
#undef RATE
};
enum { RATES = sizeof rates / sizeof *rates };

/* The report has `launch` in nanoseconds. */
static enum page_unit unit_of(const struct rate *rate) {
  return !strcmp(rate->unit, "bytes/s") ? UNIT_RATE
         : !strcmp(rate->unit, "s")     ? UNIT_NS
                                        : UNIT_COUNT;
}

void section_rates(const struct build *build) {
  struct page *page = build->page;
  page_section(page, "rates", "The machine's rates");
  if (!build_has(build, "rates", "what the machine does in a second isn't known"))
    return;
  page_table(page, NULL, build->count + 1, ~1u);
  build_heads(build, "");
  for (size_t r = 0; r < RATES; r++) {
    const char *path = page_print(page, "rates.%s", rates[r].name);
    if (!build_any(build, path))
      continue;
    page_cell(page, rates[r].help);
    for (size_t i = 0; i < build->count; i++) {
      double value = 0;
      const bool known = view_number(build->reports[i].root, path, &value);
      page_cell(page, page_value(page, unit_of(&rates[r]), known, value));
    }
  }
  page_cell(page, "where they are from");
  for (size_t i = 0; i < build->count; i++)
    page_cell(page, page_print(page, "%s", view_text(build->reports[i].root, "rates.source")));
}

/* ---- the node's ranks ---- */

static const struct {
  const char *head, *key;
  enum { RANK_TEXT, RANK_COUNT, RANK_BYTES } kind;
} rank_columns[] = {{"rank", "local_rank", RANK_COUNT},  {"pid", "pid", RANK_COUNT},
                    {"GPU", "gpu", RANK_TEXT},           {"mode", "mode", RANK_TEXT},
                    {"way", "way", RANK_TEXT},           {"steps", "steps", RANK_COUNT},
                    {"threads", "threads", RANK_COUNT},  {"state", "state_bytes", RANK_BYTES},
                    {"host", "moved_bytes", RANK_BYTES}, {"drives", "drive_bytes", RANK_BYTES},
                    {"why not all", "note", RANK_TEXT}};
enum { RANK_COLUMNS = sizeof rank_columns / sizeof *rank_columns };

static void rank_row(struct page *page, const json_t *rank) {
  for (size_t c = 0; c < RANK_COLUMNS; c++) {
    double value = 0;
    const bool known = view_number(rank, rank_columns[c].key, &value);
    if (rank_columns[c].kind == RANK_TEXT)
      page_cell(page, page_print(page, "%s", view_text(rank, rank_columns[c].key)));
    else if (rank_columns[c].kind == RANK_BYTES)
      page_cell(page, page_value(page, UNIT_BYTES, known, value));
    else
      page_cell(page, known ? page_print(page, "%.0f", value) : "-");
  }
}

/* Every report tells of all ranks; the first that does is shown. */
void section_node(const struct build *build) {
  struct page *page = build->page;
  page_section(page, "node", "Ranks of the node");
  if (!build_has(build, "node", "which ranks shared the node isn't known"))
    return;
  for (size_t i = 0; i < build->count; i++) {
    const char *problem = view_text(build->reports[i].root, "node.problem");
    if (*problem)
      page_paragraph(page, page_print(page, "%sranks don't know of each other: %s",
                                      build_whose(build, i), problem));
  }
  build_figures(build, "node", NULL);
  for (size_t i = 0; i < build->count; i++) {
    const json_t *ranks = view_at(build->reports[i].root, "node.ranks");
    if (!json_array_size(ranks))
      continue;
    page_table(page, page_print(page, "As %s saw them last", build->reports[i].label), RANK_COLUMNS,
               0x3e3u);
    for (size_t c = 0; c < RANK_COLUMNS; c++)
      page_cell(page, rank_columns[c].head);
    for (size_t k = 0; k < json_array_size(ranks); k++)
      rank_row(page, json_array_get(ranks, k));
    page_drop_empty(page);
    return;
  }
}
