// Programs as CUDA's introductions show them, each checked against the same sum done on the host: a
// reduction, a scan, histograms, matrices through shared memory, streams and events, a pipeline of
// copies and kernels. One line a program; the bits of every result go into a checksum, so that
// engines can be compared. Run by tests/e2e/gpusim_engines.bats.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <vector>

namespace {

int failures = 0;

void check(cudaError_t error, int line) {
  if (error == cudaSuccess)
    return;
  std::printf("line %d: %s\n", line, cudaGetErrorString(error));
  std::exit(EXIT_FAILURE);
}
#define CHECK(call) check((call), __LINE__)

template <typename T> void tell(const char *name, const std::vector<T> &values, bool right) {
  uint64_t sum = 14695981039346656037u;
  const unsigned char *bytes = reinterpret_cast<const unsigned char *>(values.data());
  for (size_t i = 0; i < values.size() * sizeof(T); i++)
    sum = (sum ^ bytes[i]) * 1099511628211u;
  std::printf("%s %s %016llx\n", name, right ? "right" : "WRONG",
              static_cast<unsigned long long>(sum));
  failures += !right;
}

template <typename T> class Array {
public:
  explicit Array(size_t count) : count_(count) {
    CHECK(cudaMalloc(&data_, count * sizeof(T)));
  }
  explicit Array(const std::vector<T> &values) : Array(values.size()) {
    CHECK(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  Array(const Array &) = delete;
  ~Array() {
    cudaFree(data_);
  }
  T *get() const {
    return data_;
  }
  std::vector<T> host() const {
    std::vector<T> values(count_);
    CHECK(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

private:
  T *data_ = nullptr;
  size_t count_;
};

std::vector<uint32_t> numbers(size_t count, uint32_t below) {
  std::vector<uint32_t> values(count);
  uint32_t state = 12345;
  for (uint32_t &value : values) {
    state = state * 1664525u + 1013904223u;
    value = (state >> 8) % below;
  }
  return values;
}

// ---- reduction: shuffles in a warp, shared memory between warps, atomics between blocks ----

__global__ void reduce(const float *in, int n, float *partial, unsigned long long *whole) {
  __shared__ float warps[32];
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    sum += in[i];
  for (int offset = 16; offset > 0; offset /= 2)
    sum += __shfl_down_sync(~0u, sum, offset);
  if (threadIdx.x % 32 == 0)
    warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : 0;
    for (int offset = 16; offset > 0; offset /= 2)
      sum += __shfl_xor_sync(~0u, sum, offset);
    if (threadIdx.x == 0) {
      partial[blockIdx.x] = sum;
      atomicAdd(whole, static_cast<unsigned long long>(sum));
    }
  }
}

void reduction() {
  const int n = 100000, blocks = 12;
  std::vector<float> values(n);
  double want = 0;
  const std::vector<uint32_t> drawn = numbers(n, 8);
  for (int i = 0; i < n; i++)
    want += values[i] = static_cast<float>(drawn[i]);
  Array<float> in(values), partial(blocks);
  Array<unsigned long long> whole(std::vector<unsigned long long>(1));
  reduce<<<blocks, 256>>>(in.get(), n, partial.get(), whole.get());
  CHECK(cudaDeviceSynchronize());
  double got = 0;
  for (float value : partial.host())
    got += value;
  tell("reduction", partial.host(), got == want && static_cast<double>(whole.host()[0]) == want);
}

// ---- scan: up and down a tree in shared memory, then the blocks' totals ----

__global__ void scan_blocks(const uint32_t *in, uint32_t *out, uint32_t *totals, int n) {
  extern __shared__ uint32_t tree[];
  const int width = 2 * blockDim.x, base = blockIdx.x * width, t = threadIdx.x;
  for (int i = t; i < width; i += blockDim.x)
    tree[i] = base + i < n ? in[base + i] : 0;
  for (int step = 1; step < width; step *= 2) {
    __syncthreads();
    const int at = (t + 1) * 2 * step - 1;
    if (at < width)
      tree[at] += tree[at - step];
  }
  __syncthreads();
  if (t == 0) {
    totals[blockIdx.x] = tree[width - 1];
    tree[width - 1] = 0;
  }
  for (int step = width / 2; step > 0; step /= 2) {
    __syncthreads();
    const int at = (t + 1) * 2 * step - 1;
    if (at < width) {
      const uint32_t left = tree[at - step];
      tree[at - step] = tree[at];
      tree[at] += left;
    }
  }
  __syncthreads();
  for (int i = t; i < width; i += blockDim.x)
    if (base + i < n)
      out[base + i] = tree[i];
}
__global__ void add_totals(uint32_t *out, const uint32_t *before, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    out[i] += before[blockIdx.x];
}

void scan() {
  const int n = 60000, width = 512, blocks = (n + width - 1) / width;
  const std::vector<uint32_t> values = numbers(n, 1000);
  Array<uint32_t> in(values), out(n), totals(blocks), before(blocks), rest(1);
  scan_blocks<<<blocks, width / 2, width * sizeof(uint32_t)>>>(in.get(), out.get(), totals.get(),
                                                               n);
  scan_blocks<<<1, width / 2, width * sizeof(uint32_t)>>>(totals.get(), before.get(), rest.get(),
                                                          blocks);
  add_totals<<<blocks, width>>>(out.get(), before.get(), n);
  CHECK(cudaDeviceSynchronize());
  const std::vector<uint32_t> got = out.host();
  uint32_t want = 0;
  bool right = true;
  for (int i = 0; i < n; i++) {
    right = right && got[i] == want;
    want += values[i];
  }
  tell("scan", got, right && rest.host()[0] == want);
}

// ---- histogram: a block's own bins in shared memory, then added up ----

__global__ void histogram(const uint8_t *in, int n, uint32_t *bins) {
  __shared__ uint32_t own[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x)
    own[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&own[in[i]], 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x)
    if (own[i])
      atomicAdd(&bins[i], own[i]);
}

void histograms() {
  const int n = 90001;
  std::vector<uint8_t> values(n);
  std::vector<uint32_t> want(256);
  const std::vector<uint32_t> drawn = numbers(n, 65536);
  for (int i = 0; i < n; i++) {
    values[i] = static_cast<uint8_t>((drawn[i] >> 8) & drawn[i] & 0xff);
    want[values[i]]++;
  }
  Array<uint8_t> in(values);
  Array<uint32_t> bins(std::vector<uint32_t>(256));
  histogram<<<9, 192>>>(in.get(), n, bins.get());
  CHECK(cudaDeviceSynchronize());
  tell("histogram", bins.host(), bins.host() == want);
}

// ---- matrices through tiles in shared memory ----

constexpr int kTile = 16;
__global__ void multiply(const float *a, const float *b, float *c, int n) {
  __shared__ float tile_a[kTile][kTile], tile_b[kTile][kTile + 1];
  const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * kTile + y,
            column = blockIdx.x * kTile + x;
  float sum = 0;
  for (int k = 0; k < n; k += kTile) {
    tile_a[y][x] = a[row * n + k + x];
    tile_b[y][x] = b[(k + y) * n + column];
    __syncthreads();
    for (int j = 0; j < kTile; j++)
      sum = fmaf(tile_a[y][j], tile_b[j][x], sum);
    __syncthreads();
  }
  c[row * n + column] = sum;
}

void matrices() {
  const int n = 64;
  std::vector<float> a(n * n), b(n * n);
  const std::vector<uint32_t> drawn = numbers(2 * n * n, 2001);
  for (int i = 0; i < n * n; i++) {
    a[i] = static_cast<float>(drawn[2 * i]) * 0.001f - 1;
    b[i] = static_cast<float>(drawn[2 * i + 1]) * 0.01f - 10;
  }
  Array<float> da(a), db(b), dc(n * n);
  multiply<<<dim3(n / kTile, n / kTile), dim3(kTile, kTile)>>>(da.get(), db.get(), dc.get(), n);
  CHECK(cudaDeviceSynchronize());
  const std::vector<float> got = dc.host();
  bool right = true;
  for (int i = 0; i < n * n; i++) {
    float want = 0;
    for (int k = 0; k < n; k++)
      want = std::fma(a[i / n * n + k], b[k * n + i % n], want);
    right = right && !std::memcmp(&want, &got[i], sizeof want);
  }
  tell("matrices", got, right);
}

// ---- streams and events: parts copied in, worked on and copied out side by side; a join ----

__global__ void square(uint32_t *data, int n, uint32_t add) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    data[i] = data[i] * data[i] + add;
}
__global__ void join(const uint32_t *parts, uint32_t *out, int part, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= part)
    return;
  uint32_t sum = 0;
  for (int k = 0; k < count; k++)
    sum = sum * 31 + parts[k * part + i];
  out[i] = sum;
}

void streams() {
  const int part = 5000, count = 4;
  const std::vector<uint32_t> values = numbers(part * count, 1u << 20);
  uint32_t *pinned = nullptr;
  CHECK(cudaMallocHost(&pinned, values.size() * sizeof(uint32_t)));
  std::memcpy(pinned, values.data(), values.size() * sizeof(uint32_t));
  Array<uint32_t> data(values.size()), out(part);
  cudaStream_t stream[count], last;
  cudaEvent_t done[count], begin, end;
  CHECK(cudaStreamCreateWithFlags(&last, cudaStreamNonBlocking));
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  CHECK(cudaEventRecord(begin, last));
  for (int k = 0; k < count; k++) {
    uint32_t *here = data.get() + k * part;
    CHECK(cudaStreamCreateWithFlags(&stream[k], cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&done[k], cudaEventDisableTiming));
    CHECK(cudaMemcpyAsync(here, pinned + k * part, part * sizeof(uint32_t), cudaMemcpyHostToDevice,
                          stream[k]));
    square<<<(part + 127) / 128, 128, 0, stream[k]>>>(here, part, static_cast<uint32_t>(k));
    CHECK(cudaMemcpyAsync(pinned + k * part, here, part * sizeof(uint32_t), cudaMemcpyDeviceToHost,
                          stream[k]));
    CHECK(cudaEventRecord(done[k], stream[k]));
    CHECK(cudaStreamWaitEvent(last, done[k]));
  }
  join<<<(part + 127) / 128, 128, 0, last>>>(data.get(), out.get(), part, count);
  CHECK(cudaEventRecord(end, last));
  CHECK(cudaEventSynchronize(end));
  float ms = -1;
  CHECK(cudaEventElapsedTime(&ms, begin, end));
  const std::vector<uint32_t> got = out.host();
  bool right = ms >= 0;
  for (int i = 0; i < part; i++) {
    uint32_t want = 0;
    for (int k = 0; k < count; k++) {
      const uint32_t value = values[k * part + i], squared = value * value + k;
      right = right && pinned[k * part + i] == squared;
      want = want * 31 + squared;
    }
    right = right && got[i] == want;
  }
  for (int k = 0; k < count; k++) {
    CHECK(cudaStreamDestroy(stream[k]));
    CHECK(cudaEventDestroy(done[k]));
  }
  CHECK(cudaStreamDestroy(last));
  CHECK(cudaFreeHost(pinned));
  tell("streams", got, right);
}

} // namespace

int main() {
  reduction();
  scan();
  histograms();
  matrices();
  streams();
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
