// A next-character model: the rows that the last 1, 2, ... characters hash to, one from each table,
// are summed; a hidden layer with ReLU and a softmax over the text's characters follow.
//
//   position -> row[table]   x = sum of rows   h = relu(x W1 + b1)   logits = h W2 + b2   loss
//
// Everything is queued on one stream. Every sum has one fixed order, so a run depends on its
// options and its text only, never on timing.
#pragma once
#include "allocator.h"
#include "corpus.h"
#include "options.h"
#include "tensor.h"

#include <cuda_runtime.h>
#include <vector>

namespace charlm {

class Model {
public:
  // Parameters are drawn from the seed on the host and copied to the device.
  Model(const Options &options, const Corpus &corpus, CachingAllocator &allocator,
        cudaStream_t stream);
  ~Model();
  Model(const Model &) = delete;
  Model &operator=(const Model &) = delete;

  // Queues forward and backward of one batch, which `step` chooses. The mean loss goes to
  // losses[step-1]; gradients of the loss times `gradient_factor` go to the tensors. Activations
  // live for this call.
  void forward_backward(uint64_t step, float gradient_factor);

  std::vector<Tensor> &tensors();
  const std::vector<Tensor> &tensors() const;

  // Device memory, one float per step.
  const float *losses() const;

private:
  struct Activations;
  void declare(const std::string &name, uint64_t elements);
  void place();
  void draw(size_t index, double scale);
  void allocate_gradients();
  void forward(const Activations &a, uint64_t step);
  void backward(const Activations &a);

  const Options &options_;
  const uint32_t vocabulary_;
  const uint64_t characters_;
  const uint64_t rows_; // of one table
  CachingAllocator &allocator_;
  cudaStream_t stream_;
  std::vector<Tensor> tensors_; // tables first, then hidden weight, bias, output weight, bias
  uint8_t *text_ = nullptr;
  float *losses_ = nullptr;
};

} // namespace charlm
