// charlm's fused Adam kernels against formulas: each kernel runs on data of every kind and is
// compared bit for bit with scalar C of what PyTorch's binaries compute; and the launch loop covers
// every chunk once. Runs on a GPU or on the simulated one. Called by tests/e2e/charlm.bats.
#include "kernels/fused_adam.h"

// The launch loop is a template of the layout: this file looks at the narrow one with a functor of
// its own.
#define FUSED_LAYOUT 3336
#include "kernels/metadata.cuh"

#include "tests/lib/tap.h"
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

using charlm::FusedAdamKernel;
using charlm::FusedAdamScalars;
using charlm::FusedAdamTensor;

namespace {

// ---- The formulas. Nothing may be contracted here: the build says so. ----

enum class Generation { scalars_double, scalars_float, decay_unfused, bias_ulp, other_fusion };

struct Bias {
  float correction1, correction2_sqrt;
};

__global__ void device_powf(float base, float exponent, float *result) {
  *result = powf(base, exponent);
}

// The bias corrections of the float generations need the device's powf: libm's differs now and
// then.
float powf_of_device(float base, float exponent) {
  static float *result = nullptr;
  if (!result)
    CUDA_CHECK(cudaMalloc(reinterpret_cast<void **>(&result), sizeof *result));
  device_powf<<<1, 1>>>(base, exponent, result);
  float value = 0;
  CUDA_CHECK(cudaMemcpy(&value, result, sizeof value, cudaMemcpyDeviceToHost));
  return value;
}

Bias bias_of(Generation generation, double beta1, double beta2, float step) {
  if (generation == Generation::scalars_double)
    return {static_cast<float>(1.0 - std::pow(beta1, static_cast<double>(step))),
            static_cast<float>(std::sqrt(1.0 - std::pow(beta2, static_cast<double>(step))))};
  Bias bias = {1.0f - powf_of_device(static_cast<float>(beta1), step),
               std::sqrt(1.0f - powf_of_device(static_cast<float>(beta2), step))};
  if (generation == Generation::bias_ulp && step >= 3)
    bias.correction1 = std::nextafter(bias.correction1, 2.0f);
  return bias;
}

struct Element {
  float p, g, m, v;
};

struct Job {
  bool adamw, maximize;
  double lr, beta1, beta2, decay, eps;
  bool scaled;
  float scale;
};

float gradient_of(const Job &job, Element &e) {
  if (job.scaled)
    e.g = e.g / job.scale;
  return job.maximize ? -e.g : e.g;
}

void step_double(const Job &job, const Bias &bias, Element &e) {
  double g = gradient_of(job, e);
  float p = e.p;
  if (job.decay != 0 && job.adamw)
    p = static_cast<float>(
        std::fma(-(job.lr * job.decay), static_cast<double>(p), static_cast<double>(p)));
  if (job.decay != 0 && !job.adamw)
    g = static_cast<float>(std::fma(static_cast<double>(p), job.decay, g));
  e.m = static_cast<float>(std::fma(static_cast<double>(e.m), job.beta1, (1.0 - job.beta1) * g));
  e.v = static_cast<float>(
      std::fma(static_cast<double>(e.v), job.beta2, ((1.0 - job.beta2) * g) * g));
  const float step_size = static_cast<float>(job.lr / static_cast<double>(bias.correction1));
  const float root = std::sqrt(e.v) / bias.correction2_sqrt;
  const float denominator = static_cast<float>(static_cast<double>(root) + job.eps);
  e.p = p - (step_size * e.m) / denominator;
}

void step_float(Generation generation, const Job &job, const Bias &bias, Element &e) {
  const float lr = static_cast<float>(job.lr), decay = static_cast<float>(job.decay);
  const float beta1 = static_cast<float>(job.beta1), beta2 = static_cast<float>(job.beta2);
  const bool unfused = generation == Generation::decay_unfused;
  float g = gradient_of(job, e), p = e.p;
  const float lr_decay = lr * decay;
  if (decay != 0 && job.adamw)
    p = unfused ? p - lr_decay * p : std::fma(-lr_decay, p, p);
  if (decay != 0 && !job.adamw)
    g = unfused ? g + p * decay : std::fma(p, decay, g);
  e.m = generation == Generation::other_fusion ? std::fma(1.0f - beta1, g, beta1 * e.m)
                                               : std::fma(beta1, e.m, std::fma(-beta1, g, g));
  const float square = g * g;
  e.v = std::fma(beta2, e.v, std::fma(-beta2, square, square));
  const float denominator = std::sqrt(e.v) / bias.correction2_sqrt + static_cast<float>(job.eps);
  e.p = p - (lr / bias.correction1 * e.m) / denominator;
}

// ---- Data ----

uint64_t random_state;
float uniform() {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<float>(static_cast<int64_t>(random_state) >> 40) * 0x1p-23f;
}

// Ordinary values, and every few elements something extreme.
std::vector<Element> make_data(size_t count, uint64_t seed) {
  const float extremes[] = {0.0f,
                            -0.0f,
                            0x1p-149f,
                            -0x1p-140f,
                            0x1p-126f,
                            1e-30f,
                            1e18f,
                            0x1p-70f,
                            std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()};
  const size_t extreme_count = sizeof extremes / sizeof *extremes;
  random_state = seed;
  std::vector<Element> data(count);
  for (size_t i = 0; i < count; i++) {
    const float v = uniform();
    data[i] = {uniform(), uniform() * 0.1f, uniform() * 0.01f, v * v * 1e-4f};
    if (i % 13 == 5)
      (i / 13 % 2 ? data[i].g : data[i].p) = extremes[i / 26 % extreme_count];
    if (i % 13 == 9)
      data[i].m = data[i].v = std::fabs(extremes[i / 13 % extreme_count]);
    if (i % 13 == 11) // the moment nearly cancels
      data[i].m = -data[i].g * 0.1111111f;
  }
  return data;
}

bool same_bits(float a, float b) {
  if (std::isnan(a) || std::isnan(b))
    return std::isnan(a) && std::isnan(b);
  return std::memcmp(&a, &b, sizeof a) == 0;
}

// ---- Running a kernel ----

struct DeviceFloats {
  float *values = nullptr;
  size_t count;
  explicit DeviceFloats(size_t n) : count(n) {
    CUDA_CHECK(cudaMalloc(reinterpret_cast<void **>(&values), n * sizeof(float)));
  }
  ~DeviceFloats() {
    (void)cudaFree(values);
  }
  DeviceFloats(const DeviceFloats &) = delete;
  DeviceFloats &operator=(const DeviceFloats &) = delete;
  void put(const std::vector<float> &from) {
    CUDA_CHECK(
        cudaMemcpy(values, from.data(), from.size() * sizeof(float), cudaMemcpyHostToDevice));
  }
  std::vector<float> get() const {
    std::vector<float> to(count);
    CUDA_CHECK(cudaMemcpy(to.data(), values, count * sizeof(float), cudaMemcpyDeviceToHost));
    return to;
  }
};

struct Lists {
  std::vector<float> p, g, m, v;
};

// `shift` floats in front make the pointers unaligned.
Lists run_kernel(const FusedAdamKernel &kernel, const Job &job, const std::vector<Element> &data,
                 size_t shift, float step, bool lr_on_device) {
  const size_t n = data.size();
  Lists lists;
  for (std::vector<float> *list : {&lists.p, &lists.g, &lists.m, &lists.v})
    list->assign(shift, 7.0f);
  for (const Element &e : data) {
    lists.p.push_back(e.p);
    lists.g.push_back(e.g);
    lists.m.push_back(e.m);
    lists.v.push_back(e.v);
  }
  DeviceFloats p(n + shift), g(n + shift), m(n + shift), v(n + shift), scalars(4);
  p.put(lists.p);
  g.put(lists.g);
  m.put(lists.m);
  v.put(lists.v);
  scalars.put({step, static_cast<float>(job.lr), job.scale, 0.0f});
  FusedAdamScalars s = {lr_on_device ? scalars.values + 1 : nullptr,
                        lr_on_device ? 1.0 : job.lr,
                        job.beta1,
                        job.beta2,
                        job.decay,
                        job.eps,
                        job.maximize,
                        job.scaled ? scalars.values + 2 : nullptr,
                        scalars.values + 3,
                        true};
  const auto launch = job.adamw ? kernel.adamw : kernel.adam;
  launch({{p.values + shift, g.values + shift, m.values + shift, v.values + shift, scalars.values,
           static_cast<int64_t>(n)}},
         s, nullptr);
  CUDA_CHECK(cudaDeviceSynchronize());
  return {p.get(), g.get(), m.get(), v.get()};
}

size_t differences(Generation generation, const FusedAdamKernel &kernel, const Job &job,
                   size_t count, size_t shift, float step, bool lr_on_device) {
  const std::vector<Element> data = make_data(count, 77 + count);
  const Lists got = run_kernel(kernel, job, data, shift, step, lr_on_device);
  Job effective = job;
  if (lr_on_device)
    effective.lr = static_cast<float>(job.lr);
  const Bias bias = bias_of(generation, job.beta1, job.beta2, step);
  size_t different = 0;
  for (size_t i = 0; i < shift; i++)
    different += got.p[i] != 7.0f || got.g[i] != 7.0f || got.m[i] != 7.0f || got.v[i] != 7.0f;
  for (size_t i = 0; i < count; i++) {
    Element e = data[i];
    if (generation == Generation::scalars_double)
      step_double(effective, bias, e);
    else
      step_float(generation, effective, bias, e);
    const size_t at = shift + i;
    different += !same_bits(e.p, got.p[at]) || !same_bits(e.g, got.g[at]) ||
                 !same_bits(e.m, got.m[at]) || !same_bits(e.v, got.v[at]);
  }
  return different;
}

void test_arithmetic(const char *name, Generation generation) {
  const FusedAdamKernel *kernel = charlm::find_fused_adam_kernel(name);
  const Job jobs[] = {
      {true, false, 1e-3, 0.9, 0.999, 0.01, 1e-8, false, 1.0f},
      {true, false, 0.3, 0.9, 0.999, 0.7, 1e-8, false, 1.0f},
      {true, true, 1e-3, 0.8, 0.95, 0.1, 1e-6, true, 1000.0f},
      {true, false, 1e-4, 0.9, 0.98, 0.0, 1e-8, false, 1.0f},
      {false, false, 1e-3, 0.9, 0.999, 0.1, 1e-8, false, 1.0f},
      {false, true, 0.02, 0.5, 0.9, 0.3, 1e-5, true, 3.0f},
  };
  size_t different = 0;
  for (const Job &job : jobs)
    for (const float step : {1.0f, 3.0f, 137.0f}) {
      different += differences(generation, *kernel, job, 2052, 0, step, false); // by four
      different += differences(generation, *kernel, job, 1023, 0, step, true);  // odd count
      different += differences(generation, *kernel, job, 516, 1, step, false);  // unaligned
    }
  tap_ok(different == 0, "%s equals its formula in every bit (%zu elements differ)", name,
         different);
}

void test_kernels_differ() {
  const Job job = {true, false, 0.3, 0.9, 0.999, 0.7, 1e-8, false, 1.0f};
  const FusedAdamKernel *wide = charlm::find_fused_adam_kernel("25544_float");
  for (const auto &[other, generation] :
       {std::pair("3336_double", Generation::scalars_double),
        std::pair("unfused", Generation::decay_unfused), std::pair("ulp", Generation::bias_ulp),
        std::pair("other_fusion", Generation::other_fusion)}) {
    const size_t different = differences(generation, *wide, job, 2052, 0, 3, false);
    tap_ok(different > 100, "%s computes something else than 25544_float (%zu of 2052 elements)",
           other, different);
  }
  const FusedAdamKernel *ulp = charlm::find_fused_adam_kernel("ulp");
  tap_ok(differences(Generation::scalars_float, *ulp, job, 2052, 0, 2, false) == 0,
         "ulp equals 3336_float before step 3");
}

void test_found_inf() {
  DeviceFloats data(512), one(1);
  std::vector<float> before(512, 0.5f);
  data.put(before);
  one.put({1.0f});
  for (const FusedAdamKernel &kernel : charlm::fused_adam_kernels()) {
    const FusedAdamScalars s = {nullptr, 0.1,   0.9,        0.999,      0.1,
                                1e-8,    false, one.values, one.values, false};
    kernel.adamw({{data.values, data.values, data.values, data.values, one.values, 512}}, s,
                 nullptr);
    kernel.adam({{data.values, data.values, data.values, data.values, one.values, 512}}, s,
                nullptr);
  }
  tap_ok(data.get() == before, "found_inf of 1 leaves everything as it was");
}

// ---- The launch loop ----

// Counts a visit of (tensor, chunk) in a cell of the tensor's own, and launches in the tensor's
// step.
struct CountVisits {
  __device__ void operator()(at::native::Metadata &metadata, const float *, double, double, double,
                             double, double, bool, const float *, const float *) {
    if (threadIdx.x != 0)
      return;
    const int tensor = metadata.block_to_tensor[blockIdx.x];
    auto *cells = static_cast<float *>(const_cast<void *>(metadata.addresses[0][tensor]));
    atomicAdd(&cells[metadata.block_to_chunk[blockIdx.x]], 1.0f);
    if (blockIdx.x == 0) {
      auto *launches = static_cast<float *>(const_cast<void *>(metadata.addresses[1][tensor]));
      atomicAdd(launches, 1.0f);
    }
  }
};

// Tensors of the given numbers of chunks; returns launches, or -1 when a chunk was not visited
// exactly once.
int launches_for(const std::vector<int> &chunks) {
  size_t total = 0;
  for (const int count : chunks)
    total += static_cast<size_t>(count);
  DeviceFloats cells(total + 1), launches(1);
  cells.put(std::vector<float>(total + 1, 0.0f));
  launches.put({0.0f});
  std::vector<FusedAdamTensor> tensors;
  size_t at = 0;
  for (const int count : chunks) {
    // the last chunk of a tensor has one element
    const int64_t elements = count == 0 ? 0 : int64_t{65536} * (count - 1) + 1;
    tensors.push_back({cells.values + at, launches.values, nullptr, nullptr, nullptr, elements});
    at += static_cast<size_t>(count);
  }
  at::native::launch_fused_optimizer(tensors, CountVisits(), FusedAdamScalars{}, nullptr);
  const std::vector<float> visits = cells.get();
  for (size_t i = 0; i < total; i++)
    if (visits[i] != 1.0f)
      return -1;
  return static_cast<int>(launches.get()[0]);
}

void test_launches() {
  const std::vector<int> ones36(36, 1), ones37(37, 1), ones72(72, 1);
  tap_ok(launches_for({3}) == 1, "a tensor of three chunks takes one launch");
  tap_ok(launches_for({2, 0, 1}) == 1, "an empty tensor is left out");
  tap_ok(launches_for(ones36) == 1, "36 tensors take one launch");
  tap_ok(launches_for(ones37) == 2, "37 tensors take two launches");
  tap_ok(launches_for(ones72) == 2, "72 tensors take two launches");
  tap_ok(launches_for({320}) == 1, "320 chunks take one launch");
  tap_ok(launches_for({321}) == 2,
         "321 chunks take two launches, the second from where the first ended");
  tap_ok(launches_for({300, 30, 1}) == 2, "a tensor cut by a launch goes on in the next");
  std::vector<int> mixed(35, 1);
  mixed.push_back(400);
  mixed.push_back(5);
  tap_ok(launches_for(mixed) == 2,
         "the 36th tensor, cut by the full launch, begins the next, which others join");
}

} // namespace

int main() {
  try {
    test_arithmetic("3336_double", Generation::scalars_double);
    test_arithmetic("3336_float", Generation::scalars_float);
    test_arithmetic("25544_float", Generation::scalars_float);
    test_arithmetic("wrong_layout", Generation::scalars_float);
    test_arithmetic("unfused", Generation::decay_unfused);
    test_arithmetic("ulp", Generation::bias_ulp);
    test_arithmetic("other_fusion", Generation::other_fusion);
    test_kernels_differ();
    test_found_inf();
    test_launches();
  } catch (const charlm::CudaError &error) {
    tap_ok(false, "no CUDA call fails: %s", error.what());
  }
  return tap_done();
}
