/* Data that tells arithmetics apart. Pure computation: no CUDA, no state, any thread.

   Calibration chooses its own scalars, so that every pair of candidates differs in many elements
   whatever the compiler did. The running proof has to take a launch's scalars as they are: with
   ordinary ones a fused and an unfused weight decay agree on all but one element in ten thousand,
   so its elements are searched for until the two disagree. Where no element can show a difference
   (a double product of an ordinary lr*wd: the chance is about lr*wd * 2^-29 an element), none can
   show in training. */
#ifndef OFFLOAD_PROBE_H
#define OFFLOAD_PROBE_H
#include "../adam/adam.h"

/* ---- candidates ---- */

enum { CANDIDATES_MOST = 6 };

/* The arithmetics that a kernel of this mode may have, for launches with or without weight decay.
 */
unsigned candidates_list(enum adam_mode mode, bool decays, struct adam_candidate *candidates);

/* ---- one set of elements ---- */

/* Four lists as the kernel has them. Plain pointers into memory of the caller's. */
struct elements {
  float *p, *g, *m, *v;
};

/* ---- calibration ---- */

enum { CALIBRATION_SETS = 9, CALIBRATION_ELEMENTS = 4099 };

struct calibration_set {
  struct adam_hyper hyper;
  float step;
  unsigned elements,
      offset; /* offset 1: pointers not aligned to four floats, the kernel's scalar loop */
};

/* What is to be calibrated: which branches of the kernel, and the launch's own scalars for two
 * ordinary sets. */
struct calibration_case {
  enum adam_mode mode;
  bool decays;      /* weight_decay != 0 */
  bool lr_is_float; /* lr comes through lr_ptr */
  struct adam_hyper hyper;
};

/* The scalars of every set. They need the api: one set lies where generations OLD and DOUBLE round
   sqrt(1 - beta2^step) differently, which is searched for. */
void calibration_sets(const struct adam_api *, const struct calibration_case *,
                      struct calibration_set sets[CALIBRATION_SETS]);

/* The elements of set `index`. The same every time. */
void calibration_fill(const struct calibration_case *, const struct calibration_set *,
                      unsigned index, struct elements);

/* How many elements of a set the two candidates store differently (p, m or v). SIZE_MAX when there
 * is no memory. */
size_t calibration_differences(const struct adam_api *, const struct calibration_case *,
                               const struct calibration_set *, unsigned index,
                               const struct adam_candidate *, const struct adam_candidate *);

/* Fewest elements by which calibration must have told a pair apart. */
enum { TOLD_APART = 64 };

/* ---- the running proof ---- */

enum { PROBE_ELEMENTS = 256 };

/* As the device has it: one tensor of the probe. */
struct probe {
  float p[PROBE_ELEMENTS], g[PROBE_ELEMENTS], m[PROBE_ELEMENTS], v[PROBE_ELEMENTS];
};

/* Makes the inputs for a launch with these scalars. `lr_known`: hyper.lr is what the kernel will
   use. Returns how many elements were found on which fused and unfused decay disagree. */
unsigned probe_make(const struct adam_api *, const struct adam_candidate *,
                    const struct adam_hyper *, bool lr_known, struct probe *);

/* Finds the scalars with which the candidate turns `inputs` into `result`, bit for bit: libm's
   first, then, for generation FLOAT, powers up to two units in the last place away. False when
   there are none, or when several that differ do it. */
bool probe_prove(const struct adam_api *, const struct adam_candidate *, const struct adam_hyper *,
                 float step, const struct probe *inputs, const struct probe *result,
                 struct adam_scalars *, bool *nudged);

/* The same over lists of any length, for calibration; `scratch` holds three lists of that length.
 */
bool elements_prove(const struct adam_api *, const struct adam_candidate *,
                    const struct adam_hyper *, float step, uint64_t count, struct elements inputs,
                    struct elements result, struct elements scratch, struct adam_scalars *,
                    bool *nudged);
#endif
