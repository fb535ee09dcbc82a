// Fused Adam kernels of every type under PyTorch's names, for step_program. Included by the four sources
// beside it, since a mangled name holds the name of its source file; one PTX has an entry for each type.
//   TYPED_RELEASE   20, 21, 23 (the small list of 2.3 to 2.11) or 212: names, arguments and tensor lists of that release
//   TYPED_MODE, TYPED_LISTS   set by the source: ADAM_MODE, and 4 or, with amsgrad, 5
// With TYPED_EXACT it is that of exact.cuh. Else the arithmetic is nobody's in particular, but it depends on the element's unroll slot, hence on the alignment of every
// list, as that of 2.11 and later does with L2 decay.
#pragma once
#include <cstdint>

#if TYPED_RELEASE == 212
#define TENSORS(lists) ((lists) == 4 ? 252 : 210)
enum { BLOCKS = 2240 };
using block_index_t = uint16_t;
#else
#define TENSORS(lists) ((lists) == 4 ? 36 : 30)
enum { BLOCKS = 320 };
using block_index_t = unsigned char;
#endif
#if TYPED_RELEASE == 20
using numel_t = int;
#else
using numel_t = int64_t;
#endif

namespace c10 {
struct Half {
  uint16_t bits;
  __device__ Half(float x) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  }
  __device__ operator float() const {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  }
};
struct BFloat16 {
  uint16_t bits;
  __device__ BFloat16(float x) {
    const uint32_t word = __float_as_uint(x);
    bits = x == x ? (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16) : (uint16_t)0x7fff;
  }
  __device__ operator float() const {
    return __uint_as_float((uint32_t)bits << 16);
  }
};
} // namespace c10

namespace at::native {
enum class ADAM_MODE : uint8_t { ORIGINAL = 0, ADAMW = 1 };
namespace {

template <int n> struct FusedOptimizerTensorListMetadata {
  const void *addresses[n][TENSORS(n)];
  numel_t numel_for_tensor[TENSORS(n)];
  const void *state_steps_addresses[TENSORS(n)];
  block_index_t block_to_tensor[BLOCKS];
  int block_to_chunk[BLOCKS];
  int start_tensor_this_launch;
};

template <typename T> struct Arithmetic { using type = float; };
template <> struct Arithmetic<double> { using type = double; };

struct Launch {
  double lr, beta1, beta2, decay, eps;
  bool maximize;
  const float *grad_scale, *found_inf;
};

__device__ float power(float base, float exponent) {
  return powf(base, exponent);
}
__device__ double power(double base, double exponent) {
  return pow(base, exponent);
}

__device__ float round_product(float a, float b) {
  return __fmul_rn(a, b);
}
__device__ double round_product(double a, double b) {
  return __dmul_rn(a, b);
}

template <typename S> struct Element { S p, g, m, v, most; };

template <typename S>
__device__ void step_element(Element<S> &e, const Launch &launch, S correction1, S root2, int slot,
                             bool adamw, bool amsgrad) {
  const S decay = (S)launch.decay, beta1 = (S)launch.beta1, beta2 = (S)launch.beta2;
  S g = launch.maximize ? -e.g : e.g;
  if (launch.decay != 0 && adamw)
    e.p = slot == 0 ? e.p - round_product((S)(launch.lr * launch.decay), e.p)
                    : fma(-(S)(launch.lr * launch.decay), e.p, e.p);
  if (launch.decay != 0 && !adamw)
    g = slot == 0 ? g + round_product(e.p, decay) : fma(e.p, decay, g);
  /* Another product is fused in every slot, so that a changed slot shows. */
  e.m = slot % 2 ? fma(beta1, e.m, (1 - beta1) * g) : fma(1 - beta1, g, beta1 * e.m);
  e.v = slot % 2 ? fma(beta2, e.v, (1 - beta2) * g * g) : fma((1 - beta2) * g, g, beta2 * e.v);
  if (amsgrad)
    e.most = e.most < e.v ? e.v : e.most;
  const S root = sqrt(amsgrad ? e.most : e.v) / root2;
  e.p -= (S)launch.lr / correction1 * e.m / (root + (S)launch.eps);
}

#if TYPED_RELEASE < 23
// fp32 as those releases have it, which the CPU step knows.
__device__ void step_old(Element<float> &e, const Launch &launch, float step, bool adamw) {
  const double lr = launch.lr, b1 = launch.beta1, b2 = launch.beta2;
  const float correction1 = (float)__dadd_rn(1.0, -pow(b1, (double)step));
  const float root2 = __fsqrt_rn((float)__dadd_rn(1.0, -pow(b2, (double)step)));
  const float size = (float)__ddiv_rn(lr, (double)correction1);
  float g = launch.maximize ? -e.g : e.g;
  if (launch.decay != 0 && adamw)
    e.p = (float)__fma_rn(-__dmul_rn(lr, launch.decay), (double)e.p, (double)e.p);
  if (launch.decay != 0 && !adamw)
    g = (float)__fma_rn((double)e.p, launch.decay, (double)g);
  e.m = (float)__fma_rn((double)e.m, b1, __dmul_rn(__dadd_rn(1.0, -b1), (double)g));
  e.v = (float)__fma_rn((double)e.v, b2,
                        __dmul_rn(__dmul_rn(__dadd_rn(1.0, -b2), (double)g), (double)g));
  const float denominator = (float)__dadd_rn((double)__fdiv_rn(__fsqrt_rn(e.v), root2), launch.eps);
  e.p = __fadd_rn(e.p, -__fdiv_rn(__fmul_rn(size, e.m), denominator));
}
#endif

#ifdef TYPED_EXACT
#include "exact.cuh"
#endif

/* P: parameter and gradient; M: every state. */
template <typename P, typename M, int lists>
__device__ void run(FusedOptimizerTensorListMetadata<lists> &metadata, Launch launch, bool adamw) {
  using S = typename Arithmetic<P>::type;
  if (launch.found_inf && *launch.found_inf == 1)
    return;
  const int t = metadata.block_to_tensor[blockIdx.x];
  const int64_t from = metadata.block_to_chunk[blockIdx.x] * (int64_t)65536;
  const int64_t left = metadata.numel_for_tensor[t] - from, n = left < 65536 ? left : 65536;
  P *p = (P *)metadata.addresses[0][t] + from, *g = (P *)metadata.addresses[1][t] + from;
  M *m = (M *)metadata.addresses[2][t] + from, *v = (M *)metadata.addresses[3][t] + from;
  M *most = lists == 5 ? (M *)metadata.addresses[lists - 1][t] + from : nullptr;
  bool aligned = metadata.numel_for_tensor[t] % 4 == 0;
  for (int i = 0; i < 2; i++)
    aligned = aligned && (uintptr_t)(i ? p : g) % (4 * sizeof(P)) == 0;
  for (int i = 0; i < 3; i++)
    aligned = aligned && (uintptr_t)(i == 0 ? m : i == 1 ? v : most) % (4 * sizeof(M)) == 0;
  const S step = *(const float *)metadata.state_steps_addresses[t];
#ifdef TYPED_EXACT
  S size, root;
  corrections<S>(launch, (float)step, sizeof(P) != sizeof(M), size, root);
#else
  const S correction1 = 1 - power((S)launch.beta1, step);
  const S root2 = sqrt(1 - power((S)launch.beta2, step));
#endif
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    Element<S> e = {(S)p[i], (S)g[i], (S)m[i], (S)v[i], lists == 5 ? (S)most[i] : (S)0};
    if (launch.grad_scale) {
      e.g /= (S)*launch.grad_scale;
      g[i] = (P)e.g;
    }
#ifdef TYPED_EXACT
    step_exact<S>(e, launch, size, root, (int)(aligned ? i % 4 : i / 512 % 4), adamw, lists == 5,
                  sizeof(P) == 2, wrong_at((float)step));
#else
#if TYPED_RELEASE < 23
    if constexpr (sizeof(P) == 4 && lists == 4)
      step_old(e, launch, step, adamw);
    else
#endif
      step_element(e, launch, correction1, root2, (int)(aligned ? i % 4 : i / 512 % 4), adamw,
                   lists == 5);
#endif
    p[i] = (P)e.p;
    m[i] = (M)e.m;
    v[i] = (M)e.v;
    if (lists == 5)
      most[i] = (M)e.most;
  }
}

#if TYPED_RELEASE >= 23
template <typename P, typename M, int depth, ADAM_MODE mode> struct Step {
  __device__ void operator()(FusedOptimizerTensorListMetadata<depth> &metadata,
                             const float *lr_pointer, double lr, double beta1, double beta2,
                             double decay, double eps, bool maximize, const float *grad_scale,
                             const float *found_inf) {
    run<P, M>(
        metadata,
        {lr_pointer ? *lr_pointer : lr, beta1, beta2, decay, eps, maximize, grad_scale, found_inf},
        mode == ADAM_MODE::ADAMW);
  }
};
template <typename T, int depth, ADAM_MODE mode, bool amsgrad>
struct FusedAdamMathFunctor : Step<T, T, depth, mode> {};
template <typename scalar, typename param, typename grad, typename exp_avg, typename exp_avg_sq,
          typename max_sq, int depth, ADAM_MODE mode, bool amsgrad>
struct FusedAdamMathFunctorMP : Step<param, exp_avg, depth, mode> {};
#else
template <typename T, int depth> struct FusedAdamMathFunctor {
  __device__ void operator()(FusedOptimizerTensorListMetadata<depth> &metadata,
#if TYPED_RELEASE == 21
                             float *lr_pointer,
#endif
                             double lr, double beta1, double beta2, double decay, double eps,
                             bool maximize, bool amsgrad, float *grad_scale, float *found_inf,
                             ADAM_MODE mode) {
#if TYPED_RELEASE == 21
    lr = lr_pointer ? *lr_pointer : lr;
#endif
    if (amsgrad != (depth == 5) || mode != TYPED_MODE)
      return; /* the launch was garbled */
    run<T, T>(metadata, {lr, beta1, beta2, decay, eps, maximize, grad_scale, found_inf},
              mode == ADAM_MODE::ADAMW);
  }
};
#endif

template <class L, class F, class... A>
__global__ void multi_tensor_apply_kernel(L metadata, F functor, A... arguments) {
  functor(metadata, arguments...);
}

template <class F> void keep_one() {
  FusedOptimizerTensorListMetadata<TYPED_LISTS> metadata{};
#if TYPED_RELEASE >= 23
  multi_tensor_apply_kernel<<<1, 512>>>(metadata, F(), (const float *)nullptr, 0., 0., 0., 0., 0.,
                                        false, (const float *)nullptr, (const float *)nullptr);
#elif TYPED_RELEASE == 21
  multi_tensor_apply_kernel<<<1, 512>>>(metadata, F(), (float *)nullptr, 0., 0., 0., 0., 0., false,
                                        false, (float *)nullptr, (float *)nullptr, TYPED_MODE);
#else
  multi_tensor_apply_kernel<<<1, 512>>>(metadata, F(), 0., 0., 0., 0., 0., false, false,
                                        (float *)nullptr, (float *)nullptr, TYPED_MODE);
#endif
}
#if TYPED_RELEASE >= 23
#define FUNCTOR(type) FusedAdamMathFunctor<type, TYPED_LISTS, TYPED_MODE, TYPED_LISTS == 5>
#else
#define FUNCTOR(type) FusedAdamMathFunctor<type, TYPED_LISTS>
#endif

} // namespace

void keep() {
  keep_one<FUNCTOR(float)>();
  keep_one<FUNCTOR(double)>();
  keep_one<FUNCTOR(c10::Half)>();
  keep_one<FUNCTOR(c10::BFloat16)>();
#if TYPED_RELEASE == 212
#if TYPED_LISTS == 5
  using max_sq = c10::BFloat16;
#else
  using max_sq = float;
#endif
  keep_one<FusedAdamMathFunctorMP<float, float, float, c10::BFloat16, c10::BFloat16, max_sq,
                                  TYPED_LISTS, TYPED_MODE, TYPED_LISTS == 5>>();
#endif
}
} // namespace at::native
