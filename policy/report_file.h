/* Puts what is reported into the file a user named, whatever stands there: a regular file is replaced as a whole (behind links at
   their target), a device, a FIFO and the program's own output are written as they are. Callers: report.c, metrics.c, trace.c,
   rates_cache.c. */
#ifndef OFFLOAD_REPORT_FILE_H
#define OFFLOAD_REPORT_FILE_H
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

/* fstatat, which glibc 2.28 has under another name only. Old containers refuse statx. */
bool file_look(int directory, const char *path, int flags, struct stat *);
bool file_same(const struct stat *, const struct stat *);

/* A write of ours must not end the program: not by SIGPIPE where a reader went away, nor by SIGXFSZ beyond the limit of a file's
   size. Between the two calls such a signal is held back, and then dropped; errno says what happened. */
struct write_hold {
  sigset_t signals, before, pending;
};
void write_hold(struct write_hold *);
void write_release(const struct write_hold *);

/* What writes a file: `write` gives 0 or an errno. */
struct file_contents {
  int (*write)(int fd, const void *context);
  const void *context;
};

/* The path that a setting means for this process: %p becomes its number, so that several processes under one setting each write
   a report of their own. False when it is too long. */
bool report_file_path(const char *setting, char *path, size_t path_bytes);

/* A path as it may be shown in a line: not too long, and without what would break the line. */
enum { REPORT_FILE_SHOWN = 304 };
const char *report_file_shown(const char *path, char text[REPORT_FILE_SHOWN]);

/* 0 or an errno; after an error what stood at the path is as it was. */
int report_file_write(const char *path, const struct file_contents *);
#endif
