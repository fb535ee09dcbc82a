/* Calibration: which arithmetic does a kernel have? The program's own kernel runs on scratch data
   with scalars of our own choosing and is compared bit for bit with every candidate; then the whole
   path that would replace it (prologue, worker, apply kernel) is compared as well.
   Exactly one candidate must be left. Once for each function, context and branch of the kernel that
   launch values choose. Under the enqueue lock, with nothing of the launch enqueued yet. */
#ifndef OFFLOAD_CALIBRATE_H
#define OFFLOAD_CALIBRATE_H
#include "ring.h"

/* Launch values that choose another path through the kernel. */
enum branch_bits { BRANCH_DECAY = 1, BRANCH_MAXIMIZE = 2, BRANCH_LR_POINTER = 4, BRANCH_SCALE = 8 };

struct branch {
  struct branch *next;
  CUcontext context;
  unsigned bits;
  bool usable;
  struct adam_candidate candidate;
  char why[224];       /* when not usable */
  _Atomic int refused; /* the running proof failed: the worker sets it */
};

unsigned branch_bits(const struct arguments *);

/* What is known of this branch, calibrating it if nothing is. NULL when it could not be tried now
   (a capture is open, no memory, the device is busy for longer than two seconds): *why says so, and a
   later launch tries again. The
   ring is prepared. */
struct branch *calibrate(struct ring *, const struct adam_api *, struct function *,
                         const struct arguments *, const char **why);
#endif
