/* Data that tells arithmetics apart. Pure computation: no CUDA, no state, any thread.

   Calibration chooses its own scalars, so that every pair of candidates differs in many elements
   whatever the compiler did, and in whatever type results are stored. The running proof has to take
   a launch's scalars as they are: with ordinary ones a fused and an unfused weight decay agree on
   all but one element in ten thousand, so its elements are searched for until the two disagree.
   Where no element can show a difference (a double product of an ordinary lr*wd: the chance is about
   lr*wd * 2^-29 an element), none can show in training.

   Numbers of two bytes show eight or eleven bits of an update and so nothing of its last ones, which
   is where a scalar one unit in the last place away differs. For them the device makes a second
   probe, the fine one (off_fine in kernels_typed.ptx), whose updates nearly cancel the parameter. */
#ifndef OFFLOAD_PROBE_H
#define OFFLOAD_PROBE_H
#include "../adam/adam.h"

/* ---- what kind of kernel ---- */

struct kernel_shape {
  enum adam_mode mode;
  enum adam_type type, state_type; /* parameter and gradient; each state */
  bool amsgrad;
};

static inline struct kernel_shape shape_of(const struct adam_candidate *candidate) {
  return (struct kernel_shape){candidate->mode, candidate->type, candidate->state_type,
                               candidate->amsgrad};
}

enum { CANDIDATES_MOST = 8 };

/* The arithmetics that such a kernel may have, for launches with or without weight decay. */
unsigned candidates_list(const struct kernel_shape *, bool decays,
                         struct adam_candidate candidates[CANDIDATES_MOST]);
bool candidates_equal(const struct adam_candidate *, const struct adam_candidate *);

/* ---- lists in memory ---- */

/* Bytes of the kernel's lists of so many elements, one behind the other: p, g, m, v and, with
   amsgrad, max_v. */
size_t lists_bytes(const struct kernel_shape *, size_t elements);
/* Those lists in a block of memory, aligned for a double. */
struct adam_tensors lists_in(const struct kernel_shape *, void *block, size_t elements);

/* ---- calibration ---- */

enum { CALIBRATION_SETS = 11, CALIBRATION_ELEMENTS = 4099 };

struct calibration_set {
  struct adam_hyper hyper;
  float step;
  float scale; /* *grad_scale, or 0: none */
  unsigned elements,
      offset; /* offset 1: pointers not aligned to four elements, the kernel's scalar loop */
  /* Searched for: an element, to be scaled by powers of two, whose results lie halfway between two
     numbers that can be stored, so that a last bit of what is computed shows. */
  struct {
    bool found;
    double p, g, m, v;
  } halfway;
  /* Searched for, too: a gradient whose weighted square is stored differently when its products are
     taken in another order. 0: none. */
  double square;
};

/* What is to be calibrated: which branches of the kernel, and the launch's own scalars for two
 * ordinary sets. */
struct calibration_case {
  struct kernel_shape shape;
  bool decays;      /* weight_decay != 0 */
  bool lr_is_float; /* lr comes through lr_ptr */
  bool scales;      /* with a grad_scale */
  struct adam_hyper hyper;
};

/* The scalars of every set. */
void calibration_sets(const struct adam_api *, const struct calibration_case *,
                      struct calibration_set sets[CALIBRATION_SETS]);

/* The elements of set `index`. The same every time. */
void calibration_fill(const struct adam_api *, const struct calibration_case *,
                      const struct calibration_set *, unsigned index, const struct adam_tensors *);

/* How many elements of a set the two candidates store differently. SIZE_MAX when there is no memory. */
size_t calibration_differences(const struct adam_api *, const struct calibration_case *,
                               const struct calibration_set *, unsigned index,
                               const struct adam_candidate *, const struct adam_candidate *);

/* Fewest elements by which calibration must have told a pair apart. */
enum { TOLD_APART = 64 };

/* ---- the running proof ---- */

/* The inputs of a tensor's probe are its lists in a block; what comes back of it the same lists. */
enum { PROBE_ELEMENTS = 256, PROBE_BYTES_MOST = PROBE_ELEMENTS * 5 * 8 };

/* The fine probe of a tensor: p, g, m, v, max_v and what p was, of two bytes each. Known to
   kernels_typed.ptx. */
enum { FINE_ELEMENTS = 64, FINE_LIST_BYTES = FINE_ELEMENTS * 2, FINE_BYTES = 6 * FINE_LIST_BYTES };
static inline size_t fine_bytes(const struct kernel_shape *shape) {
  return adam_type_bytes(shape->type) == 2 ? FINE_BYTES : 0;
}
/* The scalars with which the program's kernel runs on it, in a launch with these. A known lr is the
   launch's by a power of two, so that the step size is, too. Betas are the launch's but for those near 0. */
struct adam_hyper fine_hyper(const struct adam_candidate *, const struct adam_hyper *,
                             bool lr_known);

/* Makes the inputs for a launch with these scalars. `lr_known`: hyper.lr is what the kernel will
   use. Returns how many elements were found on which fused and unfused decay disagree. */
unsigned probe_make(const struct adam_api *, const struct adam_candidate *,
                    const struct adam_hyper *, bool lr_known, void *inputs);

/* What the program's kernel made of a probe. */
struct probe_results {
  const float *grad_scale; /* its value; NULL: none. The device multiplied g by it. */
  const void *inputs, *results;
  const void *fine; /* NULL for types that have none */
  bool lr_known;    /* as the inputs were made */
};

/* Finds the scalars with which the candidate turns the inputs into the results, bit for bit: libm's
   first, then, where powers are float or double is stored, powers up to two units in the last place
   away. False when there are none, or when several that differ do it. */
bool probe_prove(const struct adam_api *, const struct adam_candidate *, const struct adam_hyper *,
                 float step, const struct probe_results *, struct adam_scalars *, bool *nudged);

/* Whether the results are the inputs: the kernel skipped. */
bool probe_untouched(const struct adam_api *, const struct adam_candidate *,
                     const struct probe_results *);

/* The search over lists of any length, for calibration. `inputs` has the grad_scale; `scratch` are
   lists of that length. */
bool elements_prove(const struct adam_api *, const struct adam_candidate *,
                    const struct adam_hyper *, float step, uint64_t count,
                    const struct adam_tensors *inputs, const struct adam_tensors *result,
                    const struct adam_tensors *scratch, struct adam_scalars *, bool *nudged);
#endif
