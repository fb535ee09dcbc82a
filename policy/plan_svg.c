/* A plan as a picture: a GPU's memory without and with the library, and what a step costs by each way. SVG 1.1 that needs nothing else. */
#include "page.h"
#include "plan.h"
#include "words.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 800, HEIGHT = 470, BARS_LEFT = 130, BARS_WIDTH = 520, BAR = 30 };

struct part {
  const char *name, *colour;
  double size;
};

static void label(FILE *file, double x, double y, const char *class, const char *text) {
  fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, class);
  page_escape(text, file);
  fputs("</text>\n", file);
}

static void bar(FILE *file, double x, double y, double width, const char *colour,
                const char *title) {
  if (width <= 0)
    return;
  fprintf(file, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" fill=\"%s\"><title>", x,
          y, width, BAR, colour);
  page_escape(title, file);
  fputs("</title></rect>\n", file);
}

/* Parts behind each other; returns where they end. */
static double stack(FILE *file, double y, double unit, const struct part *parts, size_t count,
                    const char *(*words)(double, char *)) {
  double x = BARS_LEFT;
  for (size_t i = 0; i < count; i++) {
    char size[WORDS_BYTES], title[128];
    snprintf(title, sizeof title, "%s: %s", parts[i].name, words(parts[i].size, size));
    bar(file, x, y, parts[i].size * unit, parts[i].colour, title);
    x += parts[i].size * unit;
  }
  return x;
}

static void legend(FILE *file, double y, const struct part *parts, size_t count) {
  const double step = 140, box = 12;
  for (size_t i = 0; i < count; i++) {
    const double x = BARS_LEFT + step * (double)i;
    fprintf(file, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.0f\" height=\"%.0f\" fill=\"%s\"/>\n", x,
            y - box + 2, box, box, parts[i].colour);
    label(file, x + box + 5, y, "small", parts[i].name);
  }
}

static double memory(FILE *file, const struct plan_request *request, const struct plan *plan,
                     double y) {
  const struct plan_bytes *both[] = {&plan->without, &plan->with};
  static const char *const names[] = {"without", "with"};
  double most = request->device_bytes;
  struct part parts[] = {{"parameters", "#4477aa", 0},
                         {"gradients", "#66ccee", 0},
                         {"optimizer state", "#ee6677", 0},
                         {"staging", "#ccbb44", 0}};
  enum { PARTS = sizeof parts / sizeof *parts };
  for (int i = 0; i < 2; i++) {
    const double used =
        both[i]->parameters + both[i]->gradients + both[i]->state + both[i]->staging;
    most = used > most ? used : most;
  }
  const double unit = most > 0 ? BARS_WIDTH / most : 0;
  label(file, 20, y, "head", "A GPU's memory");
  legend(file, y + 25, parts, PARTS);
  y += 40;
  for (int i = 0; i < 2; i++) {
    char size[WORDS_BYTES], text[64];
    parts[0].size = both[i]->parameters;
    parts[1].size = both[i]->gradients;
    parts[2].size = both[i]->state;
    parts[3].size = both[i]->staging;
    const double end = stack(file, y, unit, parts, PARTS, words_bytes);
    label(file, 20, y + 20, "plain", names[i]);
    words_bytes(parts[0].size + parts[1].size + parts[2].size + parts[3].size, size);
    snprintf(text, sizeof text, "%s%s", size, both[i]->fits ? "" : ", does not fit");
    label(file, end + 8, y + 20, "plain", text);
    y += BAR + 12;
  }
  if (request->device_bytes > 0) {
    char size[WORDS_BYTES], text[64];
    const double x = BARS_LEFT + request->device_bytes * unit;
    snprintf(text, sizeof text, "device: %s", words_bytes(request->device_bytes, size));
    fprintf(file,
            "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#222\" "
            "stroke-dasharray=\"4 3\"/>\n",
            x, y - 2 * (BAR + 12) - 4, x, y);
    label(file, x - 40, y + 12, "small", text);
  }
  return y + 45;
}

static void seconds(FILE *file, const struct plan *plan, double y) {
  struct part parts[] = {{"hidden", "#bbbbbb", 0}, {"exposed", "#ee6677", 0}};
  double most = 0;
  for (int way = 0; way < COST_WAYS; way++)
    most = plan->cost.ways[way].seconds > most ? plan->cost.ways[way].seconds : most;
  const double unit = most > 0 ? BARS_WIDTH / most : 0;
  label(file, 20, y, "head", "The optimizer step");
  legend(file, y + 25, parts, 2);
  y += 40;
  for (int way = 0; way < COST_WAYS; way++) {
    const struct cost_of_way *of = &plan->cost.ways[way];
    char size[WORDS_BYTES], share[WORDS_BYTES], text[3 * WORDS_BYTES];
    label(file, 20, y + 20, "plain",
          way == COST_STAY ? "on the device" : cost_way_name((enum cost_way)way));
    parts[0].size = of->hidden;
    parts[1].size = of->exposed;
    const double end = stack(file, y, unit, parts, 2, words_seconds);
    words_seconds(of->exposed, size);
    const double part = plan_share(plan, (enum cost_way)way);
    if (!of->possible)
      snprintf(text, sizeof text, "not possible");
    else if (part >= 0)
      snprintf(text, sizeof text, "+%s, +%s", size, words_share(part, share));
    else
      snprintf(text, sizeof text, "+%s", size);
    label(file, end + 8, y + 20, "plain", text);
    y += BAR + 12;
  }
}

bool plan_svg(const struct plan_request *request, const struct plan *plan, const char *machine,
              const char *path) {
  char title[512], count[WORDS_BYTES];
  const bool standard = !strcmp(path, "-");
  FILE *file = standard ? stdout : fopen(path, "we");
  if (!file)
    return false;
  snprintf(title, sizeof title, "%s: %s parameters, %s, %s", request->model.name,
           words_count((uint64_t)request->model.parameters, count), request->optimizer,
           request->dtype);
  fprintf(file,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
          "viewBox=\"0 0 %d %d\">\n"
          "<style>text{font-family:sans-serif;fill:#222}.head{font-size:15px;font-weight:bold}"
          ".plain{font-size:13px}.small{font-size:12px}</style>\n"
          "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
          WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH, HEIGHT);
  label(file, 20, 28, "head", title);
  label(file, 20, 48, "small", machine);
  const double y = memory(file, request, plan, 80);
  if (plan->moves)
    seconds(file, plan, y);
  fputs("</svg>\n", file);
  if (standard)
    return true; /* output_end tells what became of it */
  const bool written = !ferror(file);
  const int error = errno;
  if (fclose(file) == 0 && written)
    return true;
  errno = written ? errno : error;
  return false;
}
