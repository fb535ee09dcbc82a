/* Preloaded beside the library: gives charlm's variable that LONG_VALUE names a value of a MiB. A command line can't, since the
   kernel bounds each string at 128 KiB; a program's own setenv can. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

__attribute__((constructor)) static void set(void) {
  const char *name = getenv("LONG_VALUE");
  static char value[(1 << 20) + 1];
  memset(value, 'A', sizeof value - 1);
  if (name && !strcmp(program_invocation_short_name, "charlm"))
    (void)setenv(name, value, 1);
}
