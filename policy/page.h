/* What `offload report` shows, apart from how: a page is sections of paragraphs, lists, tables and charts, made once of reports
   (page_build.c) and rendered as text (page_text.c) or as one HTML file (page_html.c, page_svg.c).

   Texts are as they were in the reports: whoever renders makes them harmless. All of a page is freed with it. */
#ifndef OFFLOAD_PAGE_H
#define OFFLOAD_PAGE_H
#include "page_read.h"
#include "words.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum page_unit { UNIT_COUNT, UNIT_BYTES, UNIT_NS, UNIT_RATE, UNIT_SHARE };

enum { CHART_SERIES = 4 };
enum chart_kind {
  CHART_STEPS, /* upright bars, a point each; series that are `below` hang from the axis */
  CHART_LINES, /* lines over x */
  CHART_ROWS,  /* lying bars, a point each, with its label */
};
struct chart_series {
  const char *name;
  const char *
      ink; /* class of style: "compute", "exposed", "hidden", "device", "host", "drives", "down", "up" */
  bool below;
  double *values; /* of each point; NAN: not known */
};
struct chart {
  enum chart_kind kind;
  const char *title;
  const char *x_name;
  const char *says; /* in a sentence, for who can't see it */
  enum page_unit unit;
  size_t points, series_count;
  double *x;           /* of each point, CHART_STEPS and CHART_LINES */
  const char **labels; /* of each point, CHART_ROWS */
  struct chart_series series[CHART_SERIES];
};

enum block_kind { BLOCK_TEXT, BLOCK_LIST, BLOCK_TILES, BLOCK_TABLE, BLOCK_CHART };
struct page_block {
  enum block_kind kind;
  const char *text; /* BLOCK_TEXT; of a table its caption, or NULL */
  bool aside;       /* of use to few: folded in HTML, left out of the text */
  /* BLOCK_LIST: cells, one column. BLOCK_TILES: what, how much, in turn; of the HTML alone. BLOCK_TABLE: rows of `columns` cells, the first row heads. */
  size_t columns, count, room; /* count: of cells */
  const char **cells;
  unsigned right; /* bit n: column n holds numbers */
  struct chart *chart;
  struct page_block *next;
};
struct page_section {
  const char *id, *title;
  struct page_block *blocks, **end, *last;
  struct page_section *next;
};
struct page {
  struct page_memory *memory;
  const char *title, *subtitle;
  struct page_section *sections, **end, *last;
};

/* ---- making one (page.c) ----
   Without memory the program ends with a line. */

struct page *page_new(void);
void page_free(struct page *);
/* What is added comes at the end of the last section, cells at the end of the last table or list. */
void page_section(struct page *, const char *id, const char *title);
void page_paragraph(struct page *, const char *text);
void page_list(struct page *);
void page_tiles(struct page *);
/* `heads`: that many cells, the first row. */
void page_table(struct page *, const char *caption, size_t columns, unsigned right);
void page_cell(struct page *, const char *text);
/* Takes out columns of the last table that hold nothing below their heads. */
void page_drop_empty(struct page *);
/* With room for so many points, all values not known. */
struct chart *page_chart_new(struct page *, enum chart_kind, size_t points);
struct page_block *page_last(struct page *);
/* Text and memory that live as long as the page. */
const char *page_print(struct page *, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void *page_keep(struct page *, size_t bytes); /* zeros */
/* A number as its unit has it; "-" when not known. */
const char *page_value(struct page *, enum page_unit, bool known, double value);
/* The same on an axis or in a line of text. */
const char *unit_words(enum page_unit, double value, char text[WORDS_BYTES]);

/* ---- what is in it, and how it is shown ---- */

struct page *page_build(const struct report_view *reports, size_t count);

/* 80 columns; `utf8`: the terminal shows more than ASCII. */
void page_text(const struct page *, FILE *, bool utf8);
void page_html(const struct page *, FILE *);
/* The chart as an SVG element; `number` makes its names different from others' on the page. */
void page_svg(const struct chart *, unsigned number, FILE *);
/* The same of text, with what HTML would obey escaped and what is no text replaced. */
void page_escape(const char *text, FILE *);

/* The figures of figures.def, advice and reasons of each report, as JSON. */
int page_json(const struct report_view *reports, size_t count, FILE *);
#endif
