// The arithmetic of PyTorch's own builds for typed.cuh, by TYPED_EXACT:
//   20    releases 2.0 to 2.2          23    2.3 to 2.10          211   2.11 and later, and with bf16 moments 2.12 and later
//   TYPED_SLOTS   L2 decay fused or not by unroll slot, as 2.11 and later have it on older GPUs
//   TYPED_WRONG   what no PyTorch has: 1 the step size one unit in the last place larger, 2 the root of the second correction,
//                 3 another product of a moment fused than that of the other, 4 the sum of P - u and the decay in another order
// Every rounding is spelled, as the compiler left it in the wheels.
#pragma once

struct Float {
  using T = float;
  __device__ static T fma(T a, T b, T c) {
    return __fmaf_rn(a, b, c);
  }
  __device__ static T mul(T a, T b) {
    return __fmul_rn(a, b);
  }
  __device__ static T add(T a, T b) {
    return __fadd_rn(a, b);
  }
  __device__ static T sub(T a, T b) {
    return __fsub_rn(a, b);
  }
  __device__ static T div(T a, T b) {
    return __fdiv_rn(a, b);
  }
  __device__ static T root(T a) {
    return __fsqrt_rn(a);
  }
  __device__ static T next(T a) {
    return __int_as_float(__float_as_int(a) + 1);
  }
};
struct Double {
  using T = double;
  __device__ static T fma(T a, T b, T c) {
    return __fma_rn(a, b, c);
  }
  __device__ static T mul(T a, T b) {
    return __dmul_rn(a, b);
  }
  __device__ static T add(T a, T b) {
    return __dadd_rn(a, b);
  }
  __device__ static T sub(T a, T b) {
    return __dsub_rn(a, b);
  }
  __device__ static T div(T a, T b) {
    return __ddiv_rn(a, b);
  }
  __device__ static T root(T a) {
    return __dsqrt_rn(a);
  }
  __device__ static T next(T a) {
    return __longlong_as_double(__double_as_longlong(a) + 1);
  }
};
template <typename T> struct MathOf { using M = Float; };
template <> struct MathOf<double> { using M = Double; };

#ifndef TYPED_WRONG
#define TYPED_WRONG 0
#endif

// Step size and root of the second correction, in the type that is computed in.
template <typename T>
__device__ void corrections(const Launch &launch, float step, bool mixed, T &size, T &root) {
  const double b1 = launch.beta1, b2 = launch.beta2;
  if (sizeof(T) == 8) {
    size = (T)Double::div(launch.lr, Double::add(1.0, -pow(b1, (double)step)));
    root = (T)Double::root(Double::add(1.0, -pow(b2, (double)step)));
  } else if (TYPED_EXACT < 211 || mixed) {
    const float first = (float)Double::add(1.0, -pow(b1, (double)step));
    const double second = Double::add(1.0, -pow(b2, (double)step));
    size =
        mixed ? Float::div((float)launch.lr, first) : (float)Double::div(launch.lr, (double)first);
    root = TYPED_EXACT == 20 ? Float::root((float)second) : (float)Double::root(second);
  } else {
    size = Float::div((float)launch.lr, Float::add(1.0f, -powf((float)b1, step)));
    root = Float::root(Float::add(1.0f, -powf((float)b2, step)));
  }
  using M = typename MathOf<T>::M;
  if (TYPED_WRONG == 1)
    size = M::next(size);
  if (TYPED_WRONG == 2)
    root = M::next(root);
}

// Moments with scalars of type W, rounded to T.
template <typename T, typename W>
__device__ void moments(Element<T> &e, T gradient, const Launch &launch, bool nested,
                        bool swapped) {
  using M = typename MathOf<W>::M;
  const W g = (W)gradient, m = (W)e.m, v = (W)e.v, b1 = (W)launch.beta1, b2 = (W)launch.beta2;
  const bool swapped_second = TYPED_WRONG == 3 ? !swapped : swapped;
  if (nested) {
    const W q = M::mul(g, g);
    e.m = (T)M::fma(b1, m, M::fma(-b1, g, g));
    e.v = (T)(TYPED_WRONG == 3 ? M::fma(b2, v, M::mul(M::add(1, -b2), q))
                               : M::fma(b2, v, M::fma(-b2, q, q)));
    return;
  }
  const W o1 = M::add(1, -b1), o2 = M::add(1, -b2);
  e.m = (T)(swapped ? M::fma(o1, g, M::mul(b1, m)) : M::fma(m, b1, M::mul(o1, g)));
  e.v = (T)(swapped_second ? M::fma(M::mul(o2, g), g, M::mul(b2, v))
                           : M::fma(v, b2, M::mul(M::mul(o2, g), g)));
}

/* narrow: two bytes an element; mixed: another type for state. */
template <typename T>
__device__ void step_exact(Element<T> &e, const Launch &launch, float step, int slot, bool adamw,
                           bool amsgrad, bool narrow, bool mixed) {
  using M = typename MathOf<T>::M;
  const bool float_scalars = TYPED_EXACT == 211 && sizeof(T) == 4;
  T size, root, g = launch.maximize ? -e.g : e.g;
  corrections<T>(launch, step, mixed, size, root);
  const double lw = Double::mul(launch.lr, launch.decay);
  const float lw_float = Float::mul((float)launch.lr, (float)launch.decay);
  const T before = e.p;
  if (launch.decay != 0 && adamw)
    e.p = float_scalars ? (T)Float::fma(-lw_float, (float)e.p, (float)e.p)
                        : (T)Double::fma(-lw, (double)e.p, (double)e.p);
  if (launch.decay != 0 && !adamw) {
    bool fused = true;
#ifdef TYPED_SLOTS
    fused = amsgrad || launch.grad_scale || sizeof(T) == 8 || (!launch.maximize && slot != 0);
#endif
    if (!fused)
      g = M::add(g, M::mul(e.p, (T)launch.decay));
    else
      g = float_scalars ? (T)Float::fma((float)e.p, (float)launch.decay, (float)g)
                        : (T)Double::fma((double)e.p, launch.decay, (double)g);
  }
  if (float_scalars)
    moments<T, float>(e, g, launch, true, false);
  else
    moments<T, double>(e, g, launch, TYPED_EXACT == 211, TYPED_EXACT == 23 && narrow && adamw);
  if (amsgrad)
    e.most = e.most < e.v ? e.v : e.most;
  const T ratio = M::div(M::root(amsgrad ? e.most : e.v), root);
  const T denominator = float_scalars ? (T)Float::add((float)ratio, (float)launch.eps)
                                      : (T)Double::add((double)ratio, launch.eps);
  const T update = M::div(M::mul(size, e.m), denominator);
  if (TYPED_WRONG == 4 && adamw && launch.decay != 0)
    e.p = M::sub(M::sub(before, update), M::mul((T)lw, before));
  else
    e.p = M::sub(e.p, update);
}
