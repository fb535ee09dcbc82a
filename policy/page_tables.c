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

/* A value by what its key ends with. */
static const char *value_text(struct page *page, const char *key, const json_t *value) {
  const size_t length = strlen(key);
  const enum page_unit unit = length > 3 && !strcmp(key + length - 3, "_ns") ? UNIT_NS
                              : strstr(key, "bytes")                         ? UNIT_BYTES
                                                                             : UNIT_COUNT;
  if (json_is_number(value))
    return page_value(page, unit, json_number_value(value) >= 0, json_number_value(value));
  if (json_is_boolean(value))
    return json_is_true(value) ? "yes" : "no";
  return json_is_string(value) ? page_print(page, "%s", json_string_value(value)) : "-";
}

/* "staging_bytes" as "staging". */
static const char *key_text(struct page *page, const char *key) {
  static const char *const units[] = {"_bytes", "_ns"};
  size_t length = strlen(key);
  for (size_t i = 0; i < 2; i++)
    if (length > strlen(units[i]) && !strcmp(key + length - strlen(units[i]), units[i]))
      length -= strlen(units[i]);
  char *text = page_keep(page, length + 1);
  for (size_t i = 0; i < length; i++)
    text[i] = key[i] == '_' ? ' ' : key[i];
  return text;
}

/* A row for each object of an array, a column for each key of the first. */
static void object_table(struct page *page, const char *caption, const json_t *array) {
  const json_t *first = json_array_get(array, 0), *value;
  const char *key;
  unsigned right = 0;
  size_t columns = 0;
  json_object_foreach((json_t *)first, key, value) {
    right |= columns && columns < 32 && json_is_number(value) ? 1u << columns : 0;
    columns++;
  }
  if (!columns)
    return;
  page_table(page, caption, columns, right);
  json_object_foreach((json_t *)first, key, value) page_cell(page, key_text(page, key));
  for (size_t i = 0; i < json_array_size(array); i++)
    json_object_foreach((json_t *)first, key, value)
        page_cell(page, value_text(page, key, json_object_get(json_array_get(array, i), key)));
  page_drop_empty(page);
}

/* Every rank that knows of others tells of all: the first that does is shown, what it tells of itself of each. */
void section_node(const struct build *build) {
  struct page *page = build->page;
  page_section(page, "node", "Ranks of the node");
  if (!build_has(build, "node", "which ranks shared the node isn't known"))
    return;
  for (size_t i = 0; i < build->count; i++) {
    const json_t *node = view_at(build->reports[i].root, "node"), *value;
    const char *key;
    bool any = false;
    json_object_foreach((json_t *)node, key, value) {
      if (json_is_array(value) || json_is_object(value) || json_is_null(value))
        continue;
      if (!any) {
        page_table(page, build->count > 1 ? build->reports[i].label : NULL, 2, 0);
        page_cell(page, "");
        page_cell(page, "");
        any = true;
      }
      page_cell(page, key_text(page, key));
      page_cell(page, value_text(page, key, value));
    }
  }
  for (size_t i = 0; i < build->count; i++) {
    const json_t *node = view_at(build->reports[i].root, "node"), *value;
    const char *key;
    bool any = false;
    json_object_foreach((json_t *)node, key, value) if (json_array_size(value)) {
      object_table(page, page_print(page, "%s%s", build_whose(build, i), key_text(page, key)),
                   value);
      any = true;
    }
    if (any)
      break;
  }
}
