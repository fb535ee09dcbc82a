// The model's tensors and the order of its kernels; see model.h.
#include "model.h"

#include "cuda_check.h"
#include "model_kernels.cuh"

#include <cmath>

namespace charlm {
namespace {

unsigned blocks_for(uint64_t threads) {
  return static_cast<unsigned>((threads + threads_per_block - 1) / threads_per_block);
}

// splitmix64, upper bits, uniform in [-1, 1).
float uniform(uint64_t &state) {
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<float>((z ^ (z >> 31)) >> 40) * 0x1p-23f - 1.0f;
}

} // namespace

struct Model::Activations {
  int *rows, *next, *first, *targets;
  float *x, *hidden, *logits, *loss, *hidden_gradient, *x_gradient;
};

Model::Model(const Options &options, const Corpus &corpus, CachingAllocator &allocator,
             cudaStream_t stream)
    : options_(options), vocabulary_(corpus.vocabulary), characters_(corpus.classes.size()),
      rows_(options.rows / options.tables), allocator_(allocator), stream_(stream) {
  text_ = allocator_.allocate_array<uint8_t>(characters_, Purpose::lasting, "the text");
  copy_to_device(text_, corpus.classes.data(), characters_, stream_);
  losses_ = allocator_.allocate_array<float>(options.steps, Purpose::lasting, "the losses");
  const uint64_t width = options.embedding, hidden = options.hidden;
  for (uint64_t t = 0; t < options.tables; t++)
    declare("table " + std::to_string(t), rows_ * width);
  declare("hidden weight", width * hidden);
  declare("hidden bias", hidden);
  declare("output weight", hidden * vocabulary_);
  declare("output bias", vocabulary_);
  place();
  for (uint64_t t = 0; t < options.tables; t++)
    draw(t, 0.5 / static_cast<double>(options.tables));
  draw(options.tables, 1.5 / std::sqrt(static_cast<double>(width)));
  draw(options.tables + 1, 0);
  draw(options.tables + 2, 0.5 / std::sqrt(static_cast<double>(hidden)));
  draw(options.tables + 3, 0);
}

Model::~Model() {
  for (Tensor &tensor : tensors_) {
    allocator_.free(tensor.parameter_block);
    allocator_.free(tensor.gradient);
    allocator_.free(tensor.exp_avg_place);
    allocator_.free(tensor.exp_avg_sq_place);
  }
  allocator_.free(text_);
  allocator_.free(losses_);
}

void Model::declare(const std::string &name, uint64_t elements) {
  Tensor tensor;
  tensor.name = name;
  tensor.elements = static_cast<int64_t>(elements);
  tensors_.push_back(tensor);
}

// With --share-piece one row of neighbours: the first parameter, 512 bytes into its block, then
// places for the state of all tensors. So a parameter and exp_avg, and state and state, meet at
// borders that are no round addresses.
void Model::place() {
  auto bytes_of = [](const Tensor &tensor) {
    return static_cast<size_t>(tensor.elements) * sizeof(float);
  };
  constexpr size_t shift = 512;
  if (options_.share_piece) {
    std::vector<size_t> parts = {bytes_of(tensors_[0]) + shift};
    for (const Tensor &tensor : tensors_)
      parts.insert(parts.end(), 2, bytes_of(tensor));
    const std::vector<void *> blocks =
        allocator_.allocate_adjacent(parts, Purpose::lasting, "a parameter and places for state");
    tensors_[0].parameter_block = blocks[0];
    tensors_[0].parameter = reinterpret_cast<float *>(static_cast<char *>(blocks[0]) + shift);
    for (size_t i = 0; i < tensors_.size(); i++) {
      tensors_[i].exp_avg_place = blocks[2 * i + 1];
      tensors_[i].exp_avg_sq_place = blocks[2 * i + 2];
    }
  }
  for (Tensor &tensor : tensors_)
    if (!tensor.parameter_block) {
      tensor.parameter_block = allocator_.allocate(bytes_of(tensor), Purpose::lasting, tensor.name);
      tensor.parameter = static_cast<float *>(tensor.parameter_block);
    }
}

void Model::draw(size_t index, double scale) {
  const Tensor &tensor = tensors_[index];
  std::vector<float> values(static_cast<size_t>(tensor.elements));
  uint64_t state = options_.seed * 1000003u + index + 1;
  for (float &value : values)
    value = uniform(state) * static_cast<float>(scale);
  copy_to_device(tensor.parameter, values.data(), values.size() * sizeof(float), stream_);
}

void Model::allocate_gradients() {
  for (Tensor &tensor : tensors_)
    if (!tensor.gradient)
      tensor.gradient = allocator_.allocate_array<float>(
          static_cast<size_t>(tensor.elements), Purpose::lasting, "the gradient of " + tensor.name);
}

void Model::forward_backward(uint64_t step, float gradient_factor) {
  const size_t batch = options_.batch, tables = options_.tables;
  std::vector<void *> blocks;
  auto activation = [&](size_t bytes, const char *what) {
    blocks.push_back(allocator_.allocate(bytes, Purpose::activation, what));
    return blocks.back();
  };
  auto integers = [&](size_t count, const char *what) {
    return static_cast<int *>(activation(count * sizeof(int), what));
  };
  auto floats = [&](size_t count, const char *what) {
    return static_cast<float *>(activation(count * sizeof(float), what));
  };
  Activations a;
  a.rows = integers(tables * batch, "the rows of a batch");
  a.next = integers(tables * batch, "the chains of a batch");
  a.first = integers(tables * batch, "the chains of a batch");
  a.targets = integers(batch, "the targets");
  a.x = floats(batch * options_.embedding, "the summed rows");
  a.hidden = floats(batch * options_.hidden, "the hidden layer");
  a.logits = floats(batch * vocabulary_, "the logits");
  a.loss = floats(batch, "the losses of a batch");
  forward(a, step);
  softmax_loss<<<blocks_for(batch), threads_per_block, 0, stream_>>>(
      a.logits, a.targets, static_cast<int>(batch), static_cast<int>(vocabulary_), gradient_factor,
      a.loss);
  mean<<<1, threads_per_block, 0, stream_>>>(a.loss, static_cast<int>(batch), losses_ + step - 1);
  a.hidden_gradient = floats(batch * options_.hidden, "the hidden layer's gradient");
  a.x_gradient = floats(batch * options_.embedding, "the rows' gradient");
  allocate_gradients();
  backward(a);
  CUDA_CHECK(cudaGetLastError());
  for (void *block : blocks)
    allocator_.free(block);
}

void Model::forward(const Activations &a, uint64_t step) {
  const int batch = static_cast<int>(options_.batch), width = static_cast<int>(options_.embedding);
  const int hidden = static_cast<int>(options_.hidden), vocabulary = static_cast<int>(vocabulary_);
  const int tables = static_cast<int>(options_.tables);
  Tables values = {};
  for (int t = 0; t < tables; t++)
    values.values[t] = tensors_[static_cast<size_t>(t)].parameter;
  const Tensor *dense = &tensors_[options_.tables];
  choose_batch<<<blocks_for(options_.batch), threads_per_block, 0, stream_>>>(
      text_, characters_, static_cast<uint32_t>(options_.seed), static_cast<uint32_t>(step), batch,
      tables, static_cast<uint32_t>(rows_), static_cast<int>(options_.context), a.rows, a.targets);
  link_rows<<<dim3(blocks_for(options_.batch), static_cast<unsigned>(tables)), threads_per_block, 0,
              stream_>>>(a.rows, batch, a.next, a.first);
  sum_rows<<<blocks_for(options_.batch * options_.embedding), threads_per_block, 0, stream_>>>(
      values, tables, a.rows, batch, width, a.x);
  linear<<<blocks_for(options_.batch * options_.hidden), threads_per_block, 0, stream_>>>(
      a.x, dense[0].parameter, dense[1].parameter, batch, width, hidden, true, a.hidden);
  linear<<<blocks_for(options_.batch * vocabulary_), threads_per_block, 0, stream_>>>(
      a.hidden, dense[2].parameter, dense[3].parameter, batch, hidden, vocabulary, false, a.logits);
}

void Model::backward(const Activations &a) {
  const int batch = static_cast<int>(options_.batch), width = static_cast<int>(options_.embedding);
  const int hidden = static_cast<int>(options_.hidden), vocabulary = static_cast<int>(vocabulary_);
  const unsigned tables = static_cast<unsigned>(options_.tables);
  const Tensor *dense = &tensors_[options_.tables];
  Tables gradients = {};
  for (unsigned t = 0; t < tables; t++) {
    gradients.values[t] = tensors_[t].gradient;
    CUDA_CHECK(cudaMemsetAsync(tensors_[t].gradient, 0,
                               static_cast<size_t>(tensors_[t].elements) * sizeof(float), stream_));
  }
  linear_parameter_gradients<<<blocks_for((options_.hidden + 1) * vocabulary_), threads_per_block,
                               0, stream_>>>(a.hidden, a.logits, batch, hidden, vocabulary,
                                             dense[2].gradient, dense[3].gradient);
  linear_input_gradient<<<blocks_for(options_.batch * options_.hidden), threads_per_block, 0,
                          stream_>>>(a.logits, dense[2].parameter, a.hidden, batch, hidden,
                                     vocabulary, a.hidden_gradient);
  linear_parameter_gradients<<<blocks_for((options_.embedding + 1) * options_.hidden),
                               threads_per_block, 0, stream_>>>(
      a.x, a.hidden_gradient, batch, width, hidden, dense[0].gradient, dense[1].gradient);
  linear_input_gradient<<<blocks_for(options_.batch * options_.embedding), threads_per_block, 0,
                          stream_>>>(a.hidden_gradient, dense[0].parameter, nullptr, batch, width,
                                     hidden, a.x_gradient);
  row_gradients<<<dim3(blocks_for(options_.batch * options_.embedding), tables), threads_per_block,
                  0, stream_>>>(gradients, a.rows, a.next, a.first, a.x_gradient, batch, width);
}

std::vector<Tensor> &Model::tensors() {
  return tensors_;
}

const std::vector<Tensor> &Model::tensors() const {
  return tensors_;
}

const float *Model::losses() const {
  return losses_;
}

} // namespace charlm
