// What the trainer knows of the fused Adam kernels: a table of launch functions by name.
// The launch functions are defined by kernels/<name>/fused_adam{,w}_impl.cu through fused_impl.cuh.
#pragma once
#include <cstdint>
#include <cuda_runtime.h>
#include <string>
#include <vector>

namespace charlm {

// One tensor and its optimizer state, all in device memory; `elements` floats each, `step` one
// float.
struct FusedAdamTensor {
  float *parameter, *gradient, *exp_avg, *exp_avg_sq, *step;
  int64_t elements;
};

struct FusedAdamScalars {
  const float *lr_device; // overrides lr when set
  double lr, beta1, beta2, weight_decay, eps;
  bool maximize;
  const float *grad_scale; // device; null: gradients are not scaled
  const float *found_inf;  // device; null: never skipped
  bool garbage_tail;       // fill what a launch's metadata does not use with nonsense
};

// Queues one optimizer step over all tensors on the stream, in as many launches as the metadata
// needs. Tensors of no elements are skipped.
using FusedAdamLaunch = void (*)(const std::vector<FusedAdamTensor> &, const FusedAdamScalars &,
                                 cudaStream_t);

struct FusedAdamKernel {
  const char *name, *help;
  FusedAdamLaunch adam, adamw;
};

const std::vector<FusedAdamKernel> &fused_adam_kernels();

// Null when there is no kernel of that name.
const FusedAdamKernel *find_fused_adam_kernel(const std::string &name);

} // namespace charlm
