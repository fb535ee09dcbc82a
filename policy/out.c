/* See out.h. */
#include "out.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

enum { LONGEST = 1024 };

void out_open(struct out *out, int fd) {
  out->fd = fd;
  out->error = 0;
  out->used = 0;
}

static void flush(struct out *out) {
  for (size_t done = 0; done < out->used && !out->error;) {
    const ssize_t n = write(out->fd, out->buffer + done, out->used - done);
    if (n >= 0)
      done += (size_t)n;
    else if (errno != EINTR)
      out->error = errno;
  }
  out->used = 0;
}

void out_format(struct out *out, const char *format, ...) {
  va_list arguments;
  if (sizeof out->buffer - out->used < LONGEST)
    flush(out);
  va_start(arguments, format);
  const int length = vsnprintf(out->buffer + out->used, LONGEST, format, arguments);
  va_end(arguments);
  if (length > 0)
    out->used += (size_t)length < LONGEST ? (size_t)length : LONGEST - 1;
}

int out_close(struct out *out) {
  flush(out);
  return out->error;
}
