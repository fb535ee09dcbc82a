/* Calls of our GPU kernels (kernels.ptx, which says what each does). */
#ifndef OFFLOAD_SHIM_KERNELS_H
#define OFFLOAD_SHIM_KERNELS_H
#include "driver.h"
#include "recognise.h"
#include "worker.h"

/* Those with a type have one entry for each; `fine` only for the types of two bytes. */
struct kernels {
  CUfunction gather, gate, scale[ADAM_TYPES], prologue[ADAM_TYPES], apply[ADAM_TYPES],
      keep[ADAM_TYPES], fine[ADAM_TYPES];
};

/* The functions of a module that was loaded from kernels.ptx. */
CUresult kernels_find(CUmodule, struct kernels *);

/* The probes of a launch laid out at `out` (struct proof_results): step counters, what the launch
   points at, and the inputs for every tensor. With a grad_scale the gradients are multiplied by it;
   for types of two bytes the fine probes follow. */
struct probe_layout {
  struct adam_candidate candidate;
  const uintptr_t *steps;
  unsigned tensors;
  const float *lr_pointer, *grad_scale, *found_inf; /* NULL: none */
  struct adam_hyper hyper;
  CUdeviceptr inputs, out;
};
CUresult kernels_lay_out(const struct kernels *, const struct probe_layout *, CUstream);

enum kernel_decay {
  KERNEL_NONE,
  KERNEL_FLOAT_FUSED,
  KERNEL_FLOAT_UNFUSED,
  KERNEL_DOUBLE_FUSED,
  KERNEL_DOUBLE_UNFUSED
};
enum kernel_decay kernel_decay(const struct adam_candidate *);

/* A run of elements on the device. */
struct kernel_run {
  struct adam_candidate candidate;
  CUdeviceptr p, g;
  const float *grad_scale; /* NULL: none */
  uint64_t elements;
};

/* Whether a gradient can go down as it is, or the prologue has to make what the moments take in. */
bool kernels_need_prologue(const struct adam_candidate *, const float *grad_scale);
/* `out`: in the type that is computed in. */
CUresult kernels_prologue(const struct kernels *, const struct kernel_run *,
                          const struct adam_hyper *, CUdeviceptr out, CUstream);
/* `slot`: words and, behind them, the update. */
CUresult kernels_apply(const struct kernels *, const struct kernel_run *, CUdeviceptr slot,
                       uint32_t generation, CUstream);

/* Copies elements of a type where the status behind `words` says apply, traps where it says failed; for
   no elements only that. */
CUresult kernels_keep(const struct kernels *, enum adam_type, CUdeviceptr to, CUdeviceptr from,
                      uint64_t elements, CUdeviceptr words, uint32_t generation, CUstream);

/* Behind a wait for words->ready (frames.h): traps unless the status says that the generation's pieces are there. */
CUresult kernels_gate(const struct kernels *, CUdeviceptr words, uint32_t generation, CUstream);
#endif
