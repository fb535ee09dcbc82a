// Thrust and CUB on the simulated GPU: sort, scan and reduce over several types and sizes, each
// compared with the standard library's. One line each, with a checksum of the result's bits. Run by
// tests/e2e/gpusim_engines.bats.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cub/cub.cuh>
#include <cuda_runtime.h>
#include <functional>
#include <numeric>
#include <thrust/device_vector.h>
#include <thrust/functional.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <vector>

namespace {

int failures = 0;

template <typename T>
void tell(const char *name, const std::vector<T> &got, const std::vector<T> &want) {
  uint64_t sum = 14695981039346656037u;
  const unsigned char *bytes = reinterpret_cast<const unsigned char *>(got.data());
  for (size_t i = 0; i < got.size() * sizeof(T); i++)
    sum = (sum ^ bytes[i]) * 1099511628211u;
  std::printf("%s %s %016llx\n", name, got == want ? "right" : "WRONG",
              static_cast<unsigned long long>(sum));
  failures += got != want;
}
template <typename T> std::vector<T> host(const thrust::device_vector<T> &values) {
  std::vector<T> copy(values.size());
  thrust::copy(values.begin(), values.end(), copy.begin());
  return copy;
}

std::vector<uint32_t> numbers(size_t count) {
  std::vector<uint32_t> values(count);
  uint32_t state = 99991;
  for (uint32_t &value : values) {
    state = state * 1664525u + 1013904223u;
    value = state ^ state >> 13;
  }
  return values;
}

void thrust_sorts() {
  std::vector<uint32_t> want = numbers(20011);
  thrust::device_vector<uint32_t> keys(want.begin(), want.end());
  thrust::sort(keys.begin(), keys.end());
  std::sort(want.begin(), want.end());
  tell("thrust::sort", host(keys), want);

  std::vector<float> values(3001);
  const std::vector<uint32_t> drawn = numbers(values.size());
  for (size_t i = 0; i < values.size(); i++)
    values[i] = static_cast<float>(static_cast<int32_t>(drawn[i])) * 0.001f;
  thrust::device_vector<float> floats(values.begin(), values.end());
  thrust::sort(floats.begin(), floats.end(), [] __device__(float a, float b) {
    return a * a > b * b || (a * a == b * b && a > b);
  });
  std::sort(values.begin(), values.end(),
            [](float a, float b) { return a * a > b * b || (a * a == b * b && a > b); });
  tell("thrust::sort_by", host(floats), values);
}

void thrust_scans() {
  const std::vector<uint32_t> drawn = numbers(30001);
  thrust::device_vector<uint32_t> values(drawn.begin(), drawn.end()), out(drawn.size());
  std::vector<uint32_t> want(drawn.size());
  thrust::inclusive_scan(values.begin(), values.end(), out.begin());
  std::partial_sum(drawn.begin(), drawn.end(), want.begin());
  tell("thrust::inclusive_scan", host(out), want);
  thrust::exclusive_scan(values.begin(), values.end(), out.begin(), 0u,
                         thrust::maximum<uint32_t>());
  for (size_t i = 0; i < want.size(); i++)
    want[i] = i ? std::max(want[i - 1], drawn[i - 1]) : 0;
  tell("thrust::exclusive_scan", host(out), want);
}

void thrust_reduce() {
  const std::vector<uint32_t> drawn = numbers(50021);
  thrust::device_vector<uint32_t> values(drawn.begin(), drawn.end());
  const std::vector<uint64_t> got = {
      thrust::reduce(values.begin(), values.end(), uint64_t{0}, thrust::plus<uint64_t>()),
      thrust::reduce(values.begin(), values.end(), 0u, thrust::maximum<uint32_t>())};
  const std::vector<uint64_t> want = {std::accumulate(drawn.begin(), drawn.end(), uint64_t{0}),
                                      *std::max_element(drawn.begin(), drawn.end())};
  tell("thrust::reduce", got, want);
}

// CUB asks for its scratch memory first.
template <typename Call> void twice(Call call) {
  size_t bytes = 0;
  if (call(nullptr, bytes) != cudaSuccess)
    std::exit(EXIT_FAILURE);
  thrust::device_vector<unsigned char> scratch(bytes ? bytes : 1);
  if (call(thrust::raw_pointer_cast(scratch.data()), bytes) != cudaSuccess ||
      cudaDeviceSynchronize() != cudaSuccess)
    std::exit(EXIT_FAILURE);
}

void cub_calls() {
  const int n = 12007;
  const std::vector<uint32_t> drawn = numbers(n);
  thrust::device_vector<uint32_t> in(drawn.begin(), drawn.end()), index(n), out(n), order(n);
  thrust::sequence(index.begin(), index.end());
  const uint32_t *from = thrust::raw_pointer_cast(in.data());
  uint32_t *to = thrust::raw_pointer_cast(out.data());

  twice([&](void *scratch, size_t &bytes) {
    return cub::DeviceRadixSort::SortPairs(scratch, bytes, from, to,
                                           thrust::raw_pointer_cast(index.data()),
                                           thrust::raw_pointer_cast(order.data()), n);
  });
  std::vector<uint32_t> want(n);
  std::iota(want.begin(), want.end(), 0u);
  std::stable_sort(want.begin(), want.end(),
                   [&](uint32_t a, uint32_t b) { return drawn[a] < drawn[b]; });
  tell("cub::DeviceRadixSort", host(order), want);

  twice([&](void *scratch, size_t &bytes) {
    return cub::DeviceScan::ExclusiveSum(scratch, bytes, from, to, n);
  });
  uint32_t sum = 0;
  for (int i = 0; i < n; i++) {
    want[i] = sum;
    sum += drawn[i];
  }
  tell("cub::DeviceScan", host(out), want);

  twice([&](void *scratch, size_t &bytes) {
    return cub::DeviceReduce::Sum(scratch, bytes, from, to, n);
  });
  tell("cub::DeviceReduce", std::vector<uint32_t>{out[0]}, std::vector<uint32_t>{sum});
}

} // namespace

int main() {
  thrust_sorts();
  thrust_scans();
  thrust_reduce();
  cub_calls();
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
