/* The worker: one thread per device context that waits for gradients, proves the launch's
   arithmetic and steps the moments.

   It never calls CUDA and never takes the enqueue lock: whatever it waits for was enqueued before,
   so it always comes, and whatever waits for it is released. It talks to the GPU through words in
   pinned memory, a set a ring slot:

       GPU (down stream)                      worker                               GPU (up stream)
       copies, then ready = generation  --->  step m, v; write update, status,
                                              scalars; then done = generation ---> waits done, copies
                                                                                   words and update, applies

   Jobs are handed over in order, by one caller at a time (under the enqueue lock): one proof a
   launch, then its pieces. A job is handed over before the first driver call of its piece (the
   driver may block the caller at any call).

   A word belongs to a generation of its slot, so a stale one is never taken for a new one. */
#ifndef OFFLOAD_WORKER_H
#define OFFLOAD_WORKER_H
#include "../policy/config.h"
#include "../policy/report.h"
#include "compare.h"
#include "probe.h"
#include <stdatomic.h>

/* In pinned memory, in front of a slot's update, with which it travels to the device. Offsets are
 * known to kernels.ptx. */
struct slot_words {
  _Atomic uint32_t ready, done, status;
  float lr_decay;
  double lr_decay_double;
  char pad[40];
};
_Static_assert(sizeof(struct slot_words) == 64, "an update behind it is aligned like the buffer");
_Static_assert(offsetof(struct slot_words, status) == 8 &&
                   offsetof(struct slot_words, lr_decay) == 12 &&
                   offsetof(struct slot_words, lr_decay_double) == 16,
               "kernels.ptx reads these offsets");

/* What the status of a generation says. off_apply applies, leaves p alone, or traps. */
enum slot_status { SLOT_APPLY, SLOT_REFUSED, SLOT_FAILED };
static inline uint32_t slot_status(uint32_t generation, enum slot_status status) {
  return generation * 4u + (uint32_t)status;
}

/* What a launch's proof brings down: gathered[t] the step counters, at the end what the launch points
   at; then a probe a tensor, and for types of two bytes a fine probe a tensor. */
enum {
  GATHERED = 256,
  GATHERED_FOUND_INF = 253,
  GATHERED_SCALE = 254,
  GATHERED_LR = 255,
  PROOF_TENSORS = 252,
  PROOF_TENSORS_AMSGRAD = 210
};
/* Doubles are the most, with amsgrad for fewer tensors. */
enum { PROOF_BYTES_MOST = PROOF_TENSORS_AMSGRAD * PROBE_BYTES_MOST };
_Static_assert((int)PROOF_BYTES_MOST >= (int)PROOF_TENSORS * (int)PROBE_ELEMENTS * 4 * 8,
               "four lists of doubles fit");
_Static_assert((int)PROOF_BYTES_MOST >=
                   (int)PROOF_TENSORS * ((int)PROBE_ELEMENTS * 5 * 2 + (int)FINE_BYTES),
               "probes and fine probes of two bytes fit");
struct proof_results {
  float gathered[GATHERED];
  unsigned char probes[PROOF_BYTES_MOST];
};
/* Bytes of them that a launch uses. */
static inline size_t proof_bytes(const struct kernel_shape *shape, unsigned tensors) {
  return offsetof(struct proof_results, probes) +
         tensors * (lists_bytes(shape, PROBE_ELEMENTS) + fine_bytes(shape));
}

struct proof_job {
  _Atomic uint32_t *ready;
  uint32_t generation;
  const void *inputs;
  const struct proof_results *results;
  float *verdict; /* 1: done, the program's kernel skips (its found_inf); 0: the program's kernel
                     does the step */
  unsigned tensors;
  /* The launch points at these: their values are to be taken from what was gathered. */
  bool lr_gathered, scale_gathered, found_inf_gathered;
  struct adam_candidate candidate;
  struct adam_hyper hyper;
  uint64_t elements;           /* of the launch's pieces that nobody else counts */
  uint64_t step;               /* for OFFLOAD_TRACE; 0: not known */
  _Atomic int *refused;        /* set to 1 when the proof fails */
  struct report_function *row; /* may be NULL */
  struct checked_function checked;
};

/* A piece's state where it doesn't lie end to end, and comes and goes: in frames of the drive tier. Its elements in order, cut
   so that each stretch of every state lies end to end. */
struct stretch {
  uint64_t first, elements; /* of the piece */
  void *states[CHECK_STATES];
  unsigned framed; /* bit i: state i lies in a frame, not where it is mapped */
};
struct paged_state {
  /* Until the state is there. False when it never will be (told), or once *give_up is true. */
  bool (*wait)(struct paged_state *, const _Atomic bool *give_up);
  /* Lets go of it, and frees it. Once, also where it never came. */
  void (*done)(struct paged_state *, bool wrote);
  struct ticket *ticket;
  unsigned count;
  struct stretch stretches[];
};

struct piece_job {
  struct slot_words *words;
  uint32_t generation;
  unsigned tensor; /* index among the proof's tensors */
  bool last;       /* of its launch */
  bool negate;
  enum adam_type gradient_type;
  const void *gradient;
  void *exp_avg, *exp_avg_sq, *max_exp_avg_sq, *update;
  uint64_t elements;
  struct piece_check check;
  struct paged_state
      *paged; /* instead of exp_avg, exp_avg_sq and the maximum, unless NULL; never verified */
};

struct worker;

/* Starts the thread, all signals blocked, and its team. NULL with a sentence when either can't be
 * had. */
struct worker *worker_start(const struct adam_api *, const struct config *, char *why,
                            size_t why_bytes);

/* Threads that step, the program's own not counted. */
unsigned worker_threads(const struct worker *);
/* Parts this rank's share of the node's cores among so many workers, anew: from the next launch on. For the calling thread's CPUs. */
void worker_part(struct worker *, unsigned among);

/* Whether so many jobs could be handed over now without blocking. */
bool worker_has_room(struct worker *, unsigned jobs);

/* Hand a job over. They block while the ring is full, which the worker empties: as it may be waiting
   for something that the blocked thread would do next, ask for room first. */
void worker_prove(struct worker *, const struct proof_job *);
void worker_step(struct worker *, const struct piece_job *);
/* Ends a launch whose last piece could not be told when it was handed over. */
void worker_end_launch(struct worker *);

/* What came of the last proof handed over, waiting for it at most `limit_ns`. */
enum proof_outcome { PROOF_UNKNOWN, PROOF_PROVEN, PROOF_SKIPPED, PROOF_REFUSED, PROOF_FAILED };
enum proof_outcome worker_wait_proof(struct worker *, uint64_t limit_ns);
/* Jobs done with, proofs and pieces. Wraps. */
uint32_t worker_jobs_done(struct worker *);

/* Lets the team do a job at once, outside of any launch, and waits for it (calibration). False when
   the job is none that it can do. */
bool worker_call(struct worker *, const struct adam_job *);

/* Launches handed over, and launches done with: a launch is done when its last piece was published.
 * Numbers wrap. */
uint32_t worker_launches_begun(const struct worker *);
/* Whether launch number `launch` (as counted by begun, from 1) is done with. */
bool worker_launch_done(struct worker *, uint32_t launch);

/* Waits until nothing is left to do, at most `limit_ns`. False when it took longer. */
bool worker_wait_idle(struct worker *, uint64_t limit_ns);

/* From now on every job ends as failed without touching state: the apply kernel traps rather than
   applying anything. For a device that no longer answers, and for exit. */
void worker_fail(struct worker *);

/* Ends the thread; nothing may be left to do, or worker_fail was called. Frees it. */
void worker_stop(struct worker *);
#endif
