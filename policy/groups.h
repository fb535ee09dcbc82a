/* What /proc and /sys say, a file at a time, and the control groups this process is in, v1 and v2.
   Called by budget.c and cpus.c, and by tests with a recorded tree (`root` is prefixed to every path): one thread at a time, between
   groups_begin and groups_end. */
#ifndef OFFLOAD_GROUPS_H
#define OFFLOAD_GROUPS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void groups_begin(void);
void groups_end(void);
void groups_forked(void); /* in a child: nobody reads */

enum { PATH_BYTES = 4096 };
static const uint64_t UNLIMITED = UINT64_MAX;

/* A file read line by line; what doesn't fit into a line is skipped. There is one of them at a time.
   NULL when it can't be opened. */
struct lines;
struct lines *lines_open(const char *root, const char *path);
/* The next line without its end, or NULL; then the file is closed. */
char *lines_next(struct lines *);
void lines_close(struct lines *);

/* A decimal number after blanks; "max", "unlimited" and whatever is no number are UNLIMITED. */
uint64_t number_of(const char *text);
/* A file's first line, until another file is opened; NULL when there is none. */
const char *line_in(const char *root, const char *directory, const char *file);

/* The number that is a file's first line. */
uint64_t number_in(const char *root, const char *directory, const char *file);

/* One hierarchy of control groups. */
struct group_kind {
  const char *filesystem, *controller; /* controller: NULL for v2's single hierarchy */
};

/* Each group's directory from ours up to the mount's root. */
typedef void group_visit(const char *root, const char *directory, void *argument);
void groups_visit(const struct group_kind *kind, const char *root, group_visit *visit,
                  void *argument);
#endif
