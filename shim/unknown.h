/* Kernels of unknown name that do what an optimizer does: launches name four or more large addresses of one size, two of which nothing
   else ever uses (the state), while others are used in between (parameters, gradients), step after step. Such a kernel is named in the
   report's advice, since nothing of what it keeps moves. Only looked at: every launch goes to the driver unchanged.

   Looking costs more than a launch may, so it is done over a span of LOOKED_AT launches from the process's first on, and ends with the
   first recognised step. Within a span all that touches memory must be told; outside it a caller pays the load of unknown_looking.
   Callers: scan.c, touch.c, the wrappers of frees and graphs; facts.c. Any thread; the lock is a leaf, and no driver is called under it. */
#ifndef OFFLOAD_UNKNOWN_H
#define OFFLOAD_UNKNOWN_H
#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Words of one launch that are looked at together; the rest counts as used by something else. */
enum { UNKNOWN_NAMED = 256 };

extern _Atomic bool unknown_open;
static inline bool unknown_looking(void) {
  return __builtin_expect(atomic_load_explicit(&unknown_open, memory_order_relaxed), 0);
}

/* A launch of an unrecognised function named these words, which may be addresses or anything. */
void unknown_launch(CUfunction, const uintptr_t *words, size_t count);

/* A copy, memset or collective uses these bytes. */
void unknown_access(uintptr_t address, size_t bytes);

/* Something was launched whose addresses can't be told: whatever was used by one kernel alone may be used by another. */
void unknown_unseen(void);

/* Memory that begins here is freed. */
void unknown_freed(uintptr_t base);

/* An optimizer was recognised, or one that is known: there is none to look for. */
void unknown_end(void);

/* Looks once more, if the last span is over, was some time ago and showed nothing. */
void unknown_look_again(void);

/* The kernel with the most state. The name is valid for ever. False where there is none. */
struct unknown_found {
  const char *name;
  size_t ranges;        /* that one of its launches names: state, and of a size with it */
  uint64_t bytes;       /* of all that its launches of a step name, as far as sizes are known */
  uint64_t state_bytes; /* of these, what nothing else uses */
};
bool unknown_found(struct unknown_found *);

/* ---- the judgement, of one launch: pure ---- */

struct unknown_operand {
  uintptr_t address;
  size_t bytes; /* at most: to the next known address in its allocation, or to the end of that */
  bool whole;   /* it is all of an allocation: they are exact, but for rounding */
  bool kept;    /* nothing but this function used it since an earlier launch of it */
  /* What the judgement says: state; used beside it, and of a state's size or half of it (two bytes for four), or of more bytes than it
     needs; and the bytes that it has, 0: not known. */
  bool state, partner, loose;
  size_t size;
};

/* Whether it is that of an optimizer. `least_bytes`: of a state. `believed`: other launches of the function were, so that where tensors end
   matters less. */
bool unknown_judge(struct unknown_operand *, size_t count, size_t least_bytes, bool believed);
#endif
