// The by-value tensor list of PyTorch's fused optimizers and the host loop that fills and launches
// it. Included by fused_impl.cuh only. Layouts as shipped: 3,336 bytes (2.1 to 2.11, and later on
// CUDA 12) and 25,544 bytes (2.12 and later on CUDA 13); FUSED_LAYOUT chooses. 3344 is nobody's: it
// shifts every member by eight bytes under the same names.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cuda_runtime.h>

#include "cuda_check.h"
#include "kernels/fused_adam.h"

namespace at::native {
namespace {

constexpr int64_t kILP = 4;
constexpr int64_t kChunkSize = 65536;
constexpr int64_t kBlockSize = 512;

#if FUSED_LAYOUT == 25544
constexpr int max_tensors = 252, max_blocks = 2240;
using block_index_t = uint16_t;
#elif FUSED_LAYOUT == 3336 || FUSED_LAYOUT == 3344
constexpr int max_tensors = 36, max_blocks = 320;
using block_index_t = unsigned char;
#else
#error "FUSED_LAYOUT must be 3336, 25544 or 3344"
#endif

template <int n> struct FusedOptimizerTensorListMetadata {
#if FUSED_LAYOUT == 3344
  int64_t reserved;
#endif
  const void *addresses[n][max_tensors];
  int64_t numel_for_tensor[max_tensors];
  const void *state_steps_addresses[max_tensors];
  block_index_t block_to_tensor[max_blocks];
  int block_to_chunk[max_blocks];
  int start_tensor_this_launch;
};

using Metadata = FusedOptimizerTensorListMetadata<4>;
static_assert(sizeof(Metadata) == FUSED_LAYOUT, "size of the metadata");
#define OFFSETS_ARE(numel, steps, tensor, chunk, start)                                            \
  static_assert(offsetof(Metadata, numel_for_tensor) == numel, "numel_for_tensor");                \
  static_assert(offsetof(Metadata, state_steps_addresses) == steps, "state_steps_addresses");      \
  static_assert(offsetof(Metadata, block_to_tensor) == tensor, "block_to_tensor");                 \
  static_assert(offsetof(Metadata, block_to_chunk) == chunk, "block_to_chunk");                    \
  static_assert(offsetof(Metadata, start_tensor_this_launch) == start, "start_tensor_this_launch")
#if FUSED_LAYOUT == 25544
OFFSETS_ARE(8064, 10080, 12096, 16576, 25536);
#elif FUSED_LAYOUT == 3336
OFFSETS_ARE(1152, 1440, 1728, 2048, 3328);
#else
OFFSETS_ARE(1160, 1448, 1736, 2056, 3336);
#endif
#undef OFFSETS_ARE

template <typename T, typename U, typename... ArgTypes>
__global__ void __launch_bounds__(kBlockSize)
    multi_tensor_apply_kernel(T tensorListMeta, U callable, ArgTypes... args) {
  callable(tensorListMeta, args...);
}

// Cuts the tensors into chunks and launches whenever the tensor slots or the block slots are full;
// a tensor cut by a launch goes on in slot 0 of the next. Entries that a launch does not use keep
// what they had: the last launch's, or nonsense, as in an object on the stack that is only partly
// written.
template <typename Functor>
void launch_fused_optimizer(const std::vector<charlm::FusedAdamTensor> &tensors, Functor functor,
                            const charlm::FusedAdamScalars &scalars, cudaStream_t stream) {
  Metadata metadata;
  std::memset(&metadata, scalars.garbage_tail ? 0xb7 : 0, sizeof metadata);
  int tensor_slot = 0, block_slot = 0;

  auto launch = [&] {
    multi_tensor_apply_kernel<<<static_cast<unsigned>(block_slot), kBlockSize, 0, stream>>>(
        metadata, functor, scalars.lr_device, scalars.lr, scalars.beta1, scalars.beta2,
        scalars.weight_decay, scalars.eps, scalars.maximize, scalars.grad_scale, scalars.found_inf);
    CUDA_CHECK(cudaGetLastError());
    block_slot = 0;
  };
  auto place = [&](const charlm::FusedAdamTensor &tensor) {
    metadata.state_steps_addresses[tensor_slot] = tensor.step;
    metadata.numel_for_tensor[tensor_slot] = tensor.elements;
    metadata.addresses[0][tensor_slot] = tensor.parameter;
    metadata.addresses[1][tensor_slot] = tensor.gradient;
    metadata.addresses[2][tensor_slot] = tensor.exp_avg;
    metadata.addresses[3][tensor_slot] = tensor.exp_avg_sq;
    tensor_slot++;
  };

  for (const charlm::FusedAdamTensor &tensor : tensors) {
    if (tensor.elements == 0)
      continue;
    place(tensor);
    const int64_t chunks = (tensor.elements + kChunkSize - 1) / kChunkSize;
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
      metadata.block_to_tensor[block_slot] = static_cast<block_index_t>(tensor_slot - 1);
      metadata.block_to_chunk[block_slot] = static_cast<int>(chunk);
      block_slot++;
      const bool last_chunk = chunk == chunks - 1;
      if (!(tensor_slot == max_tensors && last_chunk) && block_slot != max_blocks)
        continue;
      launch();
      tensor_slot = 0;
      if (!last_chunk)
        place(tensor);
    }
  }
  if (block_slot != 0)
    launch();
}

} // namespace
} // namespace at::native
