// The table of fused Adam kernels, made from kernels.def.
#include "kernels/fused_adam.h"

namespace charlm {

#define KERNEL(name, help)                                                                         \
  void fused_adam_##name(const std::vector<FusedAdamTensor> &, const FusedAdamScalars &,           \
                         cudaStream_t);                                                            \
  void fused_adamw_##name(const std::vector<FusedAdamTensor> &, const FusedAdamScalars &,          \
                          cudaStream_t);
#include "kernels/kernels.def"
#undef KERNEL

const std::vector<FusedAdamKernel> &fused_adam_kernels() {
  static const std::vector<FusedAdamKernel> kernels = {
#define KERNEL(name, help) {#name, help, fused_adam_##name, fused_adamw_##name},
#include "kernels/kernels.def"
#undef KERNEL
  };
  return kernels;
}

const FusedAdamKernel *find_fused_adam_kernel(const std::string &name) {
  for (const FusedAdamKernel &kernel : fused_adam_kernels())
    if (name == kernel.name)
      return &kernel;
  return nullptr;
}

} // namespace charlm
