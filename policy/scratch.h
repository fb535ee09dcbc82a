/* A room of pages for whoever writes a report, metrics or a timeline: zeroed, straight from the kernel. The process's allocator is not
   asked: exit may be called by a signal's handler on top of malloc, whose lock the same thread then holds. Not the stack, since the
   program's may be small, and not a static buffer, whose lock would be one more to wait for. A few are taken a minute, or at exit. */
#ifndef OFFLOAD_SCRATCH_H
#define OFFLOAD_SCRATCH_H
#include <stddef.h>
#include <sys/mman.h>

/* NULL without memory. */
static inline void *scratch_take(size_t bytes) {
  void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return pages == MAP_FAILED ? NULL : pages;
}

/* Of as many bytes as were taken; NULL is nothing. */
static inline void scratch_drop(void *pages, size_t bytes) {
  if (pages)
    (void)munmap(pages, bytes);
}
#endif
