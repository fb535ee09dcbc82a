/* Charts as SVG elements, coloured by the page's style so that they follow its light and dark. Every bar and point tells its figures in a
   <title>, which browsers show on hover; no script. See page.h. */
#include "page.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
  WIDE = 960,
  LEFT = 84,
  RIGHT = 14,
  TOP = 14,
  HIGH = 210,  /* of what is plotted */
  BOTTOM = 42, /* below it: numbers and the name of x */
  PLOT = WIDE - LEFT - RIGHT,
  BARS_MOST = 120,
  ROW = 40,
  ROW_LABEL = 124,
  ROW_VALUES = 230,
  TICKS = 6,
};
static const double widest_bar = 26;

/* The least of 1, 2, 5, 10, ... times a power of the unit's base that makes at most `ticks` of `most`. */
static double tick_of(enum page_unit unit, double most, int ticks) {
  double base = 1;
  if (unit == UNIT_BYTES)
    while (base * 1024 <= most)
      base *= 1024;
  const double wanted = most / base / ticks, power = pow(10, floor(log10(wanted)));
  const double times = wanted / power;
  const double tick = power * (times <= 1 ? 1 : times <= 2 ? 2 : times <= 5 ? 5 : 10) * base;
  return unit == UNIT_COUNT && tick < 1 ? 1 : tick;
}

static void open_svg(const struct chart *chart, unsigned number, double high, FILE *out) {
  fprintf(out,
          "<svg viewBox=\"0 0 %d %.0f\" role=\"img\" aria-labelledby=\"t%u d%u\">"
          "<title id=\"t%u\">",
          WIDE, high, number, number, number);
  page_escape(chart->title, out);
  fprintf(out, "</title><desc id=\"d%u\">", number);
  page_escape(chart->says, out);
  fputs("</desc>\n", out);
}

static void label(double x, double y, const char *anchor, const char *text, FILE *out) {
  fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
  page_escape(text, out);
  fputs("</text>\n", out);
}

static void line(double x1, double y1, double x2, double y2, const char *ink, FILE *out) {
  fprintf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x1, y1, x2,
          y2, ink);
}

static double known(double value) {
  return isfinite(value) ? value : 0;
}

/* ---- upright bars ---- */

/* Points that are too many are joined, each with its neighbours: their mean. */
struct bars {
  size_t count;
  double values[BARS_MOST][CHART_SERIES], first[BARS_MOST], last[BARS_MOST];
};

static void join(const struct chart *chart, struct bars *bars) {
  bars->count = chart->points < BARS_MOST ? chart->points : BARS_MOST;
  for (size_t b = 0; b < bars->count; b++) {
    const size_t begin = b * chart->points / bars->count,
                 end = (b + 1) * chart->points / bars->count;
    bars->first[b] = chart->x[begin];
    bars->last[b] = chart->x[end - 1];
    for (size_t s = 0; s < chart->series_count; s++) {
      bars->values[b][s] = 0;
      for (size_t p = begin; p < end; p++)
        bars->values[b][s] += known(chart->series[s].values[p]) / (double)(end - begin);
    }
  }
}

static void bar_title(const struct chart *chart, const struct bars *bars, size_t b, FILE *out) {
  char text[WORDS_BYTES];
  fprintf(out, "<title>%s %.0f", chart->x_name, bars->first[b]);
  if (bars->last[b] > bars->first[b])
    fprintf(out, " to %.0f, mean", bars->last[b]);
  for (size_t s = 0; s < chart->series_count; s++)
    fprintf(out, "\n%s: %s", chart->series[s].name,
            unit_words(chart->unit, bars->values[b][s], text));
  fputs("</title>", out);
}

static void steps(const struct chart *chart, unsigned number, FILE *out) {
  static struct bars bars;
  double up = 0, down = 0;
  char text[WORDS_BYTES];
  join(chart, &bars);
  for (size_t b = 0; b < bars.count; b++) {
    double above = 0, below = 0;
    for (size_t s = 0; s < chart->series_count; s++)
      *(chart->series[s].below ? &below : &above) += bars.values[b][s];
    up = fmax(up, above);
    down = fmax(down, below);
  }
  if (up + down <= 0)
    up = 1;
  const double scale = HIGH / (up + down), axis = TOP + up * scale;
  const double tick = tick_of(chart->unit, up + down, TICKS);
  open_svg(chart, number, TOP + HIGH + BOTTOM, out);
  for (int i = -(int)floor(down / tick); i * tick <= up; i++) {
    const double at = i * tick;
    line(LEFT, axis - at * scale, WIDE - RIGHT, axis - at * scale, "grid", out);
    label(LEFT - 8, axis - at * scale + 4, "end", unit_words(chart->unit, fabs(at), text), out);
  }
  const double room = (double)PLOT / (double)bars.count, wide = fmin(widest_bar, room * 0.8);
  for (size_t b = 0; b < bars.count; b++) {
    const double x = LEFT + ((double)b + 0.5) * room - wide / 2;
    double above = 0, below = 0;
    fputs("<g>", out);
    bar_title(chart, &bars, b, out);
    for (size_t s = 0; s < chart->series_count; s++) {
      const double value = bars.values[b][s];
      double *sum = chart->series[s].below ? &below : &above;
      const double y = chart->series[s].below ? axis + *sum * scale : axis - (*sum + value) * scale;
      *sum += value;
      if (value > 0)
        fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"%s\"/>", x,
                y, wide, value * scale, chart->series[s].ink);
    }
    fputs("</g>\n", out);
  }
  line(LEFT, axis, WIDE - RIGHT, axis, "axis", out);
  const size_t every = (bars.count + 9) / 10;
  for (size_t b = 0; b < bars.count; b += every) {
    snprintf(text, sizeof text, "%.0f", bars.first[b]);
    label(LEFT + ((double)b + 0.5) * room, TOP + HIGH + 18, "middle", text, out);
  }
  label(LEFT + PLOT / 2.0, TOP + HIGH + 36, "middle", chart->x_name, out);
}

/* ---- lines ---- */

static double greatest(const double *values, size_t points) {
  double most = 0;
  for (size_t p = 0; p < points; p++)
    most = fmax(most, known(values[p]));
  return most;
}

/* The points in x and y of the drawing; a part between what isn't known begins anew. */
static void course(const struct chart *chart, const struct chart_series *series, double x_scale,
                   double y_scale, FILE *out) {
  bool drawing = false;
  fprintf(out, "<path class=\"course %s\" d=\"", series->ink);
  for (size_t p = 0; p < chart->points; p++) {
    if (!isfinite(series->values[p])) {
      drawing = false;
      continue;
    }
    fprintf(out, "%s%.1f %.1f", drawing ? "L" : "M", LEFT + known(chart->x[p]) * x_scale,
            TOP + HIGH - series->values[p] * y_scale);
    drawing = true;
  }
  fprintf(out, "\"><title>%s</title></path>\n", series->name);
  const size_t every = (chart->points + 79) / 80;
  for (size_t p = 0; p < chart->points; p += every) {
    char text[WORDS_BYTES];
    if (isfinite(series->values[p]))
      fprintf(out,
              "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%s\" class=\"%s\"><title>%s: %s at %.1f"
              "</title></circle>\n",
              LEFT + known(chart->x[p]) * x_scale, TOP + HIGH - series->values[p] * y_scale,
              chart->points > 40 ? "1.5" : "3", series->ink, series->name,
              unit_words(chart->unit, series->values[p], text), known(chart->x[p]));
  }
}

static void lines(const struct chart *chart, unsigned number, FILE *out) {
  char text[WORDS_BYTES];
  double most = 0, last = greatest(chart->x, chart->points);
  for (size_t s = 0; s < chart->series_count; s++)
    most = fmax(most, greatest(chart->series[s].values, chart->points));
  most = most > 0 ? most : 1;
  most = ceil(most / tick_of(chart->unit, most, TICKS)) * tick_of(chart->unit, most, TICKS);
  last = last > 0 ? last : 1;
  const double x_scale = PLOT / last, y_scale = HIGH / most;
  const double tick = tick_of(chart->unit, most, TICKS), x_tick = tick_of(UNIT_NS, last, 8);
  open_svg(chart, number, TOP + HIGH + BOTTOM, out);
  for (int i = 0; i * tick <= most; i++) {
    const double at = i * tick;
    line(LEFT, TOP + HIGH - at * y_scale, WIDE - RIGHT, TOP + HIGH - at * y_scale, "grid", out);
    label(LEFT - 8, TOP + HIGH - at * y_scale + 4, "end", unit_words(chart->unit, at, text), out);
  }
  for (size_t s = 0; s < chart->series_count; s++)
    if (greatest(chart->series[s].values, chart->points) > 0)
      course(chart, &chart->series[s], x_scale, y_scale, out);
  line(LEFT, TOP + HIGH, WIDE - RIGHT, TOP + HIGH, "axis", out);
  for (int i = 0; i * x_tick <= last; i++) {
    const double at = i * x_tick;
    snprintf(text, sizeof text, "%g", at);
    label(LEFT + at * x_scale, TOP + HIGH + 18, "middle", text, out);
  }
  label(LEFT + PLOT / 2.0, TOP + HIGH + 36, "middle", chart->x_name, out);
}

/* ---- lying bars ---- */

static void row(const struct chart *chart, size_t p, double scale, double y, FILE *out) {
  char text[WORDS_BYTES], values[160];
  double above = 0, below = 0;
  size_t used = 0;
  fputs("<g><title>", out);
  page_escape(chart->labels[p], out);
  for (size_t s = 0; s < chart->series_count; s++)
    fprintf(out, "\n%s: %s", chart->series[s].name,
            isfinite(chart->series[s].values[p])
                ? unit_words(chart->unit, chart->series[s].values[p], text)
                : "-");
  fputs("</title>", out);
  *values = 0;
  for (size_t s = 0; s < chart->series_count && used < sizeof values; s++) {
    const bool under = chart->series[s].below;
    const double value = known(chart->series[s].values[p]);
    double *sum = under ? &below : &above;
    if (value > 0)
      fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" class=\"%s\"/>",
              ROW_LABEL + *sum * scale, y + (under ? 20 : 0), fmax(1, value * scale),
              under ? 6 : 18, chart->series[s].ink);
    *sum += value;
    if (!under)
      used += (size_t)snprintf(
          values + used, sizeof values - used, "%s%s", used ? " + " : "",
          isfinite(chart->series[s].values[p]) ? unit_words(chart->unit, value, text) : "-");
  }
  fputs("</g>\n", out);
  char shown[64];
  snprintf(shown, sizeof shown, "%.*s", (int)words_cut(chart->labels[p], 16), chart->labels[p]);
  label(ROW_LABEL - 8, y + 14, "end", shown, out);
  label(ROW_LABEL + above * scale + 8, y + 14, "start", values, out);
}

static void rows(const struct chart *chart, unsigned number, FILE *out) {
  double most = 0;
  for (size_t p = 0; p < chart->points; p++) {
    double above = 0, below = 0;
    for (size_t s = 0; s < chart->series_count; s++)
      *(chart->series[s].below ? &below : &above) += known(chart->series[s].values[p]);
    most = fmax(most, fmax(above, below));
  }
  const double scale = (WIDE - ROW_LABEL - ROW_VALUES) / (most > 0 ? most : 1);
  const double high = TOP + (double)chart->points * ROW;
  open_svg(chart, number, high, out);
  for (size_t p = 0; p < chart->points; p++)
    row(chart, p, scale, TOP + (double)p * ROW, out);
  line(ROW_LABEL, TOP - 6, ROW_LABEL, high - 6, "axis", out);
}

void page_svg(const struct chart *chart, unsigned number, FILE *out) {
  if (chart->kind == CHART_STEPS)
    steps(chart, number, out);
  else if (chart->kind == CHART_LINES)
    lines(chart, number, out);
  else
    rows(chart, number, out);
  fputs("</svg>\n", out);
}
