/* See page.h: how a page is put together. */
#define _GNU_SOURCE
#include "page.h"
#include "command.h"
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct page_memory {
  struct page_memory *next;
  max_align_t bytes[];
};

static _Noreturn void no_memory(void) {
  say("report: no memory for the page; show fewer files at once");
  exit(EXIT_FAILURE);
}

struct page *page_new(void) {
  struct page *page = calloc(1, sizeof *page);
  if (page)
    page->end = &page->sections;
  else
    no_memory();
  return page;
}

void page_free(struct page *page) {
  for (struct page_section *section = page->sections; section; section = section->next)
    for (struct page_block *block = section->blocks; block; block = block->next)
      free(block->cells);
  while (page->memory) {
    struct page_memory *next = page->memory->next;
    free(page->memory);
    page->memory = next;
  }
  free(page);
}

void *page_keep(struct page *page, size_t bytes) {
  struct page_memory *memory = calloc(1, sizeof *memory + bytes);
  if (!memory)
    no_memory();
  memory->next = page->memory;
  page->memory = memory;
  return memory->bytes;
}

const char *page_print(struct page *page, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(NULL, 0, format, arguments);
  va_end(arguments);
  const size_t bytes = length < 0 ? 1 : (size_t)length + 1;
  char *text = page_keep(page, bytes);
  va_start(arguments, format);
  vsnprintf(text, bytes, format, arguments);
  va_end(arguments);
  return text;
}

void page_section(struct page *page, const char *id, const char *title) {
  struct page_section *section = page_keep(page, sizeof *section);
  *section = (struct page_section){.id = id, .title = title};
  section->end = &section->blocks;
  *page->end = page->last = section;
  page->end = &section->next;
}

static struct page_block *add(struct page *page, enum block_kind kind) {
  struct page_block *block = page_keep(page, sizeof *block);
  block->kind = kind;
  *page->last->end = page->last->last = block;
  page->last->end = &block->next;
  return block;
}

struct page_block *page_last(struct page *page) {
  return page->last->last;
}

void page_paragraph(struct page *page, const char *text) {
  add(page, BLOCK_TEXT)->text = text;
}

void page_list(struct page *page) {
  add(page, BLOCK_LIST)->columns = 1;
}

void page_tiles(struct page *page) {
  add(page, BLOCK_TILES)->columns = 2;
}

void page_table(struct page *page, const char *caption, size_t columns, unsigned right) {
  struct page_block *block = add(page, BLOCK_TABLE);
  block->text = caption;
  block->columns = columns;
  block->right = right;
}

void page_cell(struct page *page, const char *text) {
  struct page_block *block = page_last(page);
  if (block->count == block->room) {
    block->room = block->room ? 2 * block->room : 16;
    const char **larger = reallocarray(block->cells, block->room, sizeof *larger);
    if (!larger)
      no_memory();
    block->cells = larger;
  }
  block->cells[block->count++] = text;
}

void page_drop_empty(struct page *page) {
  struct page_block *block = page_last(page);
  for (size_t c = block->columns; c-- > 1;) {
    bool empty = true;
    for (size_t i = block->columns + c; i < block->count; i += block->columns)
      empty = empty && !*block->cells[i];
    if (!empty)
      continue;
    size_t kept = 0;
    for (size_t i = 0; i < block->count; i++)
      if (i % block->columns != c)
        block->cells[kept++] = block->cells[i];
    block->count = kept;
    block->columns--;
    /* Bits above the column move down by one. */
    const unsigned below = (1u << c) - 1;
    block->right = (block->right & below) | (block->right >> 1 & ~below);
  }
}

struct chart *page_chart_new(struct page *page, enum chart_kind kind, size_t points) {
  struct chart *chart = page_keep(page, sizeof *chart);
  double *x = page_keep(page, (points + 1) * sizeof *x);
  *chart = (struct chart){.kind = kind, .points = points, .x = x, .x_name = "", .says = ""};
  chart->labels = page_keep(page, (points + 1) * sizeof *chart->labels);
  for (size_t i = 0; i < CHART_SERIES; i++) {
    chart->series[i].values = page_keep(page, (points + 1) * sizeof(double));
    for (size_t k = 0; k < points; k++)
      chart->series[i].values[k] = NAN;
  }
  add(page, BLOCK_CHART)->chart = chart;
  return chart;
}

const char *unit_words(enum page_unit unit, double value, char text[WORDS_BYTES]) {
  switch (unit) {
  case UNIT_BYTES:
    return words_bytes(value, text);
  case UNIT_NS:
    return words_seconds(value / 1e9, text);
  case UNIT_RATE:
    return words_rate(value, text);
  case UNIT_SHARE:
    return words_share(value, text);
  case UNIT_COUNT:
    break;
  }
  if (value < 1e18 && value == floor(value))
    return words_count((uint64_t)value, text);
  snprintf(text, WORDS_BYTES, "%.3g", value);
  return text;
}

const char *page_value(struct page *page, enum page_unit unit, bool known, double value) {
  char text[WORDS_BYTES];
  return known && isfinite(value) ? page_print(page, "%s", unit_words(unit, value, text)) : "-";
}
