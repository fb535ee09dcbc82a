/* A launch being carried out: what step.c decided, for step_stream.c and step_cpu.c to enqueue. One
   at a time, under the enqueue lock. */
#ifndef OFFLOAD_PLAN_H
#define OFFLOAD_PLAN_H
#include "ahead.h"
#include "calibrate.h"
#include "ring.h"

/* Consecutive blocks of one tensor that go through one slot of the ring. Either none or all of them have state on drives. */
struct run_of_blocks {
  unsigned tensor, chunk, blocks;
  uint64_t elements;
  bool verified; /* its turn for OFFLOAD_VERIFY */
  bool drive;
  struct paged_state
      *paged; /* of a drive run, from drive_begin until whoever works on it takes it over */
};

struct plan {
  const struct launch *launch;
  CUstream stream; /* normalised: 0 is the legacy stream */
  struct function *function;
  struct arguments arguments;
  CUcontext context;     /* the current one */
  struct ring *ring;     /* its, NULL as long as it has none */
  struct choice *choice; /* choose.c's */
  CUevent begin;         /* its place on the program's stream */
  struct timing *timing; /* of the whole, for OFFLOAD_TRACE */
  struct ahead ahead;    /* what it may do before that is reached */
  struct branch *branch; /* cpu mode; what follows as well */
  struct ring_inputs *inputs;
  bool fresh_inputs; /* the device does not have them yet */

  unsigned verified; /* runs whose turn it is */
  unsigned run_count, ours,
      rest; /* runs; blocks that are ours; blocks that stay the program's kernel's */
  uint64_t ours_elements, rest_elements;
  /* Of ours, those in front, with no state on drives: blocks, their elements, their runs. The others are the drive tier's. */
  unsigned resident, resident_runs;
  uint64_t resident_elements;
  uint64_t drive_elements_most; /* in a run of the drive tier */
  struct run_of_blocks runs[BLOCKS_MOST];
  unsigned char ours_metadata[METADATA_BYTES_MOST]; /* the launch's, naming only our blocks */
  unsigned char rest_metadata[METADATA_BYTES_MOST]; /* and only the others */
  unsigned char work_metadata[METADATA_BYTES_MOST]; /* for rewriting, run by run */
};

/* Address of a run's first element in a list. */
static inline uintptr_t run_address(const struct plan *plan, const struct run_of_blocks *run,
                                    enum tensor_list list) {
  const struct family *family = &plan->function->family;
  return metadata_address(family, plan->arguments.metadata, list, run->tensor) +
         (uintptr_t)run->chunk * CHUNK_ELEMENTS * element_bytes(family, list);
}

/* Records where the program's stream is now, for the side streams to start from, decides what they may do
   before, and launches the program's kernel over the blocks that are not ours. Nothing of a step depends on
   them. */
CUresult plan_begin(struct plan *, bool streamed);

/* The program's kernel over `metadata`, with the launch's other arguments and this found_inf. */
CUresult plan_launch(const struct plan *, const unsigned char *metadata, unsigned blocks,
                     const float *found_inf);

/* Something failed after work of this launch was enqueued or handed over: there is no way back.
   Turns the hooks off, lets what is in flight end as failed, and returns the result. */
CUresult plan_broken(struct plan *, CUresult result, const char *what);
#define PLAN_TRY(plan, call)                                                                       \
  do {                                                                                             \
    const CUresult plan_result = (call);                                                           \
    if (plan_result != CUDA_SUCCESS)                                                               \
      return plan_broken(plan, plan_result, #call);                                                \
  } while (0)

/* ---- the drive tier (step_drive.c) ---- */

/* For a launch with blocks of ours on drives, before anything of it is enqueued. drive_ready: frames, words and the keeper are there,
   and cut_runs knows how long a run may be. drive_begin: every drive run's state is on its way, in the order in which they are
   worked on. False with why, and nothing of it is left. drive_leave: what nobody took over. */
bool drive_ready(struct plan *, const char **why);
bool drive_begin(struct plan *, const char **why);
void drive_leave(struct plan *);
/* Whether a run with this many more elements would be too long for a ticket. */
bool drive_run_fits(const struct plan *, const struct run_of_blocks *, uint64_t elements);
/* Brings in what the launch names; of its blocks only those with state both on drives and on the device, and its parameters and
   gradients. */
CUresult drive_fault_launch(struct plan *);
CUresult drive_fault_mixed(struct plan *);
/* What came of the launch's proof, waited for some seconds; PROOF_UNKNOWN for good once it came late. */
enum proof_outcome drive_verdict(const struct plan *);
/* The drive runs by `stream`, behind everything enqueued so far. */
CUresult drive_stream(struct plan *);
/* A slot of staging for something that isn't there yet. */
struct staging_slot *staging_next(struct staging *);

/* Last, before the CPU step is chosen: takes the proof's inputs, and makes sure that nothing in it
   will wait for launches before it: the program may not get to what they wait for. False with why.
 */
bool step_cpu_ready(struct plan *, const char **why);

/* The two ways to carry out a plan's runs. Everything that may fail for lack of something was made
 * before. */
CUresult step_stream(struct plan *);
CUresult step_cpu(struct plan *);
#endif
