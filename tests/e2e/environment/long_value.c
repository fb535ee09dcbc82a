/* Preloaded beside the library: gives charlm's variables that LONG_VALUE names, separated by spaces, each a value of a MiB, OFFLOAD_ in
   front. A command line can't, since the kernel bounds each string at 128 KiB; a program's own setenv can. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((constructor)) static void set(void) {
  const char *names = getenv("LONG_VALUE");
  static char value[(1 << 20) + 1];
  char list[1024], variable[128];
  memset(value, 'A', sizeof value - 1);
  if (!names || strcmp(program_invocation_short_name, "charlm") != 0)
    return;
  if (snprintf(list, sizeof list, "%s", names) >= (int)sizeof list)
    abort();
  char *rest = list;
  for (char *name; (name = strtok_r(rest, " ", &rest));) {
    (void)snprintf(variable, sizeof variable, "OFFLOAD_%s", name);
    (void)setenv(variable, value, 1);
  }
}
