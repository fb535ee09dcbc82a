// The model's kernels. Included by model.cu only. Matrices are row-major; b counts characters of
// the batch, e columns of an embedding, j hidden units, v characters of the vocabulary.
#pragma once
#include <cstdint>

namespace charlm {
namespace {

constexpr int max_tables = 64;
constexpr int threads_per_block = 128;

struct Tables {
  float *values[max_tables];
};

__device__ inline uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

// rows[t][b]: the row of table t that the last 1 + t % context characters before the target hash
// to.
__global__ void choose_batch(const uint8_t *text, uint64_t characters, uint32_t seed, uint32_t step,
                             int batch, int tables, uint32_t row_count, int context, int *rows,
                             int *targets) {
  const int b = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (b >= batch)
    return;
  const uint64_t draw = (static_cast<uint64_t>(mix(seed + 0x9e3779b9u * step)) << 32 |
                         mix(step * 65536u + static_cast<uint32_t>(b) + seed * 31u));
  const uint64_t position =
      static_cast<uint64_t>(context) + draw % (characters - static_cast<uint64_t>(context));
  targets[b] = text[position];
  for (int t = 0; t < tables; t++) {
    uint32_t hash = 0x811c9dc5u + static_cast<uint32_t>(t) * 0x9e3779b9u;
    for (int i = 1; i <= 1 + t % context; i++)
      hash = (hash ^ text[position - static_cast<uint64_t>(i)]) * 0x01000193u;
    rows[t * batch + b] = static_cast<int>(mix(hash) % row_count);
  }
}

// Chains the characters of a batch that share a row, in ascending order: next[t][b] is the next one
// or -1, first[t][b] tells whether b starts a chain. So gradients are summed without atomics.
__global__ void link_rows(const int *rows, int batch, int *next, int *first) {
  const int b = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (b >= batch)
    return;
  const int *table_rows = rows + blockIdx.y * static_cast<unsigned>(batch);
  const int row = table_rows[b];
  int is_first = 1, following = -1;
  for (int other = 0; other < b; other++)
    if (table_rows[other] == row)
      is_first = 0;
  for (int other = b + 1; other < batch && following < 0; other++)
    if (table_rows[other] == row)
      following = other;
  next[blockIdx.y * static_cast<unsigned>(batch) + static_cast<unsigned>(b)] = following;
  first[blockIdx.y * static_cast<unsigned>(batch) + static_cast<unsigned>(b)] = is_first;
}

__global__ void sum_rows(Tables tables, int table_count, const int *rows, int batch, int width,
                         float *x) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= batch * width)
    return;
  const int b = i / width, e = i % width;
  float sum = 0;
  for (int t = 0; t < table_count; t++)
    sum += tables.values[t][static_cast<int64_t>(rows[t * batch + b]) * width + e];
  x[i] = sum;
}

// out[b][c] = bias[c] + sum over k of in[b][k] * weight[k][c], then max(0, .) if asked for.
__global__ void linear(const float *in, const float *weight, const float *bias, int batch,
                       int inner, int columns, bool relu, float *out) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= batch * columns)
    return;
  const int b = i / columns, c = i % columns;
  float sum = bias[c];
  for (int k = 0; k < inner; k++)
    sum = fmaf(in[b * inner + k], weight[k * columns + c], sum);
  out[i] = relu && sum < 0 ? 0 : sum;
}

// Turns the logits of a character into the gradient of its loss times factor/batch; loss[b] alone.
__global__ void softmax_loss(float *logits, const int *targets, int batch, int vocabulary,
                             float factor, float *loss) {
  const int b = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (b >= batch)
    return;
  float *row = logits + b * vocabulary;
  float greatest = row[0];
  for (int v = 1; v < vocabulary; v++)
    greatest = fmaxf(greatest, row[v]);
  const float target = row[targets[b]] - greatest;
  float sum = 0;
  for (int v = 0; v < vocabulary; v++) {
    row[v] = expf(row[v] - greatest);
    sum += row[v];
  }
  loss[b] = logf(sum) - target;
  const float scale = factor / static_cast<float>(batch);
  for (int v = 0; v < vocabulary; v++)
    row[v] = (row[v] / sum - (v == targets[b] ? 1.0f : 0.0f)) * scale;
}

// One block: the mean in a fixed tree order.
__global__ void mean(const float *values, int count, float *result) {
  __shared__ float partial[threads_per_block];
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += threads_per_block)
    sum += values[i];
  partial[threadIdx.x] = sum;
  for (unsigned half = threads_per_block / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half)
      partial[threadIdx.x] += partial[threadIdx.x + half];
  }
  if (threadIdx.x == 0)
    *result = partial[0] / static_cast<float>(count);
}

// weight_gradient[k][c] = sum over b of in[b][k] * out_gradient[b][c]; row `inner` is the bias.
__global__ void linear_parameter_gradients(const float *in, const float *out_gradient, int batch,
                                           int inner, int columns, float *weight_gradient,
                                           float *bias_gradient) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= (inner + 1) * columns)
    return;
  const int k = i / columns, c = i % columns;
  float sum = 0;
  if (k == inner) {
    for (int b = 0; b < batch; b++)
      sum += out_gradient[b * columns + c];
    bias_gradient[c] = sum;
    return;
  }
  for (int b = 0; b < batch; b++)
    sum = fmaf(in[b * inner + k], out_gradient[b * columns + c], sum);
  weight_gradient[i] = sum;
}

// in_gradient[b][k] = sum over c of out_gradient[b][c] * weight[k][c]; 0 where `active` is given
// and 0.
__global__ void linear_input_gradient(const float *out_gradient, const float *weight,
                                      const float *active, int batch, int inner, int columns,
                                      float *in_gradient) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= batch * inner)
    return;
  const int b = i / inner, k = i % inner;
  float sum = 0;
  if (!active || active[i] > 0)
    for (int c = 0; c < columns; c++)
      sum = fmaf(out_gradient[b * columns + c], weight[k * columns + c], sum);
  in_gradient[i] = sum;
}

// Adds up each chain of characters that share a row; other rows keep their zeros.
__global__ void row_gradients(Tables gradients, const int *rows, const int *next, const int *first,
                              const float *x_gradient, int batch, int width) {
  const unsigned t = blockIdx.y;
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= batch * width)
    return;
  const int b = i / width, e = i % width;
  const int64_t base = static_cast<int64_t>(t) * batch;
  if (!first[base + b])
    return;
  float sum = 0;
  for (int other = b; other >= 0; other = next[base + other])
    sum += x_gradient[other * width + e];
  gradients.values[t][static_cast<int64_t>(rows[base + b]) * width + e] = sum;
}

} // namespace
} // namespace charlm
