/* The list of known optimizer state: which moments the present and the last step named, and what of
   each range they cover. Caller: state.c. The list has a lock of its own, so that memory can be
   forgotten from any thread. */
#ifndef OFFLOAD_CENSUS_H
#define OFFLOAD_CENSUS_H
#include "range.h"
#include "state.h"

/* One state of a tensor; its partners are the others, in turn: of exp_avg exp_avg_sq and then the
   maximum, of that exp_avg and then exp_avg_sq. 0 where there are no more. */
struct moment {
  CUcontext context; /* whose launch named it */
  uintptr_t address, partners[TENSOR_STATES - 1];
  size_t bytes;
  uint64_t step;       /* of that context that named it last */
  size_t first;        /* the furthest byte at which a launch of that step began it */
  struct range *range; /* that holds all of it, NULL when none does */
};

/* Whether naming this address from byte `first` on repeats what the step has named already. */
bool census_repeats(uintptr_t address, size_t first, uint64_t step);

/* Names a tensor's state number `which` in a step. Its range, or NULL when it is outside every range
   (or memory is short). */
struct range *census_name(CUcontext context, const struct state_tensor *, unsigned which,
                          uint64_t step);

/* Forgets moments in [base, base+bytes), and those of a context last named before `step`. */
void census_forget(uintptr_t base, size_t bytes);
void census_forget_before(CUcontext context, uint64_t step);

/* Whether anything of the context is known. */
bool census_any(CUcontext context);

/* A context's moments, in the order they were first named (the states of a tensor side by side), as an array
   the caller frees; ranges of other contexts count as none. NULL when there are none. Under the
   enqueue lock their ranges stay valid. */
struct moment *census_list(CUcontext context, size_t *count);

/* Sets covered_bytes and named_bytes of every piece of `ranges` from the moments, and each range's
 * known extents. */
void census_cover(struct range *const *ranges, size_t range_count, const struct moment *moments,
                  size_t count);

/* Bytes of a piece that must be covered for it to hold nothing but state: the last one's tail
   beyond the request is nobody's. */
size_t census_whole(const struct range *range, uint32_t piece);
#endif
