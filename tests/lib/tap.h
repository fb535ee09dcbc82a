/* A test program in TAP: every check is a sentence. Include once per program; end main with `return tap_done();`. */
#ifndef TAP_H
#define TAP_H
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static int tap_count, tap_failed;

__attribute__((format(printf, 2, 3), unused)) static bool tap_ok(bool good, const char *sentence,
                                                                 ...) {
  char line[512];
  va_list args;
  va_start(args, sentence);
  vsnprintf(line, sizeof line, sentence, args);
  va_end(args);
  printf("%s %d - %s\n", good ? "ok" : "not ok", ++tap_count, line);
  if (!good)
    tap_failed++;
  fflush(stdout);
  return good;
}

/* A skip names its reason; tests/run accepts only those listed in tests/skips.txt. */
__attribute__((unused)) static void tap_skip(const char *sentence, const char *reason) {
  printf("ok %d - %s # SKIP %s\n", ++tap_count, sentence, reason);
}

__attribute__((unused)) static int tap_done(void) {
  printf("1..%d\n", tap_count);
  return tap_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
#endif
