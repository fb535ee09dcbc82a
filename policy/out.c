/* See out.h. */
#include "out.h"
#include "../nvme/clock.h"
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { LONGEST = 1024, PATIENCE_MS = 1000 };

static int64_t now_ms(void) {
  return (int64_t)(clock_now_ns() / 1000000);
}

/* False when the reader has taken nothing for too long. */
static bool wait_for_room(int fd, int64_t since_ms) {
  struct pollfd room = {.fd = fd, .events = POLLOUT};
  const int64_t left_ms = since_ms + PATIENCE_MS - now_ms();
  if (left_ms <= 0)
    return false;
  return poll(&room, 1, (int)left_ms) != 0;
}

int out_write(int fd, const char *bytes, size_t count) {
  int64_t since_ms = 0;
  for (size_t done = 0; done < count;) {
    const ssize_t n = write(fd, bytes + done, count - done);
    if (n >= 0) {
      done += (size_t)n;
      since_ms = 0;
    } else if (errno == EAGAIN) {
      since_ms = since_ms ? since_ms : now_ms();
      if (!wait_for_room(fd, since_ms))
        return EAGAIN;
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

void out_open(struct out *out, int fd) {
  out->fd = fd;
  out->error = 0;
  out->used = 0;
}

static void flush(struct out *out) {
  if (!out->error)
    out->error = out_write(out->fd, out->buffer, out->used);
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
