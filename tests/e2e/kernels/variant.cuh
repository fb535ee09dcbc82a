// A fused Adam kernel under PyTorch's names (25,544 bytes of metadata) whose arithmetic can be made
// to differ in ways that calibration or the running proof has to notice, for step_program. Included
// by fused_adam_impl.cu and fused_adamw_impl.cu: a kernel's mangled name holds the name of its
// source file. Options:
//   VARIANT_SCALARS      float (default) or double
//   VARIANT_SLOT         L2 decay rounded twice in unroll slot 0, fused in the others, as 2.11 and later have it
//   VARIANT_POWER_ULP    the device's beta1^step is one unit in the last place above libm's at every step
//   VARIANT_SLY_STEP=n   wrong from the formulas' point of view at step n only: sqrt(1 - beta2^n) one unit too large
//   VARIANT_OLD          the square root of the rounded bias correction, as before 2.3 (with VARIANT_SCALARS=double)
#pragma once
#include <cstdint>
#ifndef VARIANT_SCALARS
#define VARIANT_SCALARS float
#endif

namespace at::native {
enum class ADAM_MODE : uint8_t { ORIGINAL = 0, ADAMW = 1 };
namespace {

template <int n> struct FusedOptimizerTensorListMetadata {
  const void *addresses[n][252];
  int64_t numel_for_tensor[252];
  const void *state_steps_addresses[252];
  uint16_t block_to_tensor[2240];
  int block_to_chunk[2240];
  int start_tensor_this_launch;
};
static_assert(sizeof(FusedOptimizerTensorListMetadata<4>) == 25544, "layout");

__device__ float next_up(float x) {
  return __int_as_float(__float_as_int(x) + 1);
}

template <typename S> struct Step;
template <> struct Step<float> {
  float beta1, beta2, lw, wd, eps, step_size, root;
  __device__ Step(float lr, double b1, double b2, double w, double e, float step) {
    beta1 = (float)b1, beta2 = (float)b2, wd = (float)w, eps = (float)e;
    lw = __fmul_rn(lr, wd);
    float power1 = powf(beta1, step);
#ifdef VARIANT_POWER_ULP
    power1 = next_up(power1);
#endif
    step_size = __fdiv_rn(lr, __fadd_rn(1.0f, -power1));
    root = __fsqrt_rn(__fadd_rn(1.0f, -powf(beta2, step)));
#ifdef VARIANT_SLY_STEP
    if (step == VARIANT_SLY_STEP)
      root = next_up(root);
#endif
  }
  __device__ float penalty(float g, float p, int slot) const {
#ifdef VARIANT_SLOT
    if (slot == 0)
      return __fadd_rn(g, __fmul_rn(p, wd));
#endif
    return __fmaf_rn(p, wd, g);
  }
  __device__ float decayed(float p) const {
    return __fmaf_rn(-lw, p, p);
  }
  __device__ float first(float m, float g) const {
    return __fmaf_rn(beta1, m, __fmaf_rn(-beta1, g, g));
  }
  __device__ float second(float v, float g) const {
    const float q = __fmul_rn(g, g);
    return __fmaf_rn(beta2, v, __fmaf_rn(-beta2, q, q));
  }
  __device__ float denominator(float v) const {
    return __fadd_rn(__fdiv_rn(__fsqrt_rn(v), root), eps);
  }
};
template <> struct Step<double> {
  double beta1, beta2, lw, wd, eps;
  float step_size, root;
  __device__ Step(double lr, double b1, double b2, double w, double e, float step)
      : beta1(b1), beta2(b2), lw(__dmul_rn(lr, w)), wd(w), eps(e) {
    const float correction1 = (float)__dadd_rn(1.0, -pow(beta1, (double)step));
    const double correction2 = __dadd_rn(1.0, -pow(beta2, (double)step));
#ifdef VARIANT_OLD
    root = __fsqrt_rn((float)correction2);
#else
    root = (float)__dsqrt_rn(correction2);
#endif
    step_size = (float)__ddiv_rn(lr, (double)correction1);
  }
  __device__ float penalty(float g, float p, int) const {
    return (float)__fma_rn((double)p, wd, (double)g);
  }
  __device__ float decayed(float p) const {
    return (float)__fma_rn(-lw, (double)p, (double)p);
  }
  __device__ float first(float m, float g) const {
    return (float)__fma_rn((double)m, beta1, __dmul_rn(__dadd_rn(1.0, -beta1), (double)g));
  }
  __device__ float second(float v, float g) const {
    return (float)__fma_rn((double)v, beta2,
                           __dmul_rn(__dmul_rn(__dadd_rn(1.0, -beta2), (double)g), (double)g));
  }
  __device__ float denominator(float v) const {
    return (float)__dadd_rn((double)__fdiv_rn(__fsqrt_rn(v), root), eps);
  }
};

template <typename T, int depth, ADAM_MODE mode, bool amsgrad> struct FusedAdamMathFunctor {
  using S = VARIANT_SCALARS;
  __device__ static void element(const Step<S> &s, bool maximize, int slot, float &p, float g,
                                 float &m, float &v) {
    g = maximize ? -g : g;
    if (s.wd != 0) {
      if constexpr (mode == ADAM_MODE::ORIGINAL)
        g = s.penalty(g, p, slot);
      else
        p = s.decayed(p);
    }
    m = s.first(m, g);
    v = s.second(v, g);
    p = __fadd_rn(p, -__fdiv_rn(__fmul_rn(s.step_size, m), s.denominator(v)));
  }
  __device__ void operator()(FusedOptimizerTensorListMetadata<depth> &metadata,
                             const float *lr_pointer, double lr, double beta1, double beta2,
                             double wd, double eps, bool maximize, const float *,
                             const float *found_inf) {
    if (found_inf && *found_inf == 1)
      return;
    const int t = metadata.block_to_tensor[blockIdx.x];
    const int64_t from = metadata.block_to_chunk[blockIdx.x] * (int64_t)65536;
    const int64_t left = metadata.numel_for_tensor[t] - from, n = left < 65536 ? left : 65536;
    float *list[depth];
    bool aligned = n % 4 == 0;
    for (int i = 0; i < depth; i++) {
      list[i] = (float *)metadata.addresses[i][t] + from;
      aligned = aligned && (uintptr_t)list[i] % 16 == 0;
    }
    const Step<S> s(lr_pointer ? (S)*lr_pointer : (S)lr, beta1, beta2, wd, eps,
                    *(const float *)metadata.state_steps_addresses[t]);
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
      element(s, maximize, aligned ? i % 4 : i / 512 % 4, list[0][i], list[1][i], list[2][i],
              list[3][i]);
  }
};

template <class L, class F, class... A>
__global__ void multi_tensor_apply_kernel(L metadata, F functor, A... arguments) {
  functor(metadata, arguments...);
}

} // namespace

void keep() {
  multi_tensor_apply_kernel<<<1, 512>>>(FusedOptimizerTensorListMetadata<4>{},
                                        FusedAdamMathFunctor<float, 4, VARIANT_MODE, false>(),
                                        (const float *)nullptr, 0., 0., 0., 0., 0., false,
                                        (const float *)nullptr, (const float *)nullptr);
}
} // namespace at::native
