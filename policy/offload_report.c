/* `offload report`: reads reports (page_read.c), makes a page of them (page_build.c) and shows it as text, HTML or JSON. */
#define _GNU_SOURCE
#include "command.h"
#include "page.h"
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_HTML = 256, KEY_JSON };

struct asked {
  const char *html; /* where to; NULL: no HTML */
  bool json;
  const char *files[REPORTS_MOST];
  size_t count;
};

static error_t parse(int option, char *argument, struct argp_state *state) {
  struct asked *asked = state->input;
  switch (option) {
  case KEY_HTML:
    asked->html = argument;
    return 0;
  case KEY_JSON:
    asked->json = true;
    return 0;
  case ARGP_KEY_ARG:
    if (asked->count == REPORTS_MOST)
      argp_error(state, "more than %d files", REPORTS_MOST);
    else
      asked->files[asked->count++] = argument;
    return 0;
  case ARGP_KEY_END:
    if (!asked->count)
      argp_error(state, "no file: name one that OFFLOAD_REPORT wrote");
    if (asked->html && asked->json)
      argp_error(state, "--html and --json are two answers: ask for one");
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp_option options[] = {
    {"html", KEY_HTML, "FILE", 0,
     "write one page with charts that needs nothing else; - is standard output", 0},
    {"json", KEY_JSON, NULL, 0, "print the figures, advice and reasons of each as JSON", 0},
    {0}};
static const struct argp argp = {options,
                                 parse,
                                 NULL,
                                 "Several reports have a column each: ranks of one job by rank, "
                                 "others in the order given, named by "
                                 "their files. A FILE of - is standard input.",
                                 NULL,
                                 NULL,
                                 NULL};

static int show_html(const struct page *page, const char *path) {
  const bool standard = !strcmp(path, "-");
  FILE *out = standard ? stdout : fopen(path, "we");
  if (!out) {
    say("--html %s can't be written (%s): name a file in a directory that you may write to", path,
        strerror(errno));
    return EXIT_FAILURE;
  }
  page_html(page, out);
  if (standard)
    return EXIT_SUCCESS;
  const bool bad = ferror(out);
  if (!fclose(out) && !bad)
    return EXIT_SUCCESS;
  say("%s can't be written (%s)", path, strerror(errno));
  return EXIT_FAILURE;
}

static int show(const struct asked *asked, const struct report_view *views) {
  if (asked->json) {
    const bool good = !page_json(views, asked->count, stdout);
    if (!output_end())
      return EXIT_FAILURE;
    if (!good)
      say("no memory for the JSON");
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
  }
  struct page *page = page_build(views, asked->count);
  int status = EXIT_SUCCESS;
  if (asked->html)
    status = show_html(page, asked->html);
  else
    page_text(page, stdout, !strcmp(nl_langinfo(CODESET), "UTF-8"));
  page_free(page);
  return status;
}

int offload_report(int argc, char **argv) {
  static struct asked asked;
  static struct report_view views[REPORTS_MOST];
  char problem[1024];
  setlocale(LC_CTYPE, "");
  command_parse(&argp, argc, argv, 0, &asked);
  for (size_t i = 0; i < asked.count; i++)
    if (!view_read(&views[i], asked.files[i], problem, sizeof problem)) {
      say("%s", problem);
      return EXIT_USAGE;
    }
  view_arrange(views, asked.count);
  const int status = show(&asked, views);
  for (size_t i = 0; i < asked.count; i++)
    view_free(&views[i]);
  return status;
}
