/* Calls of our GPU kernels: see kernels.h. */
#include "kernels.h"
#include <stdio.h>

enum { THREADS = 256 };

CUresult kernels_find(CUmodule module, struct kernels *kernels) {
  static const char *const types[ADAM_TYPES] = {[ADAM_TYPE_FLOAT] = "fp32",
                                                [ADAM_TYPE_DOUBLE] = "fp64",
                                                [ADAM_TYPE_HALF] = "fp16",
                                                [ADAM_TYPE_BFLOAT16] = "bf16"};
  struct kernels found = {.gather = NULL};
  for (int type = 0; type < ADAM_TYPES; type++) {
    const struct {
      const char *name;
      CUfunction *to;
    } wanted[] = {{"scale", &found.scale[type]},
                  {"prologue", &found.prologue[type]},
                  {"apply", &found.apply[type]},
                  {"keep", &found.keep[type]},
                  {"fine", &found.fine[type]}};
    const unsigned count = adam_type_bytes((enum adam_type)type) == 2 ? 5 : 4;
    for (unsigned i = 0; i < count; i++) {
      char name[32];
      snprintf(name, sizeof name, "off_%s_%s", wanted[i].name, types[type]);
      DRIVER_TRY(driver.cuModuleGetFunction(wanted[i].to, module, name));
    }
  }
  DRIVER_TRY(driver.cuModuleGetFunction(&found.gather, module, "off_gather"));
  DRIVER_TRY(driver.cuModuleGetFunction(&found.gate, module, "off_gate"));
  *kernels = found;
  return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, unsigned blocks, unsigned threads, CUstream stream,
                       void **parameters) {
  return driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, NULL);
}

static unsigned blocks_for(uint64_t elements) {
  return (unsigned)((elements + THREADS - 1) / THREADS);
}

CUresult kernels_lay_out(const struct kernels *kernels, const struct probe_layout *layout,
                         CUstream stream) {
  const struct kernel_shape shape = shape_of(&layout->candidate);
  const float *lr_pointer = layout->lr_pointer, *grad_scale = layout->grad_scale,
              *found_inf = layout->found_inf;
  uint64_t by_value[TENSORS_MOST] = {0};
  for (unsigned i = 0; i < layout->tensors; i++)
    by_value[i] = layout->steps[i];
  CUdeviceptr inputs = layout->inputs, out = layout->out;
  uint32_t bytes = (uint32_t)lists_bytes(&shape, PROBE_ELEMENTS), words = bytes / 4;
  void *gather[] = {by_value, &lr_pointer, &grad_scale, &found_inf, &inputs, &words, &out};
  DRIVER_TRY(launch(kernels->gather, layout->tensors, THREADS, stream, gather));
  if (grad_scale) {
    CUdeviceptr g =
        out + offsetof(struct proof_results, probes) + PROBE_ELEMENTS * adam_type_bytes(shape.type);
    void *scale[] = {&g, &bytes, &grad_scale};
    DRIVER_TRY(launch(kernels->scale[shape.type], layout->tensors, PROBE_ELEMENTS, stream, scale));
  }
  if (fine_bytes(&shape)) {
    const struct adam_hyper hyper = fine_hyper(&layout->candidate, &layout->hyper, !lr_pointer);
    CUdeviceptr first =
        out + offsetof(struct proof_results, probes) + layout->tensors * (size_t)bytes;
    double lr = hyper.lr, beta1 = hyper.beta1, beta2 = hyper.beta2;
    if (layout->candidate.generation == ADAM_FLOAT) {
      beta1 = (double)(float)beta1;
      beta2 = (double)(float)beta2;
    }
    void *fine[] = {&out, &first, &lr, &beta1, &beta2};
    DRIVER_TRY(launch(kernels->fine[shape.type], layout->tensors, FINE_ELEMENTS, stream, fine));
  }
  return CUDA_SUCCESS;
}

enum kernel_decay kernel_decay(const struct adam_candidate *candidate) {
  if (candidate->decay == ADAM_DECAY_NONE)
    return KERNEL_NONE;
  const bool fused = candidate->decay == ADAM_DECAY_FUSED;
  const bool float_scalars =
      candidate->generation == ADAM_FLOAT || candidate->generation == ADAM_MIXED;
  if (float_scalars && candidate->type != ADAM_TYPE_DOUBLE)
    return fused ? KERNEL_FLOAT_FUSED : KERNEL_FLOAT_UNFUSED;
  return fused ? KERNEL_DOUBLE_FUSED : KERNEL_DOUBLE_UNFUSED;
}

static bool decay_in_gradient(const struct adam_candidate *candidate) {
  return candidate->mode == ADAM_L2 && candidate->decay != ADAM_DECAY_NONE;
}

bool kernels_need_prologue(const struct adam_candidate *candidate, const float *grad_scale) {
  return decay_in_gradient(candidate) || grad_scale;
}

CUresult kernels_prologue(const struct kernels *kernels, const struct kernel_run *run,
                          const struct adam_hyper *hyper, CUdeviceptr out, CUstream stream) {
  CUdeviceptr p = run->p, g = run->g;
  const float *grad_scale = run->grad_scale;
  uint32_t count = (uint32_t)run->elements, maximize = hyper->maximize;
  uint32_t decay = decay_in_gradient(&run->candidate) ? (uint32_t)kernel_decay(&run->candidate)
                                                      : (uint32_t)KERNEL_NONE;
  double weight_decay = hyper->weight_decay;
  void *parameters[] = {&p, &g, &out, &count, &decay, &maximize, &weight_decay, &grad_scale};
  return launch(kernels->prologue[run->candidate.type], blocks_for(run->elements), THREADS, stream,
                parameters);
}

CUresult kernels_apply(const struct kernels *kernels, const struct kernel_run *run,
                       CUdeviceptr slot, uint32_t generation, CUstream stream) {
  CUdeviceptr p = run->p, g = run->g, update = slot + sizeof(struct slot_words);
  const float *grad_scale = run->grad_scale;
  uint32_t count = (uint32_t)run->elements, expected = slot_status(generation, SLOT_APPLY);
  uint32_t decay = run->candidate.mode == ADAM_W ? (uint32_t)kernel_decay(&run->candidate)
                                                 : (uint32_t)KERNEL_NONE;
  void *parameters[] = {&p, &update, &slot, &count, &expected, &decay, &g, &grad_scale};
  return launch(kernels->apply[run->candidate.type], blocks_for(run->elements), THREADS, stream,
                parameters);
}

CUresult kernels_keep(const struct kernels *kernels, enum adam_type type, CUdeviceptr to,
                      CUdeviceptr from, uint64_t elements, CUdeviceptr words, uint32_t generation,
                      CUstream stream) {
  uint32_t count = (uint32_t)elements, expected = slot_status(generation, SLOT_APPLY);
  void *parameters[] = {&to, &from, &words, &count, &expected};
  return launch(kernels->keep[type], elements ? blocks_for(elements) : 1, THREADS, stream,
                parameters);
}

CUresult kernels_gate(const struct kernels *kernels, CUdeviceptr words, uint32_t generation,
                      CUstream stream) {
  uint32_t expected = slot_status(generation, SLOT_APPLY);
  void *parameters[] = {&words, &expected};
  return launch(kernels->gate, 1, 1, stream, parameters);
}
