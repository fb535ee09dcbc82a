/* What a job that only observed would gain and pay, said by `offload run` when it ends: from the reports of its processes, of which it
   asks for temporary ones where the user asked for none. */
#ifndef OFFLOAD_OBSERVED_H
#define OFFLOAD_OBSERVED_H
#include <limits.h>
#include <stdbool.h>
#include <time.h>

/* How directories of temporary reports begin: a line at exit doesn't name what is removed then. */
#define OBSERVED_DIRECTORY "offload-observed-"

struct observed {
  char directory[PATH_MAX]; /* of temporary reports; "": the user's own are read */
  char pattern[2 * PATH_MAX];
  struct timespec begun;
};

/* Before the job starts. `report`: OFFLOAD_REPORT as the job will see it, or NULL; then that variable is set. False with a message. */
bool observed_begin(struct observed *, const char *report);
/* After it ended: says what was observed if it `ran`, removes what was made. */
void observed_end(struct observed *, bool ran);
#endif
