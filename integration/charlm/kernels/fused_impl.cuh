// One fused Adam kernel under PyTorch's names, and the function that launches it. A source file of
// a kernel folder defines
//   FUSED_LAYOUT   3336, 25544 or 3344: bytes of metadata
//   FUSED_SCALARS  double (2.3 to 2.10) or float (2.11 and later)
//   FUSED_MODE     ADAM_MODE::ORIGINAL (L2 penalty) or ADAM_MODE::ADAMW (decoupled decay)
//   FUSED_ENTRY    name of the launch function
// and includes this file. Optional: FUSED_DECAY_UNFUSED, FUSED_BIAS_ULP, FUSED_OTHER_FUSION.
// Every product and sum is spelled out with its rounding, because which of them the compiler fuses
// is what tells the shipped binaries apart; only pow and powf are the toolkit's own.
#pragma once
#include "kernels/metadata.cuh"

namespace at::native {

enum class ADAM_MODE : uint8_t { ORIGINAL = 0, ADAMW = 1 };

namespace {

// Scalars stay double; one rounding to float at the end of each statement.
template <typename Scalar> struct Math;
template <> struct Math<double> {
  double beta1, beta2, one_minus_beta1, one_minus_beta2, decay, weight_decay, eps;
  float step_size, bias_correction2_sqrt;

  __device__ Math(double lr, double b1, double b2, double wd, double e, float step) {
    beta1 = b1;
    beta2 = b2;
    one_minus_beta1 = __dadd_rn(1.0, -b1);
    one_minus_beta2 = __dadd_rn(1.0, -b2);
    decay = __dmul_rn(lr, wd);
    weight_decay = wd;
    eps = e;
    const float bias_correction1 =
        __double2float_rn(__dadd_rn(1.0, -pow(beta1, static_cast<double>(step))));
    bias_correction2_sqrt =
        __double2float_rn(__dsqrt_rn(__dadd_rn(1.0, -pow(beta2, static_cast<double>(step)))));
    step_size = __double2float_rn(__ddiv_rn(lr, static_cast<double>(bias_correction1)));
  }
  __device__ bool decays() const {
    return weight_decay != 0;
  }
  __device__ float add_penalty(float gradient, float parameter) const {
    return __double2float_rn(__fma_rn(parameter, weight_decay, gradient));
  }
  __device__ float decayed(float parameter) const {
    return __double2float_rn(__fma_rn(-decay, parameter, parameter));
  }
  __device__ float exp_avg(float old, float gradient) const {
    return __double2float_rn(__fma_rn(old, beta1, __dmul_rn(one_minus_beta1, gradient)));
  }
  __device__ float exp_avg_sq(float old, float gradient) const {
    return __double2float_rn(
        __fma_rn(old, beta2, __dmul_rn(__dmul_rn(one_minus_beta2, gradient), gradient)));
  }
  __device__ float denominator(float variance) const {
    const float root = __fdiv_rn(__fsqrt_rn(variance), bias_correction2_sqrt);
    return __double2float_rn(__dadd_rn(root, eps));
  }
};

// Scalars rounded to float first; moments by nested fma.
template <> struct Math<float> {
  float beta1, beta2, decay, weight_decay, eps, step_size, bias_correction2_sqrt;

  __device__ Math(float lr, double b1, double b2, double wd, double e, float step) {
    beta1 = __double2float_rn(b1);
    beta2 = __double2float_rn(b2);
    weight_decay = __double2float_rn(wd);
    eps = __double2float_rn(e);
    decay = __fmul_rn(lr, weight_decay);
    float bias_correction1 = __fadd_rn(1.0f, -powf(beta1, step));
#ifdef FUSED_BIAS_ULP
    if (step >= 3)
      bias_correction1 = __int_as_float(__float_as_int(bias_correction1) + 1);
#endif
    bias_correction2_sqrt = __fsqrt_rn(__fadd_rn(1.0f, -powf(beta2, step)));
    step_size = __fdiv_rn(lr, bias_correction1);
  }
  __device__ bool decays() const {
    return weight_decay != 0;
  }
  __device__ float add_penalty(float gradient, float parameter) const {
#ifdef FUSED_DECAY_UNFUSED
    return __fadd_rn(gradient, __fmul_rn(parameter, weight_decay));
#else
    return __fmaf_rn(parameter, weight_decay, gradient);
#endif
  }
  __device__ float decayed(float parameter) const {
#ifdef FUSED_DECAY_UNFUSED
    return __fadd_rn(parameter, -__fmul_rn(decay, parameter));
#else
    return __fmaf_rn(-decay, parameter, parameter);
#endif
  }
  __device__ float exp_avg(float old, float gradient) const {
#ifdef FUSED_OTHER_FUSION
    return __fmaf_rn(__fadd_rn(1.0f, -beta1), gradient, __fmul_rn(beta1, old));
#else
    return __fmaf_rn(beta1, old, __fmaf_rn(-beta1, gradient, gradient));
#endif
  }
  __device__ float exp_avg_sq(float old, float gradient) const {
    const float square = __fmul_rn(gradient, gradient);
    return __fmaf_rn(beta2, old, __fmaf_rn(-beta2, square, square));
  }
  __device__ float denominator(float variance) const {
    return __fadd_rn(__fdiv_rn(__fsqrt_rn(variance), bias_correction2_sqrt), eps);
  }
};

template <typename scalar_type, int depth, ADAM_MODE adam_mode, bool amsgrad>
struct FusedAdamMathFunctor {
  static_assert(depth == 4 && !amsgrad, "without max_exp_avg_sq");
  using Scalar = FUSED_SCALARS;

  __device__ static void element(const Math<Scalar> &math, bool maximize, const float *grad_scale,
                                 float &parameter, float &gradient, float &exp_avg,
                                 float &exp_avg_sq) {
    if (grad_scale)
      gradient = __fdiv_rn(gradient, *grad_scale);
    float ascent = maximize ? -gradient : gradient;
    if (math.decays()) {
      if constexpr (adam_mode == ADAM_MODE::ORIGINAL)
        ascent = math.add_penalty(ascent, parameter);
      else
        parameter = math.decayed(parameter);
    }
    exp_avg = math.exp_avg(exp_avg, ascent);
    exp_avg_sq = math.exp_avg_sq(exp_avg_sq, ascent);
    const float update =
        __fdiv_rn(__fmul_rn(math.step_size, exp_avg), math.denominator(exp_avg_sq));
    parameter = __fadd_rn(parameter, -update);
  }

  __device__ void operator()(FusedOptimizerTensorListMetadata<depth> &metadata,
                             const float *lr_pointer, double lr, double beta1, double beta2,
                             double weight_decay, double eps, bool maximize,
                             const float *grad_scale, const float *found_inf) {
    if (found_inf && *found_inf == 1)
      return;
    const int tensor = metadata.block_to_tensor[blockIdx.x];
    const int64_t offset = metadata.block_to_chunk[blockIdx.x] * kChunkSize;
    const int64_t left = metadata.numel_for_tensor[tensor] - offset;
    const int64_t n = left < kChunkSize ? left : kChunkSize;
    float *lists[depth];
    bool aligned = n % kILP == 0;
#pragma unroll
    for (int i = 0; i < depth; i++) {
      lists[i] = static_cast<float *>(const_cast<void *>(metadata.addresses[i][tensor])) + offset;
      aligned = aligned && reinterpret_cast<uintptr_t>(lists[i]) % sizeof(float4) == 0;
    }
    const float step = *static_cast<const float *>(metadata.state_steps_addresses[tensor]);
    const Math<Scalar> math(lr_pointer ? *lr_pointer : static_cast<Scalar>(lr), beta1, beta2,
                            weight_decay, eps, step);
    if (aligned) {
      for (int64_t i = threadIdx.x; i * kILP < n; i += blockDim.x) {
        float4 values[depth];
#pragma unroll
        for (int k = 0; k < depth; k++)
          values[k] = reinterpret_cast<const float4 *>(lists[k])[i];
        element(math, maximize, grad_scale, values[0].x, values[1].x, values[2].x, values[3].x);
        element(math, maximize, grad_scale, values[0].y, values[1].y, values[2].y, values[3].y);
        element(math, maximize, grad_scale, values[0].z, values[1].z, values[2].z, values[3].z);
        element(math, maximize, grad_scale, values[0].w, values[1].w, values[2].w, values[3].w);
#pragma unroll
        for (int k = 0; k < depth; k++)
          if (k != 1 || grad_scale) // gradients are written only when they were unscaled
            reinterpret_cast<float4 *>(lists[k])[i] = values[k];
      }
      return;
    }
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      float values[depth];
#pragma unroll
      for (int k = 0; k < depth; k++)
        values[k] = lists[k][i];
      element(math, maximize, grad_scale, values[0], values[1], values[2], values[3]);
#pragma unroll
      for (int k = 0; k < depth; k++)
        if (k != 1 || grad_scale)
          lists[k][i] = values[k];
    }
  }
};

} // namespace
} // namespace at::native

namespace charlm {

void FUSED_ENTRY(const std::vector<FusedAdamTensor> &tensors, const FusedAdamScalars &scalars,
                 cudaStream_t stream) {
  at::native::launch_fused_optimizer(
      tensors, at::native::FusedAdamMathFunctor<float, 4, at::native::FUSED_MODE, false>(), scalars,
      stream);
}

} // namespace charlm
