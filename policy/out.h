/* Bytes and formatted text into a file descriptor, through a small buffer. The first error of writing is kept; later calls do nothing. */
#ifndef OFFLOAD_OUT_H
#define OFFLOAD_OUT_H
#include <stddef.h>

struct out {
  int fd;
  int error; /* errno of the first failed write, 0 */
  size_t used;
  char buffer[2048];
};

/* Writes all of it: 0 or an errno. Where the descriptor doesn't block (a FIFO), a reader that takes nothing for a second is an error. */
int out_write(int fd, const char *bytes, size_t count);

void out_open(struct out *, int fd);
/* At most 1 KiB a call; what is more is cut. */
void out_format(struct out *, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Writes what is left; the first error's errno, or 0. */
int out_close(struct out *);
#endif
