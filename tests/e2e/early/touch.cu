// Kernels that write to optimizer state on the ways that a program has: through a parameter, a struct too large to be read
// word by word, PyTorch's foreach list, or, as collectives do, through a list in memory. And one that makes gradients.
#include <cstdint>

extern "C" __global__ void twist(uint32_t *words, uint32_t count) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    words[i] ^= 0x00010000u;
}

struct Large {
  uint64_t before[200];
  uint32_t *words;
  uint32_t count;
};
extern "C" __global__ void twist_large(Large large) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < large.count;
       i += gridDim.x * blockDim.x)
    large.words[i] ^= 0x00010000u;
}

struct Work {
  uint32_t *words;
  uint32_t count;
};
extern "C" __global__ void ncclDevKernel_Twist(const Work *work) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < work->count;
       i += gridDim.x * blockDim.x)
    work->words[i] ^= 0x00010000u;
}

// MultiTensorApply.cuh of PyTorch 2.6: a list of one.
namespace at {
namespace native {
namespace {
template <int n> struct TensorListMetadata {
  const void *addresses[n][110];
  int64_t numel_for_tensor[110];
  unsigned char block_to_tensor[320];
  int block_to_chunk[320];
  int start_tensor_this_launch;
};
template <typename T, typename U> __global__ void multi_tensor_apply_kernel(T list, U) {
  const int tensor = list.block_to_tensor[blockIdx.x];
  uint32_t *words = (uint32_t *)list.addresses[0][tensor];
  const int64_t from = (int64_t)list.block_to_chunk[blockIdx.x] * 65536;
  for (int64_t i = from + threadIdx.x; i < from + 65536 && i < list.numel_for_tensor[tensor];
       i += blockDim.x)
    words[i] ^= 0x00010000u;
}
struct Functor {};
template __global__ void
    multi_tensor_apply_kernel<TensorListMetadata<1>, Functor>(TensorListMetadata<1>, Functor);
} // namespace
} // namespace native
} // namespace at

// Gradients from parameters, `rounds` times over, as backward's kernels take time.
extern "C" __global__ void backward(const float *parameters, float *gradients, uint32_t count,
                                    uint32_t rounds) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    float x = parameters[i];
    for (uint32_t k = 0; k < rounds; k++)
      x = x * 0.9f + 0.001f;
    gradients[i] = gradients[i] * 0.5f + x * 0.1f;
  }
}
