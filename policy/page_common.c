/* See page_build.h. */
#define _GNU_SOURCE
#include "page_build.h"
#include <math.h>
#include <string.h>

const struct figure figures[] = {
#define FIGURE(group, key, label, unit, shown, expression)                                         \
  {#group, #key, label, expression, UNIT_##unit, shown},
#include "figures.def"
#undef FIGURE
};
const size_t figure_count = sizeof figures / sizeof *figures;

bool build_any(const struct build *build, const char *path) {
  for (size_t i = 0; i < build->count; i++) {
    const json_t *value = view_at(build->reports[i].root, path);
    if (value && !json_is_null(value))
      return true;
  }
  return false;
}

/* False, and the line that says so, when no report has it. */
bool build_has(const struct build *build, const char *path, const char *what) {
  if (build_any(build, path))
    return true;
  page_paragraph(build->page,
                 page_print(build->page, "%s no \"%s\" here: %s.",
                            build->count == 1 ? "The report has" : "The reports have", path, what));
  return false;
}

bool build_away(const struct build *build, size_t report) {
  const json_t *root = build->reports[report].root;
  double host = 0, drives = 0;
  view_number(root, "totals.moved_bytes_peak", &host);
  view_number(root, "totals.drive_bytes_peak", &drives);
  return host > 0 || drives > 0;
}

bool build_any_away(const struct build *build) {
  for (size_t i = 0; i < build->count; i++)
    if (build_away(build, i))
      return true;
  return false;
}

/* "", or "rank 3: " where there are several. */
const char *build_whose(const struct build *build, size_t report) {
  return build->count == 1 ? "" : page_print(build->page, "%s: ", build->reports[report].label);
}

void build_heads(const struct build *build, const char *first) {
  page_cell(build->page, first);
  for (size_t i = 0; i < build->count; i++)
    page_cell(build->page, build->count == 1 ? "" : build->reports[i].label);
}

/* A table of a group of figures: a row each, a column each report. */
void build_figures(const struct build *build, const char *group, const char *caption) {
  page_table(build->page, caption, build->count + 1, ~1u);
  build_heads(build, "");
  for (size_t f = 0; f < figure_count; f++) {
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
size_t build_sentences(const struct build *build, const char *path, const char *key) {
  size_t found = 0;
  for (size_t i = 0; i < build->count; i++) {
    const json_t *array = view_at(build->reports[i].root, path);
    for (size_t k = 0; k < json_array_size(array); k++) {
      const json_t *item = json_array_get(array, k);
      const char *text = key ? view_text(item, key) : json_string_value(item);
      if (!text || !*text)
        continue;
      const size_t begin = strlen(build_whose(build, i));
      const struct page_block *list = found ? page_last(build->page) : NULL;
      bool fresh = true;
      for (size_t n = 0; list && n < list->count; n++) {
        const char *there = list->cells[n], *colon = build->count == 1 ? NULL : strstr(there, ": ");
        const char *said = colon ? colon + 2 : there;
        if (strcmp(said, text) != 0)
          continue;
        fresh = false;
        /* "rank 0, rank 1: the sentence" */
        if (begin && strncmp(there, build_whose(build, i), begin) != 0)
          list->cells[n] = page_print(build->page, "%.*s, %s%s", (int)(colon - there), there,
                                      build_whose(build, i), text);
      }
      if (fresh && !found++)
        page_list(build->page);
      if (fresh)
        page_cell(build->page, page_print(build->page, "%s%s", build_whose(build, i), text));
    }
  }
  return found;
}

/* The largest of the reports', or their sum. */
bool build_all(const struct build *build, const char *expression, bool sum, double *all) {
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

void build_series(struct chart *chart, const char *name, const char *ink, bool below) {
  struct chart_series *fresh = &chart->series[chart->series_count++];
  *fresh = (struct chart_series){name, ink, below, fresh->values};
}
