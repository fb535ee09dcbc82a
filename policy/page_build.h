/* What the sections of `offload report`'s page have in common: page_common.c, called by page_build.c and by the files of the sections. */
#ifndef OFFLOAD_PAGE_BUILD_H
#define OFFLOAD_PAGE_BUILD_H
#include "page.h"

/* The reports, and the page that is made of them. */
struct build {
  struct page *page;
  const struct report_view *reports;
  size_t count;
};

enum zero { ALWAYS, NONZERO };
struct figure {
  const char *group, *key, *label, *expression;
  enum page_unit unit;
  enum zero shown;
};
extern const struct figure figures[];
extern const size_t figure_count;

bool build_any(const struct build *, const char *path);
/* False, and the line that says so, when no report has it; `what` is then not known, in words. */
bool build_has(const struct build *, const char *path, const char *what);
/* Whether state of it was ever away from the device, so that steps can have got longer by that. */
bool build_away(const struct build *, size_t report);
bool build_any_away(const struct build *);
/* "", or "rank 3: " where there are several. */
const char *build_whose(const struct build *, size_t report);
/* The first row of a table with a column each report. */
void build_heads(const struct build *, const char *first);
/* A table of a group of figures: a row each, a column each report. */
void build_figures(const struct build *, const char *group, const char *caption);
/* A list of the sentences of an array, each once, with whose they are. `key`: of objects, NULL where they are strings. Returns how many. */
size_t build_sentences(const struct build *, const char *path, const char *key);
/* The largest of the reports' figures, or their sum. */
bool build_all(const struct build *, const char *expression, bool sum, double *all);
/* One more series of a chart. */
void build_series(struct chart *, const char *name, const char *ink, bool below);

/* page_moved.c */
void section_advice(const struct build *);
void section_moved(const struct build *);
/* page_steps.c */
void section_cost(const struct build *);
void section_memory(const struct build *);
void section_bytes(const struct build *);
/* page_tables.c */
void section_functions(const struct build *);
void section_drives(const struct build *);
void section_node(const struct build *);
void section_settings(const struct build *);
void section_rates(const struct build *);
void section_reasons(const struct build *);
void section_counters(const struct build *);
#endif
