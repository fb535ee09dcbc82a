/* See page_read.h. */
#define _GNU_SOURCE
#include "page_read.h"
#include "words.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_PARTS_BYTES = 96, PATH_BYTES = 4096, LABEL_COLUMNS = 16 };

const json_t *view_at(const json_t *root, const char *path) {
  char part[PATH_PARTS_BYTES];
  for (const char *end; root && *path; path = *end ? end + 1 : end) {
    end = strchrnul(path, '.');
    snprintf(part, sizeof part, "%.*s", (int)(end - path), path);
    root = json_object_get(root, part);
  }
  return root;
}

bool view_number(const json_t *root, const char *path, double *number) {
  const json_t *value = view_at(root, path);
  if (!json_is_number(value))
    return false;
  *number = json_number_value(value);
  return isfinite(*number) && *number >= 0;
}

const char *view_text(const json_t *root, const char *path) {
  const char *text = json_string_value(view_at(root, path));
  return text ? text : "";
}

bool view_figure(const json_t *root, const char *expression, double *number) {
  const char *slash = strstr(expression, " / ");
  if (!slash)
    return view_number(root, expression, number);
  char above[PATH_PARTS_BYTES];
  double below;
  snprintf(above, sizeof above, "%.*s", (int)(slash - expression), expression);
  if (!view_number(root, above, number) || !view_number(root, slash + 3, &below) || below <= 0)
    return false;
  *number /= below;
  return true;
}

static void label(struct report_view *view) {
  double number;
  view->rank = -1;
  if (view_number(view->root, "node.local_rank", &number) && number < 1e6) {
    view->rank = (long long)number;
    snprintf(view->label, sizeof view->label, "rank %lld", view->rank);
  } else if (view_number(view->root, "pid", &number))
    snprintf(view->label, sizeof view->label, "pid %.0f", number);
  else
    snprintf(view->label, sizeof view->label, "a report");
}

static json_t *unreadable(json_error_t *error) {
  *error = (json_error_t){.line = -1};
  snprintf(error->text, sizeof error->text, "%s", strerror(errno));
  return NULL;
}

json_t *view_load(const char *path, size_t flags, json_error_t *error) {
  const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  FILE *in = file < 0 || fcntl(file, F_SETFL, O_RDONLY) ? NULL : fdopen(file, "r");
  if (!in) {
    json_t *none = unreadable(error);
    if (file >= 0)
      close(file);
    return none;
  }
  const int first = getc(in); /* of a directory there is none, with a reason */
  json_t *root = NULL;
  if (first == EOF && ferror(in)) {
    (void)unreadable(error);
  } else {
    (void)ungetc(first, in);
    root = json_loadf(in, flags, error);
  }
  fclose(in);
  return root;
}

bool view_read(struct report_view *view, const char *path, char *problem, size_t problem_bytes) {
  json_error_t error;
  *view = (struct report_view){.path = path};
  view->root = strcmp(path, "-") ? view_load(path, JSON_ALLOW_NUL, &error)
                                 : json_loadf(stdin, JSON_ALLOW_NUL, &error);
  if (!view->root && error.line < 0)
    snprintf(problem, problem_bytes, "%s can't be read (%s): name a file that OFFLOAD_REPORT wrote",
             path, error.text);
  else if (!view->root)
    snprintf(problem, problem_bytes, "%s, line %d: %s: name a file that OFFLOAD_REPORT wrote", path,
             error.line, error.text);
  else if (!json_is_object(view->root) || !json_is_integer(view_at(view->root, "schema")) ||
           !*view_text(view->root, "version"))
    snprintf(problem, problem_bytes,
             "%s is JSON but no report of liboffload: name a file that OFFLOAD_REPORT wrote", path);
  else {
    label(view);
    return true;
  }
  view_free(view);
  return false;
}

void view_free(struct report_view *view) {
  json_decref(view->root);
  view->root = NULL;
}

/* ---- what tells reports from each other ---- */

static bool names_pid(const json_t *ranks, double pid) {
  double other;
  for (size_t i = 0; i < json_array_size(ranks); i++)
    if (view_number(json_array_get(ranks, i), "pid", &other) && other == pid)
      return true;
  return false;
}

/* They saw a process both, each the other at least, or one of them tells nothing of that. */
static bool same_job(const struct report_view *a, const struct report_view *b) {
  const json_t *of_a = view_at(a->root, "node.ranks"), *of_b = view_at(b->root, "node.ranks");
  double pid;
  for (size_t i = 0; i < json_array_size(of_a); i++)
    if (view_number(json_array_get(of_a, i), "pid", &pid) && names_pid(of_b, pid))
      return true;
  return !json_array_size(of_a) || !json_array_size(of_b);
}

static bool are_ranks(const struct report_view *views, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (views[i].rank < 0 || !same_job(&views[0], &views[i]))
      return false;
    for (size_t k = 0; k < i; k++)
      if (views[i].rank == views[k].rank)
        return false;
  }
  return true;
}

/* Where the last `parts` names of a path begin. */
static const char *tail_of(const char *path, size_t parts) {
  const char *at = path + strlen(path);
  for (; at > path; at--)
    if (at[-1] == '/' && !--parts)
      break;
  return at;
}

/* As many folders as it takes to tell the paths from each other, and the name without .json; of long ones the beginning and the end. */
static void label_by_file(struct report_view *view, size_t parts) {
  char name[PATH_BYTES], plain[PATH_BYTES];
  snprintf(name, sizeof name, "%s",
           strcmp(view->path, "-") ? tail_of(view->path, parts) : "standard input");
  char *end = name + strlen(name) - strlen(".json");
  if (end > name && end[-1] != '/' && !strcmp(end, ".json"))
    *end = 0;
  words_plain(name, plain, sizeof plain);
  const size_t columns = words_columns(plain), head = LABEL_COLUMNS / 2 - 1;
  const bool fits = columns <= LABEL_COLUMNS;
  const char *tail = fits ? "" : plain + words_cut(plain, columns - (LABEL_COLUMNS - head - 2));
  const size_t bytes = words_cut(plain, fits ? columns : head);
  snprintf(view->label, sizeof view->label, "%.*s%s%.*s", (int)bytes, plain, fits ? "" : "..",
           LABEL_BYTES, tail);
}

/* The first report whose label another in front of it has, or `count`. */
static size_t repeated(const struct report_view *views, size_t count) {
  for (size_t i = 1; i < count; i++)
    for (size_t k = 0; k < i; k++)
      if (!strcmp(views[i].label, views[k].label))
        return i;
  return count;
}

static int compare(const void *left, const void *right) {
  const struct report_view *a = left, *b = right;
  return (a->rank > b->rank) - (a->rank < b->rank);
}

void view_arrange(struct report_view *views, size_t count) {
  const size_t folders_most = 8;
  if (count < 2)
    return;
  if (are_ranks(views, count)) {
    qsort(views, count, sizeof *views, compare);
    return;
  }
  for (size_t parts = 1; parts <= folders_most; parts++) {
    for (size_t i = 0; i < count; i++)
      label_by_file(&views[i], parts);
    if (repeated(views, count) == count)
      return;
  }
  for (size_t i; (i = repeated(views, count)) < count;)
    snprintf(views[i].label, sizeof views[i].label, "file %zu", i + 1);
}
