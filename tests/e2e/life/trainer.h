/* A small training on the driver API, for programs that fork, cancel, die and reset around it: a few tensors, steps by a fused Adam
   kernel, queued up and never synchronised unless asked. Everything of one training belongs to one context, so a program may
   have several. Errors come back; the trainer prints nothing. */
#ifndef TESTS_TRAINER_H
#define TESTS_TRAINER_H
#include "tests/e2e/adam_list.h"

enum { TRAINER_TENSORS = 5 };

struct trainer {
  CUcontext context;
  CUmodule module;
  CUstream stream;
  struct adam_kernel kernel;
  struct adam_tensor tensors[TRAINER_TENSORS];
  CUdeviceptr arrays[ADAM_LISTS], steps; /* p, g, m, v; the steps' numbers */
  size_t floats;                         /* of an array */
  unsigned step;                         /* the last one's number */
};

/* In the present context, with the kernel of a PTX file; p and g from a generator, m and v from
   memsets that are still queued on return. */
CUresult trainer_open(struct trainer *, const char *ptx_path, uint64_t seed);

/* The kernel's module again, after trainer_unload. */
CUresult trainer_load(struct trainer *, const char *ptx_path);
CUresult trainer_unload(struct trainer *);

/* So many steps, queued: step numbers, the launches, and the next gradients made of parameters. */
CUresult trainer_steps(struct trainer *, unsigned count);
/* The launches of one step alone, the number having been set by trainer_number. */
CUresult trainer_number(struct trainer *);
CUresult trainer_launch(struct trainer *);
CUresult trainer_gradients(struct trainer *);

/* Part of the gradients from the host: a batch. Waits for the stream. */
CUresult trainer_batch(struct trainer *, const void *numbers, size_t bytes);

/* Waits, and makes one number of p, g, m and v. */
CUresult trainer_hash(struct trainer *, uint64_t *hash);
/* Waits, and writes p, m and v to a file. */
CUresult trainer_save(struct trainer *, const char *path);

/* Gives back everything but the context. */
CUresult trainer_close(struct trainer *);
#endif
