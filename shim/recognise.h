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
#include "step.h"
#include <cuda.h>

/* Elements of a tensor that one block steps, and what every launch of these kernels looks like. */
enum { CHUNK_ELEMENTS = 65536, BLOCK_THREADS = 512, FAMILY_PARAMETERS = 11 };
enum { TENSORS_MOST = 252, BLOCKS_MOST = 2240, METADATA_BYTES_MOST = 25544 };

struct family {
  const char *family, *name, *pattern;
  enum adam_mode mode;
  unsigned metadata_bytes, tensors, blocks, block_tensor_bytes;
  unsigned numel_offset, steps_offset, block_tensor_offset, block_chunk_offset;
};

struct branch; /* calibrate.h */

/* A recognised function. Lives as long as the process: handles are few, and a report row outlives
 * its module. */
struct function {
  CUfunction handle;
  const struct family *family;
  struct report_function *row; /* NULL when the report's table is full */
  struct branch *branches;     /* what calibration found; under the enqueue lock */
};

/* The function of a launch, or NULL when it is not ours to touch. */
struct function *recognise(CUfunction function);

/* Handles may be re-used from now on: each is asked for its name and layout again. Safe against concurrent launches. */
void recognise_forget(void);

/* Calls `visit` for every function ever recognised. Under the enqueue lock. */
void recognise_each(void (*visit)(struct function *, void *), void *context);

/* Whether a mangled name is one of families.def; *metadata_known then tells nothing yet, the layout
   has to be asked for. Returns the first family of that name or NULL. */
const struct family *recognise_name(const char *name);

/* The family of that name whose parameters are exactly these, or NULL. `sizes` may carry flag bits
 * above the low 24. */
const struct family *recognise_layout(const char *name, unsigned count, const size_t *offsets,
                                      const size_t *sizes);

/* The arguments of a launch, in the order of the kernel's parameters. Pointers belong to the
 * program. */
struct arguments {
  const unsigned char *metadata;
  const float *lr_pointer;
  double lr, beta1, beta2, weight_decay, eps;
  unsigned char maximize;
  const float *grad_scale, *found_inf;
};

/* Reads them from kernel_parameters or the packed form. False with a reason when the launch lacks
 * them. */
bool arguments_read(const struct family *, const struct launch *, struct arguments *,
                    const char **why);

/* Launches the program's own kernel with these arguments over `blocks` blocks. */
CUresult arguments_launch(const struct function *, const struct arguments *, unsigned blocks,
                          unsigned shared_bytes, CUstream stream);

/* Which list a tensor's address is in. */
enum tensor_list { LIST_PARAMETER, LIST_GRADIENT, LIST_EXP_AVG, LIST_EXP_AVG_SQ };

/* Entries of the metadata. */
uintptr_t metadata_address(const struct family *, const unsigned char *, enum tensor_list,
                           unsigned tensor);
int64_t metadata_elements(const struct family *, const unsigned char *, unsigned tensor);
uintptr_t metadata_step(const struct family *, const unsigned char *, unsigned tensor);
unsigned metadata_block_tensor(const struct family *, const unsigned char *, unsigned block);
int metadata_block_chunk(const struct family *, const unsigned char *, unsigned block);
void metadata_set_tensor(const struct family *, unsigned char *, unsigned tensor,
                         const uintptr_t addresses[4], int64_t elements, uintptr_t step);
void metadata_set_address(const struct family *, unsigned char *, enum tensor_list, unsigned tensor,
                          uintptr_t address);
void metadata_set_block(const struct family *, unsigned char *, unsigned block, unsigned tensor,
                        unsigned chunk);

/* Whether the launch is what PyTorch's host code makes: block and grid shape, chunks inside their
   tensors, pointers aligned and not NULL. NULL when all is well, else what is wrong. */
const char *launch_unsound(const struct family *, const struct launch *, const struct arguments *);
#endif
