/* The worker's side of OFFLOAD_VERIFY: compares what the CPU made of a piece with what the program's
   own kernel made of copies of it, bit for bit, and keeps account of what is in doubt.

   No CUDA, no lock but the report's. The kernel's results lie in pinned memory, written before the
   piece's word `copied`; the parameter as our kernels made it before its word `applied`.

   In doubt, after a difference, are the steps since the last good verification of the pieces whose turn it
   was, up to the last that the CPU carries out: arithmetic that is wrong for a piece may have been so
   since then, whatever was found of other pieces. Where everything is compared before it is applied
   nothing is. */
#ifndef OFFLOAD_COMPARE_H
#define OFFLOAD_COMPARE_H
#include "../policy/config.h"
#include "../policy/report.h"
#include "probe.h"
#include <stdatomic.h>

/* The words of a verified piece, pinned. Each says a generation when what it stands for is done; the status
   is a slot_status (worker.h), at the offset where kernels.ptx reads that of a slot. */
struct check_words {
  _Atomic uint32_t
      copied; /* the GPU's: the kernel's results are there, and nobody reads the state */
  _Atomic uint32_t checked; /* the worker's: what follows may go on as the status says */
  _Atomic uint32_t status;
  _Atomic uint32_t applied; /* the GPU's: the parameter as our kernels made it is there */
  char pad[48];
};
_Static_assert(sizeof(struct check_words) == 64 && offsetof(struct check_words, status) == 8,
               "kernels.ptx reads this offset");

enum { CHECK_STATES = 3 };

/* A piece to be verified. `words` is NULL for one that isn't. */
struct piece_check {
  struct check_words *words;
  uint32_t generation;
  bool before;            /* compared before anything is applied: the CPU works on `shadow` */
  unsigned tensor;        /* in the launch's list */
  uintptr_t parameter;    /* the tensor's, for the reader */
  uint64_t first_element; /* of the tensor */
  const void *kernel_parameter, *kernel_gradient, *kernel_states[CHECK_STATES];
  const void *parameter_made, *gradient_made; /* by our kernels; no gradient: nobody changed it */
  void *shadow[CHECK_STATES];
};

/* The function whose pieces these are, at this launch. */
struct checked_function {
  const char *name;
  _Atomic int *differed;         /* set to 1 by the first difference; NULL: nothing is verified */
  struct report_function *row;   /* may be NULL */
  uint64_t step, first_in_doubt; /* should it differ now */
};

/* What the piece is made of. */
struct piece_shape {
  struct kernel_shape kernel;
  uint64_t elements;
};

/* Compares state as the CPU made it (exp_avg, exp_avg_sq, with amsgrad the maximum); then the parameter
   and, where there is one, the gradient. False, and the difference is told, when they differ. */
bool compare_states(const struct adam_api *, const struct config *, const struct piece_check *,
                    const struct checked_function *, const struct piece_shape *,
                    void *const states[CHECK_STATES]);
bool compare_parameters(const struct adam_api *, const struct config *, const struct piece_check *,
                        const struct checked_function *, const struct piece_shape *);

/* Keeps account of a piece that the CPU stepped, unverified; of one that was compared. */
void compare_stepped(const struct checked_function *);
void compare_done(const struct checked_function *, const struct piece_shape *);
#endif
