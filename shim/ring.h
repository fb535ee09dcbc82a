/* What steps use on a device: side streams, our kernels, the staging ring, the proof's buffers and
   the worker. One for each CUDA context, made in stages, each when first needed and before anything
   of a launch is enqueued:

     ring_open      kernels loaded, side streams and events made          (stream, cpu)
     staging_make   device slots for state                                (stream)
     ring_stage     device slots                                          (cpu)
     ring_prepare   pinned slots, the proof's buffers, the worker         (cpu)

   A slot of the CPU step is a block of device memory: first = words and update on their way up,
   second = gradient as the prologue made it. Slots are used in turn; `down` and `up` events say when a
   slot's last use left the side streams. All launches of a context share the two side streams, so a second program stream
   takes them only when the first's last step is done. Everything here is under the enqueue lock. */
#ifndef OFFLOAD_RING_H
#define OFFLOAD_RING_H
#include "ahead.h"
#include "driver.h"
#include "kernels.h"
#include "recognise.h"
#include "staging.h"
#include "worker.h"
#include <pthread.h>

enum { RING_SLOTS = 4, RING_PROOFS = 4, RING_INPUTS = 8 };

/* Scratch of calibration (calibrate_bench.c says what lies where). */
enum { CALIBRATION_BYTES = 256 << 10 };

struct ring_slot {
  CUdeviceptr first;        /* slot_bytes */
  CUdeviceptr second;       /* in the same block: its other half */
  struct slot_words *words; /* pinned; the update follows */
  void *gradient, *update;  /* pinned */
  CUevent down, up;         /* recorded after the slot's last use on that stream */
  bool down_used, up_used;
  uint32_t generation;
};

/* In front of what a part of a slot holds: the words. */
enum { RING_HEAD = sizeof(struct slot_words) };

/* A launch's proof in flight. The event is recorded behind the program's kernel, the last that
 * reads the verdict. */
struct ring_proof {
  _Atomic uint32_t *ready;       /* pinned */
  float *verdict;                /* pinned */
  struct proof_results *results; /* pinned */
  CUdeviceptr device_verdict;
  CUevent read;
  bool used;
  uint32_t generation;
};

/* The probe's inputs for one set of scalars, pinned and on the device. */
struct ring_inputs {
  bool valid; /* on the device, or enqueued to be */
  bool used;  /* by a launch: last_launch says which */
  struct adam_candidate candidate;
  struct adam_hyper hyper;
  bool lr_known;
  uint32_t last_launch; /* of the worker's, that used them */
  void *pinned;
  CUdeviceptr device;
};

struct verifier; /* verify.h */
struct gates;    /* step_drive.c */

struct ring {
  CUcontext context;
  CUmodule module;
  struct kernels kernels;         /* gather is NULL when they could not be loaded */
  CUstream down, up, scratch;     /* non-blocking; scratch is calibration's */
  CUevent begins[AHEAD_LAUNCHES]; /* places of launches, in turn */
  unsigned next_begin;
  CUevent kernel, down_last, up_last; /* kernel: behind one on the program's stream */
  bool down_used;                     /* down_last was recorded */

  /* The last step that went through the ring: the program stream it came from (with the thread, of a
     per-thread stream), and the event behind its last use of the side streams. */
  CUstream last_stream;
  pthread_t last_thread;
  CUevent last_done; /* NULL before the first */

  unsigned slot_count, next_slot;
  size_t slot_elements; /* floats of the CPU step, in each half of a slot; a multiple of
                           CHUNK_ELEMENTS */
  size_t slot_bytes;    /* on the device; at least two parts of slot_elements floats */
  struct ring_slot slots[RING_SLOTS];

  struct staging staging;

  unsigned next_proof, next_inputs;
  struct ring_proof proofs[RING_PROOFS];
  struct ring_inputs inputs[RING_INPUTS];
  CUdeviceptr device_results; /* struct proof_results: the probe's tensors, worked on by the
                                 program's kernel */
  struct worker *worker;

  CUdeviceptr calibration;   /* CALIBRATION_BYTES, behind the proof's in one block */
  void *calibration_mirror;  /* as much pinned memory, for copies from and to it */
  bool calibration_given_up; /* the scratch stream was not done in time: it may still use both */
  uint64_t calibration_next_step; /* state_step() at which the next try may be made */

  struct gates *gates;       /* allocated; NULL before the first drive run */
  bool verdict_late;         /* a proof that the host waited for (step_drive.c) came too late */
  struct verifier *verifier; /* allocated; NULL before anything was to be verified */

  bool opened, staged, prepared, cannot_prepare;
  uint64_t staging_failed_step;  /* state_step() at which staging was not to be had */
  uint64_t staging_failed_moved; /* pieces moved by then: more of them are more room */
  char why[256];                 /* why the last stage could not be made */
  size_t ungrown_bytes;          /* slot_bytes for which pinned memory was not to be had */
  char small[256];               /* why the CPU step's half of a slot stayed smaller */
};

/* The present context's ring, made empty at first sight. NULL when there is no context or no
 * memory. */
struct ring *ring_of_context(void);
/* That of a context, or NULL. */
struct ring *ring_find(CUcontext context);

/* Gives staging back when the side streams are done within a moment, for a device that ran out of
   memory. Bytes freed. */
size_t ring_give_back(struct ring *);

/* Each makes what is missing up to its stage. False with ring->why. They call the driver, which may
   wait for the device, but leave nothing enqueued that works. `useful`: device slots of more bytes
   than that, all together, are not made. `least`: bytes that every slot must have; slots that are
   there and smaller are made anew. */
bool ring_open(struct ring *);
bool ring_stage(struct ring *, const struct config *, size_t useful, size_t least);
bool ring_prepare(struct ring *, const struct config *, const struct adam_api *);

/* Bytes of a slot's part with so many elements, of a slot with a part for each state, and of a ring
   whose slots hold two parts of floats. */
size_t ring_part_bytes(size_t elements, size_t element_bytes);
size_t ring_slot_bytes(size_t elements, unsigned states, size_t state_bytes);
size_t ring_bytes(unsigned slots, size_t elements);

/* Most elements, in whole chunks, whose states fit a slot. */
size_t ring_elements(const struct ring *, unsigned states, size_t state_bytes);

/* Most elements, in whole chunks, of a piece of the CPU step that is computed in this type. Of a ring that is not staged: as large as its
   pieces are going to be where memory is to be had. */
size_t ring_piece_elements(const struct ring *, enum adam_type opmath);
size_t ring_piece_asked(const struct config *, enum adam_type opmath);

/* The largest shape within `bytes`: more slots than two only where each still holds several times
   the least elements. False when even two slots of those don't fit. */
bool ring_shape(size_t bytes, size_t least, unsigned *slots, size_t *elements);

/* Whether a step of `stream` would wait in the side streams behind another program stream's, which
   may itself wait for something that only comes after this one. */
bool ring_taken(const struct ring *, CUstream stream);
/* A step of `stream` went through the ring, `done` is recorded behind it. */
void ring_took(struct ring *, CUstream stream, CUevent done);

/* The slot to use next. */
struct ring_slot *ring_next(struct ring *);

/* Waits for the worker, at most 10 seconds and not at all for a GPU that is lost; then lets what is
   in flight end as failed, with a line that begins with `what`. */
void ring_drain(struct ring *, const char *what);
/* The same for an exit in a signal's handler: neither the driver is asked nor, if a step isn't `whole`, the worker waited for. */
void ring_leave(struct ring *, bool whole);

/* Waits as long for the worker, too, and lets what is in flight end as failed on a GPU that is lost;
   else it goes on. For a context that may end or not: with a lost one goes the memory in which the
   worker waits. */
void ring_settle(const struct ring *);

/* Forgets a context: waits (bounded) for the worker, ends it and frees what is on the host. Driver
   objects go with the context; when it is `gone` already, none of them is named. */
void ring_forget(CUcontext context, bool gone);
void ring_each(void (*visit)(struct ring *, void *), void *argument);
#endif
