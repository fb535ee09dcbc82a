/* Reports read back (report.schema.json), for `offload report`. A report of another release may lack objects and keys, or have others:
   what isn't there, or isn't of the kind that is asked for, is not known. */
#ifndef OFFLOAD_PAGE_READ_H
#define OFFLOAD_PAGE_READ_H
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum { REPORTS_MOST = 64, LABEL_BYTES = 96 };

struct report_view {
  const char *path;
  json_t *root;            /* owned */
  char label[LABEL_BYTES]; /* "rank 3", the file's name, or "pid 4711": tells it from the others */
  long long rank;          /* -1: not known */
};

/* The JSON of a file, as json_load_file; a FIFO that nobody writes is empty, not a wait. */
json_t *view_load(const char *path, size_t flags, json_error_t *);
/* Reads a report; "-" is standard input. False with a sentence. */
bool view_read(struct report_view *, const char *path, char *problem, size_t problem_bytes);
void view_free(struct report_view *);
/* Ranks of one job are sorted by rank and named by it. Others keep their order and are named by their files, with as many folders as tell
   them from each other. One alone stays as it is. */
void view_arrange(struct report_view *, size_t count);

/* What stands at "totals.steps"; NULL when nothing does. Borrowed. */
const json_t *view_at(const json_t *root, const char *path);
/* A finite number that isn't negative. */
bool view_number(const json_t *root, const char *path, double *number);
/* A string, or "". Borrowed. */
const char *view_text(const json_t *root, const char *path);
/* "a", or "a / b": not known where b is 0. */
bool view_figure(const json_t *root, const char *expression, double *number);
#endif
