/* A page as text of 80 columns, for terminals and mail. What reports say is made harmless before it is measured: it can't move the cursor
   or break a line. See page.h. */
#define _GNU_SOURCE
#include "page.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 80, INDENT = 2, GAP = 2, LEAST_WRAPPED = 24, BAR = 30, SPARKS = 16, NAME = 36 };

struct writer {
  FILE *out;
  bool utf8;
  struct page *memory; /* what is made for this text */
};

/* Without control characters; without what isn't ASCII where the terminal has no more. */
static const char *clean(struct writer *writer, const char *text) {
  const size_t bytes = strlen(text) + 1;
  char *copy = page_keep(writer->memory, bytes), *end = copy;
  words_plain(text, copy, bytes);
  if (writer->utf8)
    return copy;
  for (const char *c = copy; *c; c++)
    if (((unsigned char)*c & 0xc0) != 0x80)
      *end++ = (unsigned char)*c < 0x80 ? *c : '?';
  *end = 0;
  return copy;
}

/* Bytes of the line that `text` begins with, at most `columns` wide; *next is where the following one begins. */
static size_t line_of(const char *text, size_t columns, const char **next) {
  const size_t fits = words_cut(text, columns);
  size_t end = fits;
  if (text[fits] && text[fits] != ' ') {
    while (end && text[end] != ' ')
      end--;
    if (!end)
      end = fits; /* a word that is longer than a line is cut */
  }
  *next = text + end;
  while (**next == ' ')
    ++*next;
  while (end && text[end - 1] == ' ')
    end--;
  return end;
}

static void wrapped(struct writer *writer, const char *first, const char *others,
                    const char *text) {
  text = clean(writer, text);
  const char *before = first;
  do {
    const char *line = text;
    const size_t bytes = line_of(line, WIDTH - words_columns(before), &text);
    fprintf(writer->out, "%s%.*s\n", before, (int)bytes, line);
    before = others;
  } while (*text);
}

static void pad(struct writer *writer, size_t columns) {
  fprintf(writer->out, "%*s", (int)columns, "");
}

/* ---- tables ---- */

struct table {
  const struct page_block *block;
  size_t rows;
  const char **cells; /* clean */
  size_t *widths;
};

static size_t column_width(const struct table *table, size_t column) {
  size_t most = 0;
  for (size_t r = 0; r < table->rows; r++) {
    const size_t columns = words_columns(table->cells[r * table->block->columns + column]);
    most = columns > most ? columns : most;
  }
  return most;
}

static bool is_right(const struct table *table, size_t column) {
  return column < 32 ? table->block->right >> column & 1 : table->block->right >> 31 & 1;
}

/* One row of some columns, in as many lines as its wrapped cells need. */
static void table_row(struct writer *writer, const struct table *table, size_t row, size_t begin,
                      size_t end) {
  const size_t columns = table->block->columns;
  const char **rest = calloc(columns, sizeof *rest);
  bool more = rest != NULL;
  for (size_t c = 0; rest && c < columns; c++)
    rest[c] = table->cells[row * columns + c];
  while (more) {
    size_t owed = INDENT;
    more = false;
    for (size_t c = 0; c < columns; c = c ? c + 1 : begin) {
      if (c >= end)
        break;
      const char *line = rest[c];
      const size_t bytes = line_of(line, table->widths[c], &rest[c]);
      char *text = strndup(line, bytes);
      const size_t wide = text ? words_columns(text) : 0;
      more |= *rest[c] != 0;
      if (wide) {
        pad(writer, owed + (is_right(table, c) ? table->widths[c] - wide : 0));
        fputs(text, writer->out);
        owed = GAP + (is_right(table, c) ? 0 : table->widths[c] - wide);
      } else
        owed += table->widths[c] + GAP;
      free(text);
    }
    fputc('\n', writer->out);
  }
  free(rest);
}

static void rule(struct writer *writer, const struct table *table, size_t begin, size_t end) {
  size_t owed = INDENT;
  for (size_t c = 0; c < end; c = c ? c + 1 : begin) {
    pad(writer, owed);
    for (size_t i = 0; i < table->widths[c]; i++)
      fputs(writer->utf8 ? "─" : "-", writer->out);
    owed = GAP;
  }
  fputc('\n', writer->out);
}

static bool has_heads(const struct table *table, size_t begin, size_t end) {
  for (size_t c = begin; c < end; c++)
    if (*table->cells[c])
      return true;
  return *table->cells[0];
}

/* As many columns at a time as there is room for, each time behind the first one. */
static void table(struct writer *writer, const struct page_block *block) {
  struct table made = {.block = block, .rows = block->count / block->columns};
  if (made.rows < 2)
    return;
  made.cells = page_keep(writer->memory, block->count * sizeof *made.cells);
  made.widths = page_keep(writer->memory, block->columns * sizeof *made.widths);
  for (size_t i = 0; i < block->count; i++)
    made.cells[i] = clean(writer, block->cells[i]);
  for (size_t c = 0; c < block->columns; c++)
    made.widths[c] = column_width(&made, c);
  if (block->columns > 1 && made.widths[0] > WIDTH / 2)
    made.widths[0] = WIDTH / 2;
  if (block->text)
    wrapped(writer, "  ", "  ", block->text);
  for (size_t begin = 1, end; begin < block->columns; begin = end) {
    size_t left = WIDTH - INDENT - made.widths[0];
    for (end = begin; end < block->columns; end++) {
      if (left < GAP + made.widths[end]) {
        const bool wraps = !is_right(&made, end) && left >= GAP + LEAST_WRAPPED;
        if (!wraps && end > begin)
          break;
        made.widths[end] = left - GAP;
      }
      left -= GAP + made.widths[end];
    }
    if (has_heads(&made, begin, end)) {
      table_row(writer, &made, 0, begin, end);
      rule(writer, &made, begin, end);
    }
    for (size_t r = 1; r < made.rows; r++)
      table_row(writer, &made, r, begin, end);
    if (end < block->columns)
      fputc('\n', writer->out);
  }
  fputc('\n', writer->out);
}

/* ---- charts ---- */

static const char *const fills[2][CHART_SERIES] = {{"#", "+", ".", ":"}, {"█", "▓", "░", "▒"}};

static void legend(struct writer *writer, const struct chart *chart) {
  const bool rows = chart->kind == CHART_ROWS;
  size_t used = 4;
  pad(writer, 4);
  for (size_t s = 0; s < chart->series_count; s++) {
    const size_t wide = 6 + words_columns(chart->series[s].name);
    if (s && used + wide > WIDTH) {
      fputs("\n    ", writer->out);
      used = 4;
    }
    fprintf(writer->out, "%s%s %s", used > 4 ? "  " : "",
            rows && chart->series[s].below ? "( )" : fills[writer->utf8][s], chart->series[s].name);
    used += wide;
  }
  fputc('\n', writer->out);
}

static double known(double value) {
  return isfinite(value) ? value : 0;
}

static void bar_rows(struct writer *writer, const struct chart *chart) {
  double most = 0;
  size_t widest = 0;
  for (size_t p = 0; p < chart->points; p++) {
    double sum = 0;
    for (size_t s = 0; s < chart->series_count; s++)
      sum += chart->series[s].below ? 0 : known(chart->series[s].values[p]);
    most = fmax(most, sum);
    const size_t columns = words_columns(clean(writer, chart->labels[p]));
    widest = columns > widest ? columns : widest;
  }
  widest = widest > 16 ? 16 : widest;
  for (size_t p = 0; p < chart->points; p++) {
    const char *label = clean(writer, chart->labels[p]);
    const size_t bytes = words_cut(label, widest);
    char text[WORDS_BYTES];
    double sum = 0;
    size_t drawn = 0;
    fprintf(writer->out, "    %.*s", (int)bytes, label);
    pad(writer, widest + 2 - words_columns(label) * (bytes == strlen(label)) -
                    (bytes == strlen(label) ? 0 : widest));
    for (size_t s = 0; most > 0 && s < chart->series_count; s++) {
      if (chart->series[s].below)
        continue;
      sum += known(chart->series[s].values[p]);
      for (; drawn < (size_t)lround(sum / most * BAR); drawn++)
        fputs(fills[writer->utf8][s], writer->out);
    }
    pad(writer, BAR - drawn + 2);
    for (size_t s = 0; s < chart->series_count; s++) {
      const double value = chart->series[s].values[p];
      const bool below = chart->series[s].below;
      fprintf(writer->out, "%s%s%s",
              !s      ? ""
              : below ? " ("
                      : " + ",
              isfinite(value) ? unit_words(chart->unit, value, text) : "-", below ? ")" : "");
    }
    fputc('\n', writer->out);
  }
  legend(writer, chart);
}

/* A row for each series: its course from the first to the last point, the least and the most. */
static void courses(struct writer *writer, const struct chart *chart) {
  static const char *const levels[2][8] = {{"_", ".", ":", "-", "=", "+", "*", "#"},
                                           {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"}};
  for (size_t s = 0; s < chart->series_count; s++) {
    const struct chart_series *series = &chart->series[s];
    const size_t sparks = chart->points < SPARKS ? chart->points : SPARKS;
    double least = INFINITY, most = -INFINITY;
    char low[WORDS_BYTES], high[WORDS_BYTES];
    for (size_t p = 0; p < chart->points; p++)
      if (isfinite(series->values[p])) {
        least = fmin(least, series->values[p]);
        most = fmax(most, series->values[p]);
      }
    if (!isfinite(most) || most <= 0)
      continue;
    fprintf(writer->out, "    %-*s  ", NAME, series->name);
    for (size_t i = 0; i < sparks; i++) {
      const double value = known(series->values[i * chart->points / sparks]);
      fputs(levels[writer->utf8][(int)fmin(7, floor(value / most * 8))], writer->out);
    }
    unit_words(chart->unit, least, low);
    unit_words(chart->unit, most, high);
    fprintf(writer->out, strcmp(low, high) ? "  %s to %s\n" : "  %s\n", low, high);
  }
}

static void chart(struct writer *writer, const struct chart *drawn) {
  fprintf(writer->out, "  %s\n", clean(writer, drawn->title));
  if (drawn->kind == CHART_ROWS)
    bar_rows(writer, drawn);
  else
    courses(writer, drawn);
  fputc('\n', writer->out);
}

/* ---- the page ---- */

static void block(struct writer *writer, const struct page_block *shown) {
  switch (shown->kind) {
  case BLOCK_TEXT:
    wrapped(writer, "  ", "  ", shown->text);
    fputc('\n', writer->out);
    break;
  case BLOCK_LIST:
    for (size_t i = 0; i < shown->count; i++)
      wrapped(writer, writer->utf8 ? "  • " : "  * ", "    ", shown->cells[i]);
    fputc('\n', writer->out);
    break;
  case BLOCK_TILES:
    break; /* the first paragraphs say it */
  case BLOCK_TABLE:
    table(writer, shown);
    break;
  case BLOCK_CHART:
    chart(writer, shown->chart);
    break;
  }
}

void page_text(const struct page *page, FILE *out, bool utf8) {
  struct writer writer = {.out = out, .utf8 = utf8, .memory = page_new()};
  wrapped(&writer, "", "", page->title);
  wrapped(&writer, "", "", page->subtitle);
  for (const struct page_section *section = page->sections; section; section = section->next) {
    if (section->blocks && section->blocks->aside)
      continue;
    fputc('\n', out);
    fprintf(out, "%s ", section->title);
    for (size_t i = words_columns(section->title) + 1; i < WIDTH; i++)
      fputs(utf8 ? "─" : "-", out);
    fputs("\n\n", out);
    for (const struct page_block *shown = section->blocks; shown; shown = shown->next)
      block(&writer, shown);
  }
  page_free(writer.memory);
}
