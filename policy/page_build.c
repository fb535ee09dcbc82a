/* What `offload report` shows of reports, in order: what to change, what moved, what a step costs, memory, bytes, functions, drives,
   ranks, settings, rates, reasons, all counters. Several reports (ranks) have a column each, or a row.

   An object that no report has is left out with a line; what it is for is said there. */
#define _GNU_SOURCE
#include "page_build.h"

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
  section_advice(&build);
  section_moved(&build);
  section_cost(&build);
  section_memory(&build);
  section_bytes(&build);
  section_functions(&build);
  section_drives(&build);
  section_node(&build);
  section_settings(&build);
  section_rates(&build);
  section_reasons(&build);
  section_counters(&build);
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
    for (size_t f = 0; f < figure_count; f++)
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
