/* Which file `offload run` preloads, and whether it is ours. Called by `offload run` and `check`. */
#ifndef OFFLOAD_LIBRARY_H
#define OFFLOAD_LIBRARY_H
#include <stdbool.h>
#include <stddef.h>

enum { LIBRARY_PATH_MOST = 4096 };
struct library {
  char preload[LIBRARY_PATH_MOST]; /* what LD_PRELOAD gets: absolute, without blanks and colons */
  char mapped[LIBRARY_PATH_MOST];  /* what a process that loaded it has in its memory map */
};

/* `given` is what --library names; NULL: beside this program, or in ../lib from there. False with a sentence. */
bool library_find(const char *given, struct library *, char *problem, size_t problem_bytes);

/* Whether the file is a shared object that defines the name for others. Read, never loaded. */
bool library_exports(const char *path, const char *name);
#endif
