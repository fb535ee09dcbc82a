// State and small kernels around the fused step; see optimizer.h.
#include "optimizer.h"

#include "cuda_check.h"

#include <cmath>
#include <utility>

namespace charlm {
namespace {

constexpr int threads_per_block = 256;
constexpr int max_steps_per_launch = 110;

struct StepList {
  float *steps[max_steps_per_launch];
};

__global__ void add_to_steps(StepList list, int count, float value) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < count)
    *list.steps[i] += value;
}

// A skipped step is not counted: found_inf is 1 then, else 0.
__global__ void subtract_from_steps(StepList list, int count, const float *found_inf) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < count)
    *list.steps[i] -= *found_inf;
}

__global__ void set_scalar(float *scalar, float value) {
  *scalar = value;
}

__global__ void shrink(float *values, int64_t elements, float factor) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < elements;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    values[i] *= factor;
}

__global__ void fill_scratch(uint32_t *words, int64_t count, uint32_t seed) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    words[i] = seed + static_cast<uint32_t>(i) * 0x9e3779b9u;
}

// Integer addition: the order of the atomics does not show.
__global__ void sum_scratch(const uint32_t *words, int64_t count, uint32_t *sum) {
  uint32_t part = 0;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    part += words[i] ^ (words[i] >> 15);
  atomicAdd(sum, part);
}

unsigned blocks_for(int64_t elements) {
  const int64_t blocks = (elements + threads_per_block * 16 - 1) / (threads_per_block * 16);
  return static_cast<unsigned>(blocks < 1024 ? blocks : 1024);
}

// Calls body(list, count) for the steps of all tensors, so many at a time as a launch holds.
template <typename Body> void for_steps(const std::vector<Tensor> &tensors, Body body) {
  for (size_t start = 0; start < tensors.size(); start += max_steps_per_launch) {
    StepList list = {};
    int count = 0;
    for (size_t i = start; i < tensors.size() && count < max_steps_per_launch; i++)
      list.steps[count++] = tensors[i].step;
    body(list, count);
    CUDA_CHECK(cudaGetLastError());
  }
}

} // namespace

Optimizer::Optimizer(const Options &options, std::vector<Tensor> &tensors,
                     CachingAllocator &allocator, cudaStream_t stream)
    : options_(options), tensors_(tensors), allocator_(allocator), stream_(stream) {
  const FusedAdamKernel *kernel = find_fused_adam_kernel(options.kernel);
  launch_ = options.adam ? kernel->adam : kernel->adamw;
  auto scalar = [&](bool wanted, const char *what) {
    return wanted ? allocator_.allocate_array<float>(1, Purpose::lasting, what) : nullptr;
  };
  lr_ = scalar(options.tensor_lr, "the learning rate");
  grad_scale_ = scalar(options.grad_scale != 0, "the gradient scale");
  found_inf_ = scalar(options.found_inf_at != 0, "found_inf");
  if (options.free_state_at != 0) {
    scratch_sum_ = allocator_.allocate_array<uint32_t>(1, Purpose::lasting, "the scratch sum");
    CUDA_CHECK(cudaMemsetAsync(scratch_sum_, 0, sizeof *scratch_sum_, stream_));
  }
  if (grad_scale_)
    set_scalar<<<1, 1, 0, stream_>>>(grad_scale_, static_cast<float>(options.grad_scale));
  CUDA_CHECK(cudaGetLastError());
}

Optimizer::~Optimizer() {
  free_state();
  for (float *scalar : {lr_, grad_scale_, found_inf_})
    allocator_.free(scalar);
  allocator_.free(scratch_sum_);
}

double Optimizer::learning_rate(uint64_t step) const {
  if (!options_.lr_schedule)
    return options_.lr;
  const double progress = static_cast<double>(step - 1) / static_cast<double>(options_.steps);
  return options_.lr * (0.55 + 0.45 * std::cos(3.14159265358979323846 * progress));
}

float Optimizer::gradient_factor() const {
  const double scale = options_.grad_scale != 0 ? options_.grad_scale : 1.0;
  return static_cast<float>(options_.maximize ? -scale : scale);
}

void Optimizer::create_state() {
  for (Tensor &tensor : tensors_) {
    if (tensor.step)
      continue;
    const size_t bytes = static_cast<size_t>(tensor.elements) * sizeof(float);
    auto zeros = [&](size_t zero_bytes, void *&place, const char *what) {
      void *block = place ? std::exchange(place, nullptr)
                          : allocator_.allocate(zero_bytes, Purpose::lasting, what + tensor.name);
      CUDA_CHECK(cudaMemsetAsync(block, 0, zero_bytes, stream_));
      return static_cast<float *>(block);
    };
    void *no_place = nullptr;
    tensor.step = zeros(sizeof(float), no_place, "step of ");
    tensor.exp_avg = zeros(bytes, tensor.exp_avg_place, "exp_avg of ");
    tensor.exp_avg_sq = zeros(bytes, tensor.exp_avg_sq_place, "exp_avg_sq of ");
  }
}

void Optimizer::free_state() {
  for (Tensor &tensor : tensors_)
    for (float **state : {&tensor.step, &tensor.exp_avg, &tensor.exp_avg_sq}) {
      allocator_.free(*state);
      *state = nullptr;
    }
}

void Optimizer::drop_state_and_use_its_blocks() {
  free_state();
  std::vector<void *> blocks;
  for (const Tensor &tensor : tensors_)
    for (int moment = 0; moment < 2; moment++) {
      auto *words = allocator_.allocate_array<uint32_t>(static_cast<size_t>(tensor.elements),
                                                        Purpose::activation, "scratch");
      blocks.push_back(words);
      fill_scratch<<<blocks_for(tensor.elements), threads_per_block, 0, stream_>>>(
          words, tensor.elements, static_cast<uint32_t>(blocks.size()));
      sum_scratch<<<blocks_for(tensor.elements), threads_per_block, 0, stream_>>>(
          words, tensor.elements, scratch_sum_);
      CUDA_CHECK(cudaGetLastError());
    }
  for (void *block : blocks)
    allocator_.free(block);
}

uint32_t Optimizer::scratch_sum() const {
  uint32_t sum = 0;
  if (scratch_sum_) {
    CUDA_CHECK(cudaMemcpyAsync(&sum, scratch_sum_, sizeof sum, cudaMemcpyDeviceToHost, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }
  return sum;
}

void Optimizer::count_steps() {
  for_steps(tensors_, [&](const StepList &list, int count) {
    add_to_steps<<<1, max_steps_per_launch, 0, stream_>>>(list, count, 1.0f);
  });
}

void Optimizer::step(uint64_t step) {
  create_state();
  const double lr = learning_rate(step);
  if (lr_)
    set_scalar<<<1, 1, 0, stream_>>>(lr_, static_cast<float>(lr));
  if (found_inf_)
    set_scalar<<<1, 1, 0, stream_>>>(found_inf_, step == options_.found_inf_at ? 1.0f : 0.0f);
  CUDA_CHECK(cudaGetLastError());
  count_steps();

  std::vector<FusedAdamTensor> list;
  for (const Tensor &t : tensors_)
    list.push_back({t.parameter, t.gradient, t.exp_avg, t.exp_avg_sq, t.step, t.elements});
  const FusedAdamScalars scalars = {lr_,
                                    lr_ ? 1.0 : lr, // not read when lr_ is set
                                    options_.beta1,
                                    options_.beta2,
                                    options_.weight_decay,
                                    options_.eps,
                                    options_.maximize,
                                    grad_scale_,
                                    found_inf_,
                                    options_.garbage_tail};
  launch_(list, scalars, stream_);

  if (found_inf_)
    for_steps(tensors_, [&](const StepList &steps, int count) {
      subtract_from_steps<<<1, max_steps_per_launch, 0, stream_>>>(steps, count, found_inf_);
    });
  if (options_.ema_every != 0 && step % options_.ema_every == 0)
    for (const Tensor &tensor : tensors_) {
      shrink<<<blocks_for(tensor.elements), threads_per_block, 0, stream_>>>(
          tensor.exp_avg, tensor.elements, 0.995f);
      CUDA_CHECK(cudaGetLastError());
    }
}

} // namespace charlm
