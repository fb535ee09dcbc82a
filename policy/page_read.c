/* See page_read.h. */
#define _GNU_SOURCE
#include "page_read.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_PARTS_BYTES = 96 };

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

static int compare(const void *left, const void *right) {
  const struct report_view *a = left, *b = right;
  if (a->rank != b->rank)
    return a->rank < b->rank ? -1 : 1;
  return strcmp(a->path, b->path);
}

void view_sort(struct report_view *views, size_t count) {
  qsort(views, count, sizeof *views, compare);
  for (size_t i = 1; i < count; i++)
    for (size_t k = 0; k < i; k++)
      if (!strcmp(views[i].label, views[k].label)) {
        snprintf(views[i].label, sizeof views[i].label, "file %zu", i + 1);
        break;
      }
}
