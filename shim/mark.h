/* NVTX ranges around what the program's thread does for us, for profilers (Nsight Systems and whatever else reads NVTX): steps, moves,
   and bringing state back. There is nothing, a load aside, unless NVTX_INJECTION64_PATH names a tool's library, which is how such tools
   attach. On one thread a range that begins later ends earlier. */
#ifndef OFFLOAD_MARK_H
#define OFFLOAD_MARK_H
#include <stdatomic.h>
#include <stdbool.h>

extern _Atomic bool mark_attached;

/* Loads the tool that was named, once. At a recognised launch, under no lock: it takes the loader's. */
void mark_start(void);

/* A range of this thread begins ("offload step 12 (cpu)"); what it returns is for mark_end, which ends it. Any locks: the tool takes its
   own. */
bool mark_push(const char *format, ...) __attribute__((format(printf, 1, 2)));
void mark_pop(void);
#define mark_begin(...)                                                                            \
  (atomic_load_explicit(&mark_attached, memory_order_acquire) && mark_push(__VA_ARGS__))
static inline void mark_end(bool begun) {
  if (begun)
    mark_pop();
}
#endif
