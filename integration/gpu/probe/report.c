/* Facts and expectations: what a probe's process tells the one that watches it, a line at a time
   and unbuffered, so that nothing is lost when it dies. The first letter of a line says what
   follows: f a member of the JSON object of facts, e an expectation that didn't hold, p what is
   being done, s "the driver is the simulated one", d "done". */
#include "probe.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int descriptor = STDERR_FILENO;

void report_to(int to) {
  descriptor = to;
}

/* One write a line: lines are shorter than what a pipe takes at once. */
static void tell(char kind, const char *text) {
  char line[2048];
  int length = snprintf(line, sizeof line, "%c%s", kind, text);
  if (length >= (int)sizeof line - 1)
    length = sizeof line - 2;
  for (int i = 0; i < length; i++)
    if (line[i] == '\n')
      line[i] = ' ';
  line[length++] = '\n';
  if (write(descriptor, line, (size_t)length) != length)
    _exit(3); /* nobody listens */
}

static void tell_fact(const char *key, const char *value) {
  char text[1900];
  snprintf(text, sizeof text, "\"%s\": %s", key, value);
  tell('f', text);
}

void fact_text(const char *key, const char *format, ...) {
  char plain[800], quoted[1700];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(plain, sizeof plain, format, arguments);
  va_end(arguments);
  size_t n = 0;
  quoted[n++] = '"';
  for (const char *c = plain; *c != 0; c++) {
    if (*c == '"' || *c == '\\')
      quoted[n++] = '\\';
    quoted[n++] = (unsigned char)*c < ' ' ? ' ' : *c;
  }
  quoted[n++] = '"';
  quoted[n] = 0;
  tell_fact(key, quoted);
}

void fact_number(const char *key, double value) {
  char text[64] = "null"; /* JSON has no infinities */
  if (isfinite(value))
    snprintf(text, sizeof text, "%.6g", value);
  tell_fact(key, text);
}

void fact_count(const char *key, uint64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%llu", (unsigned long long)value);
  tell_fact(key, text);
}

void fact_signed(const char *key, int64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)value);
  tell_fact(key, text);
}

void fact_bool(const char *key, bool value) {
  tell_fact(key, value ? "true" : "false");
}

void fact_result(const char *key, CUresult result) {
  fact_text(key, "%s", unsupported(result) ? "not supported by this driver" : result_name(result));
}

const char *named(const char *format, ...) {
  static char keys[16][96];
  static unsigned next;
  char *key = keys[next++ % 16];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(key, sizeof keys[0], format, arguments);
  va_end(arguments);
  return key;
}

bool expect(bool held, const char *sentence, ...) {
  char text[900];
  if (held)
    return true;
  va_list arguments;
  va_start(arguments, sentence);
  vsnprintf(text, sizeof text, sentence, arguments);
  va_end(arguments);
  tell('e', text);
  return false;
}

void step(const char *what) {
  tell('p', what);
}

void give_up(const char *format, ...) {
  char text[900];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  tell('e', text);
  tell('d', "");
  _exit(1);
}

const char *result_name(CUresult result) {
  const char *name = NULL;
  if (cu.cuGetErrorName != NULL && cu.cuGetErrorName(result, &name) == CUDA_SUCCESS && name != NULL)
    return name;
  return named("CUresult_%d", (int)result);
}

void call_failed(CUresult result, const char *call, const char *file, int line) {
  const char *slash = strrchr(file, '/');
  give_up("%s answered %s (%s:%d)", call,
          unsupported(result) ? "that it is not supported by this driver" : result_name(result),
          slash != NULL ? slash + 1 : file, line);
}

void report_simulated(void) {
  tell('s', "");
}
void report_done(void) {
  tell('d', "");
}
