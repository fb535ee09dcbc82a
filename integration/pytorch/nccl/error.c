/* The last error's text. One for the process, because it may come from a stream's thread. */
#include "integration/pytorch/nccl/error.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 512 };
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char last[TEXT_BYTES];

ncclResult_t nccl_fail(ncclResult_t result, const char *format, ...) {
  char text[TEXT_BYTES];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const char *debug = getenv("NCCL_DEBUG");
  if (debug != NULL && debug[0] != '\0' && strcmp(debug, "VERSION") != 0)
    fprintf(stderr, "NCCL (stand-in): %s\n", text);
  pthread_mutex_lock(&mutex);
  memcpy(last, text, sizeof last);
  pthread_mutex_unlock(&mutex);
  return result;
}

const char *nccl_last_error(void) {
  static _Thread_local char copy[TEXT_BYTES];
  pthread_mutex_lock(&mutex);
  memcpy(copy, last, sizeof copy);
  pthread_mutex_unlock(&mutex);
  return copy;
}
