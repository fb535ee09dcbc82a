/* The kernel of torch.cuda._sleep, by which scripts keep a stream busy. See fused_adam.cu. */
#include <cstdint>

namespace at::cuda {
namespace {

__global__ void spin_kernel(int64_t cycles) {
  int64_t start = clock64();
  while (clock64() - start < cycles) {
  }
}

} // namespace

void emit_sleep(int64_t cycles) {
  spin_kernel<<<1, 1>>>(cycles);
}

} // namespace at::cuda
