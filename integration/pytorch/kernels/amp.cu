/* The kernels of torch.amp.GradScaler: unscaling of gradients with the search for infinities, and the next scale. The
   functions are ours, by GradScaler's documentation; names and parameters are the wheel's. See fused_adam.cu. */
#include <ATen/native/cuda/ForeachFunctors.cuh>
#include <ATen/native/cuda/MultiTensorApply.cuh>
#include <cmath>

namespace at::native {
namespace {

template <class opmath>
__host__ __device__ __forceinline__ opmath unscaled(opmath value, float *found_inf,
                                                    const float *inverse) {
  if (!::isfinite(value))
    *found_inf = 1.f;
  return *inverse == 1.f ? value : value * static_cast<opmath>(*inverse);
}

} // namespace

/* The lambdas' types are in the kernels' names: of this function the outer lambda's first, second and third. */
void _amp_foreach_non_finite_check_and_unscale_cuda_(TensorList scaled_grads, at::Tensor &found_inf,
                                                     const at::Tensor &inv_scale) {
  std::vector<std::vector<at::Tensor>> lists{scaled_grads.vec()};
  float *found = found_inf.mutable_data_ptr<float>();
  const float *inverse = inv_scale.const_data_ptr<float>();
  [&] {
    [&] {
      multi_tensor_apply<1>(lists, UnaryOpFunctor<double, 1, 1, 0>(),
                            [found, inverse] __host__ __device__(double value) -> double {
                              return unscaled(value, found, inverse);
                            });
    }();
    [&] {
      multi_tensor_apply<1>(lists, UnaryOpFunctor<float, 1, 1, 0>(),
                            [found, inverse] __host__ __device__(float value) -> float {
                              return unscaled(value, found, inverse);
                            });
    }();
    [&] {
      multi_tensor_apply<1>(lists, UnaryOpFunctor<c10::Half, 1, 1, 0>(),
                            [found, inverse] __host__ __device__(float value) -> float {
                              return unscaled(value, found, inverse);
                            });
    }();
  }();
}

/* An overflow shrinks the scale and starts counting anew; growth_interval steps in a row without one let it grow, unless
   it would become infinite. */
__global__ void amp_update_scale_cuda_kernel(float *scale, int *growth_tracker,
                                             const float *found_inf, double growth_factor,
                                             double backoff_factor, int growth_interval) {
  if (*found_inf != 0.f) {
    *scale = static_cast<float>(*scale * backoff_factor);
    *growth_tracker = 0;
    return;
  }
  int successes = *growth_tracker + 1;
  if (successes == growth_interval) {
    float grown = static_cast<float>(*scale * growth_factor);
    if (::isfinite(grown))
      *scale = grown;
    successes = 0;
  }
  *growth_tracker = successes;
}

} // namespace at::native
