// torch.optim.Adam(W)(fused=True) as a program sees it: state is created at the first step (zeros
// on the stream), every tensor has a step counter of its own in device memory, one small kernel
// counts all of them up, then the fused kernel runs. Nothing here waits for the device.
#pragma once
#include "allocator.h"
#include "kernels/fused_adam.h"
#include "options.h"
#include "tensor.h"

#include <cuda_runtime.h>
#include <vector>

namespace charlm {

class Optimizer {
public:
  Optimizer(const Options &options, std::vector<Tensor> &tensors, CachingAllocator &allocator,
            cudaStream_t stream);
  ~Optimizer();
  Optimizer(const Optimizer &) = delete;
  Optimizer &operator=(const Optimizer &) = delete;

  // Queues step number `step` (from 1). Every ema_every-th step is followed by a kernel of another
  // kind that reads and writes exp_avg.
  void step(uint64_t step);

  // Allocates exp_avg, exp_avg_sq and step counters where they are missing, zero on the stream.
  void create_state();

  // Frees all state, fills blocks of the same sizes (the allocator hands out the same ones) by a
  // kernel that is no optimizer, adds up what another reads there into scratch_sum, and frees them
  // again. The next step starts with zeros.
  void drop_state_and_use_its_blocks();

  // What the kernels read in those blocks; waits for the stream. 0 when never used.
  uint32_t scratch_sum() const;

  // The factor that the loss's gradient is to be scaled by.
  float gradient_factor() const;

private:
  double learning_rate(uint64_t step) const;
  void free_state();
  void count_steps();

  const Options &options_;
  std::vector<Tensor> &tensors_;
  CachingAllocator &allocator_;
  cudaStream_t stream_;
  FusedAdamLaunch launch_;
  float *lr_ = nullptr, *grad_scale_ = nullptr, *found_inf_ = nullptr;
  uint32_t *scratch_sum_ = nullptr;
};

} // namespace charlm
