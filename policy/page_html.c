/* A page as one HTML file: style and charts are in it, no script, and its policy forbids whatever else it might be made to load. Light and dark
   follow the reader's system; on narrow windows tables and charts scroll in themselves. See page.h. */
#include "page.h"
#include <stdlib.h>
#include <string.h>

static const char head[] =
    "<!doctype html>\n"
    "<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
    "'unsafe-inline'\">\n"
    "<meta name=\"color-scheme\" content=\"light dark\">\n";

static const char style[] =
#include "page_style.h"
    ;

void page_escape(const char *text, FILE *out) {
  const size_t bytes = strlen(text) + 1;
  char *plain = malloc(bytes);
  if (!plain)
    return;
  words_plain(text, plain, bytes);
  for (const char *c = plain; *c; c++)
    switch (*c) {
    case '&':
      fputs("&amp;", out);
      break;
    case '<':
      fputs("&lt;", out);
      break;
    case '>':
      fputs("&gt;", out);
      break;
    case '"':
      fputs("&quot;", out);
      break;
    case '\'':
      fputs("&#39;", out);
      break;
    default:
      fputc(*c, out);
    }
  free(plain);
}

static void element(const char *name, const char *text, FILE *out) {
  fprintf(out, "<%s>", name);
  page_escape(text, out);
  fprintf(out, "</%.*s>\n", (int)strcspn(name, " "), name);
}

static void cell(const struct page_block *block, size_t row, size_t column, FILE *out) {
  const bool right = block->right >> (column < 31 ? column : 31) & 1;
  const char *name = !row     ? right ? "th scope=\"col\" class=\"n\"" : "th scope=\"col\""
                     : column ? right ? "td class=\"n\"" : "td"
                              : "th scope=\"row\"";
  element(name, block->cells[row * block->columns + column], out);
}

static void table(const struct page_block *block, FILE *out) {
  const size_t rows = block->count / block->columns;
  bool heads = false;
  if (rows < 2)
    return;
  for (size_t c = 0; c < block->columns; c++)
    heads |= *block->cells[c] != 0;
  if (block->aside) {
    fputs("<details>", out);
    element("summary", block->text, out);
  }
  /* A focus of its own, so that keys scroll it too. */
  fputs("<div class=\"scroll t\" tabindex=\"0\" role=\"group\" aria-label=\"table\"><table>\n",
        out);
  if (block->text && !block->aside)
    element("caption", block->text, out);
  for (size_t r = heads ? 0 : 1; r < rows; r++) {
    fputs(r ? "<tr>" : "<thead><tr>", out);
    for (size_t c = 0; c < block->columns; c++)
      cell(block, r, c, out);
    fputs(r ? "</tr>\n" : "</tr></thead>\n", out);
  }
  fputs("</table></div>\n", out);
  if (block->aside)
    fputs("</details>\n", out);
}

static void chart(const struct chart *drawn, unsigned number, FILE *out) {
  fputs("<figure>\n<figcaption>", out);
  page_escape(drawn->title, out);
  fputs("<ul class=\"legend\">", out);
  for (size_t s = 0; s < drawn->series_count; s++) {
    fprintf(out, "<li><i class=\"%s\"></i>", drawn->series[s].ink);
    page_escape(drawn->series[s].name, out);
    fputs("</li>", out);
  }
  fputs("</ul></figcaption>\n<div class=\"scroll\" tabindex=\"0\" role=\"group\" "
        "aria-label=\"chart\">",
        out);
  page_svg(drawn, number, out);
  fputs("</div>\n</figure>\n", out);
}

static void tiles(const struct page_block *block, FILE *out) {
  fputs("<dl class=\"tiles\">\n", out);
  for (size_t i = 0; i + 1 < block->count; i += 2) {
    fputs("<div>", out);
    element("dt", block->cells[i], out);
    element("dd", block->cells[i + 1], out);
    fputs("</div>", out);
  }
  fputs("</dl>\n", out);
}

static void show(const struct page_block *block, unsigned number, FILE *out) {
  switch (block->kind) {
  case BLOCK_TEXT:
    element("p", block->text, out);
    break;
  case BLOCK_LIST:
    fputs("<ul>\n", out);
    for (size_t i = 0; i < block->count; i++)
      element("li", block->cells[i], out);
    fputs("</ul>\n", out);
    break;
  case BLOCK_TILES:
    tiles(block, out);
    break;
  case BLOCK_TABLE:
    table(block, out);
    break;
  case BLOCK_CHART:
    chart(block->chart, number, out);
    break;
  }
}

void page_html(const struct page *page, FILE *out) {
  unsigned number = 0;
  fputs(head, out);
  element("title", page->title, out);
  fprintf(out, "<style>\n%s</style>\n</head>\n<body>\n<main>\n<header>\n", style);
  element("h1", page->title, out);
  element("p", page->subtitle, out);
  fputs("</header>\n", out);
  for (const struct page_section *section = page->sections; section; section = section->next) {
    fprintf(out, "<section id=\"%s\" aria-labelledby=\"h-%s\">\n<h2 id=\"h-%s\">", section->id,
            section->id, section->id);
    page_escape(section->title, out);
    fputs("</h2>\n", out);
    for (const struct page_block *block = section->blocks; block; block = block->next)
      show(block, number++, out);
    fputs("</section>\n", out);
  }
  fputs("</main>\n</body>\n</html>\n", out);
}
