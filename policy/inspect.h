/* Whether a program can carry a preloaded library at all, told from its file before it runs. Called by `offload run` and `check`. */
#ifndef OFFLOAD_INSPECT_H
#define OFFLOAD_INSPECT_H
#include <stdbool.h>
#include <stddef.h>

/* Finds `command` as execvp does (PATH, unless it has a slash). False with errno when there is none that may be run. */
bool inspect_find(const char *command, char *path, size_t path_bytes);

/* True when the dynamic linker will take LD_PRELOAD for this file (an interpreted script: for its interpreter). Else false
   with the reason as a sentence without a subject: "is statically linked". What can't be read is given the benefit of the
   doubt. */
bool inspect_preloadable(const char *path, char *reason, size_t reason_bytes);

/* Of a script the program that its first line names, found as execvp does behind `env`; false when it is none. */
enum { INSPECT_PATH_MOST = 4096 };
bool inspect_script(const char *path, char interpreter[INSPECT_PATH_MOST]);
#endif
