/* Recognition: is this function a fused Adam whose layout we know, and what does a launch of it
   say?

   A function is recognised by its whole mangled name (hashes of the build wildcarded) together with
   size and offset of every parameter. The right name with another layout is reported and left
   alone. Only entries of the by-value list that are named by blocks below gridDim.x are read: the
   rest may hold anything. Readers are lock-free; this room calls the driver only to ask about a
   function it has not met. */
#ifndef OFFLOAD_RECOGNISE_H
#define OFFLOAD_RECOGNISE_H
#include "../adam/adam.h"
#include "../policy/report.h"
#include "probe.h"
#include "step.h"
#include <cuda.h>
#include <stdatomic.h>

/* Elements of a tensor that one block steps, and what every launch of these kernels looks like. */
enum { CHUNK_ELEMENTS = 65536, BLOCK_THREADS = 512 };
enum { TENSORS_MOST = 252, BLOCKS_MOST = 2240, METADATA_BYTES_MOST = 25544 };

/* The tensor list's lists. Those from LIST_STATE on are state. */
enum tensor_list {
  LIST_PARAMETER,
  LIST_GRADIENT,
  LIST_EXP_AVG,
  LIST_EXP_AVG_SQ,
  LIST_MAX_EXP_AVG_SQ,
  LISTS_MOST,
  LIST_STATE = LIST_EXP_AVG,
  STATES_MOST = LISTS_MOST - LIST_STATE
};
enum { ELEMENT_BYTES_MOST = 8 };

/* What a kernel may take behind its tensor list: X(name, size as a parameter, member of struct arguments). */
#define ARGUMENT_LIST(X)                                                                           \
  X(FUNCTOR, 1, functor)                                                                           \
  X(LR_POINTER, 8, lr_pointer)                                                                     \
  X(LR, 8, lr)                                                                                     \
  X(BETA1, 8, beta1)                                                                               \
  X(BETA2, 8, beta2)                                                                               \
  X(WEIGHT_DECAY, 8, weight_decay)                                                                 \
  X(EPS, 8, eps)                                                                                   \
  X(MAXIMIZE, 1, maximize)                                                                         \
  X(AMSGRAD, 1, amsgrad)                                                                           \
  X(GRAD_SCALE, 8, grad_scale)                                                                     \
  X(FOUND_INF, 8, found_inf)                                                                       \
  X(MODE, 1, mode)
enum argument {
#define X(name, size, member) ARGUMENT_##name,
  ARGUMENT_LIST(X)
#undef X
      ARGUMENTS_MOST
};
enum { PARAMETERS_MOST = ARGUMENTS_MOST + 1 };

struct family {
  const char *family; /* "torch_fused_adam", "torch_fused_adamw" */
  char name[40];      /* "AdamW amsgrad bf16" */
  enum adam_mode mode;
  unsigned lists;                        /* 4, with amsgrad 5 */
  enum adam_type type, state_type;       /* of parameters and gradients; of each state */
  unsigned parameter_bytes, state_bytes; /* of an element of those */

  /* The kernel's parameters: the tensor list, then these, at `offsets` behind its end. */
  unsigned argument_count;
  enum argument arguments[ARGUMENTS_MOST];
  unsigned offsets[ARGUMENTS_MOST], arguments_bytes;

  /* The tensor list. */
  unsigned metadata_bytes, tensors, blocks, numel_bytes, block_tensor_bytes;
  unsigned numel_offset, steps_offset, block_tensor_offset, block_chunk_offset;
};

static inline unsigned family_states(const struct family *family) {
  return family->lists - LIST_STATE;
}

static inline struct kernel_shape family_shape(const struct family *family) {
  return (struct kernel_shape){family->mode, family->type, family->state_type,
                               family->lists == LISTS_MOST};
}

static inline unsigned element_bytes(const struct family *family, enum tensor_list list) {
  return list < LIST_STATE ? family->parameter_bytes : family->state_bytes;
}

struct branch;  /* calibrate.h */
struct foreign; /* foreign.h */

/* Which pieces of a function's CPU steps are verified (verify.h); under the enqueue lock but for
 * `differed`. */
struct verified {
  uint64_t first_step, step; /* of its first launch by the CPU, and of its last */
  uint32_t turn;             /* steps that it had before that one */
  uint32_t next_piece;       /* of that step */
  bool missed;               /* a piece of that step could not be verified */
  uint64_t *last_steps; /* by turn mod N: the step at which all whose turn that is were verified */
  _Atomic int differed; /* the worker sets it */
};

/* A recognised function. Lives as long as the process: handles are few, and a report row outlives
 * its module. */
struct function {
  CUfunction handle;
  const struct foreign
      *foreign; /* of an optimizer that is only named in the report; the rest is 0 */
  struct family family;
  struct report_function *row; /* NULL when the report's table is full */
  struct branch *branches;     /* what calibration found; under the enqueue lock */

  struct verified verified; /* verify.h keeps it */

  /* State named by launches into captures: those since a launch began with the first one's tensor.
   */
  _Atomic uintptr_t captured_first;
  _Atomic uint64_t captured_bytes;
};

/* The function of a launch, or NULL when it is not ours to touch. */
struct function *recognise(CUfunction function);

/* Handles may be re-used from now on: each is asked for its name and layout again. Safe against concurrent launches. */
void recognise_forget(void);

/* Calls `visit` for every function ever recognised. Under the enqueue lock. */
void recognise_each(void (*visit)(struct function *, void *), void *context);

/* Whether a mangled name is one of families.def. The layout of its parameters is another question.
 */
bool recognise_name(const char *name);

/* The family of that name whose parameters are exactly these; false when there is none. `sizes` may
 * carry flag bits above the low 24. */
bool recognise_layout(const char *name, unsigned count, const size_t *offsets, const size_t *sizes,
                      struct family *);

/* The arguments of a launch. Pointers belong to the program. What a kernel does not take is 0. */
struct arguments {
  const unsigned char *metadata;
  const float *lr_pointer;
  double lr, beta1, beta2, weight_decay, eps;
  const float *grad_scale, *found_inf;
  unsigned char functor, maximize;
  unsigned char amsgrad, mode; /* arguments before 2.3; part of the name since */
};

/* Arguments of a launch of our own: what the family says itself is set, the rest is 0. */
struct arguments arguments_of(const struct family *);

/* Reads them from kernel_parameters or the packed form. False with a reason when the launch lacks
 * them. */
bool arguments_read(const struct family *, const struct launch *, struct arguments *,
                    const char **why);

/* Launches the program's own kernel with these arguments over `blocks` blocks. */
CUresult arguments_launch(const struct function *, const struct arguments *, unsigned blocks,
                          unsigned shared_bytes, CUstream stream);

/* Entries of the metadata. */
uintptr_t metadata_address(const struct family *, const unsigned char *, enum tensor_list,
                           unsigned tensor);
int64_t metadata_elements(const struct family *, const unsigned char *, unsigned tensor);
uintptr_t metadata_step(const struct family *, const unsigned char *, unsigned tensor);
unsigned metadata_block_tensor(const struct family *, const unsigned char *, unsigned block);
int metadata_block_chunk(const struct family *, const unsigned char *, unsigned block);
/* `addresses`: as many as the family has lists. */
void metadata_set_tensor(const struct family *, unsigned char *, unsigned tensor,
                         const uintptr_t *addresses, int64_t elements, uintptr_t step);
void metadata_set_address(const struct family *, unsigned char *, enum tensor_list, unsigned tensor,
                          uintptr_t address);
void metadata_set_block(const struct family *, unsigned char *, unsigned block, unsigned tensor,
                        unsigned chunk);

/* Elements of the chunk that a block steps. */
uint64_t metadata_chunk_elements(const struct family *, const unsigned char *, unsigned block);

/* Whether the launch is what PyTorch's host code makes: block and grid shape, chunks inside their
   tensors, pointers aligned and not NULL. NULL when all is well, else what is wrong. */
const char *launch_unsound(const struct family *, const struct launch *, const struct arguments *);
#endif
