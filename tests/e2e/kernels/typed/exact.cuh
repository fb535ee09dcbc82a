// The arithmetic of PyTorch's own builds for typed.cuh, by TYPED_EXACT:
//   20    releases 2.0 to 2.2          23    2.3 to 2.10          211   2.11 and later, and with bf16 moments 2.12 and later
//   TYPED_SLOTS   L2 decay fused or not by unroll slot, as 2.11 and later have it on older GPUs
//   TYPED_WRONG   the program may ask for arithmetic that no PyTorch has: typed_wrong is one of enum wrong, at every step or,
//                 with typed_wrong_step, at that step only
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
  __device__ static T next(T a, int units) {
    return __int_as_float(__float_as_int(a) + units);
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
  __device__ static T next(T a, int units) {
    return __longlong_as_double(__double_as_longlong(a) + units);
  }
};
template <typename T> struct MathOf { using M = Float; };
template <> struct MathOf<double> { using M = Double; };

enum wrong {
  RIGHT,
  SIZE_UP, // the step size one unit in the last place away
  SIZE_DOWN,
  ROOT_UP, // the root of the second correction
  ROOT_DOWN,
  SECOND_SWAPPED, // another product of the second moment fused than that of the first
  BOTH_SWAPPED,   // of both moments than that generation and type has
  FIRST_LERP,     // m + (1-b1)*(g-m), fused
  SQUARE_FIRST,   // (1-b2)*(g*g) for ((1-b2)*g)*g, or the other way round
  DECAY_LAST,     // AdamW: the sum of p - u and the decay in another order
  DECAY_FACTOR, // AdamW: p*(1 - lr*wd); Adam: the product of the decay one unit in the last place away
  LARGEST_OF_NAN, // amsgrad: a second moment that is no number becomes the largest
  EPS_INSIDE,     // (sqrt(V) + eps*root)/root
};
#ifdef TYPED_WRONG
extern "C" {
__device__ int typed_wrong, typed_wrong_step;
}
__device__ wrong wrong_at(float step) {
  return !typed_wrong_step || (float)typed_wrong_step == step ? (wrong)typed_wrong : RIGHT;
}
#else
__device__ constexpr wrong wrong_at(float) {
  return RIGHT;
}
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
  const wrong how = wrong_at(step);
  if (how == SIZE_UP || how == SIZE_DOWN)
    size = M::next(size, how == SIZE_UP ? 1 : -1);
  if (how == ROOT_UP || how == ROOT_DOWN)
    root = M::next(root, how == ROOT_UP ? 1 : -1);
}

// Moments with scalars of type W, rounded to T.
template <typename T, typename W>
__device__ void moments(Element<T> &e, T gradient, const Launch &launch, bool nested, bool swapped,
                        wrong how) {
  using M = typename MathOf<W>::M;
  const W g = (W)gradient, m = (W)e.m, v = (W)e.v, b1 = (W)launch.beta1, b2 = (W)launch.beta2;
  const W o1 = M::add(1, -b1), o2 = M::add(1, -b2), q = M::mul(g, g);
  const bool swapped_first = swapped != (how == BOTH_SWAPPED),
             swapped_second = swapped != (how == BOTH_SWAPPED || how == SECOND_SWAPPED);
  const W share = how == SQUARE_FIRST ? M::mul(o2, q) : M::mul(M::mul(o2, g), g);
  if (nested) {
    e.m =
        (T)(how == BOTH_SWAPPED ? M::fma(m, b1, M::mul(o1, g)) : M::fma(b1, m, M::fma(-b1, g, g)));
    e.v = (T)(how == BOTH_SWAPPED || how == SECOND_SWAPPED ? M::fma(b2, v, M::mul(o2, q))
              : how == SQUARE_FIRST ? M::fma(b2, v, M::mul(M::fma(-b2, g, g), g))
                                    : M::fma(b2, v, M::fma(-b2, q, q)));
  } else {
    e.m = (T)(swapped_first ? M::fma(o1, g, M::mul(b1, m)) : M::fma(m, b1, M::mul(o1, g)));
    e.v = (T)(!swapped_second       ? M::fma(v, b2, share)
              : how == SQUARE_FIRST ? M::fma(o2, q, M::mul(b2, v))
                                    : M::fma(M::mul(o2, g), g, M::mul(b2, v)));
  }
  if (how == FIRST_LERP)
    e.m = (T)M::fma(o1, M::sub(g, m), m);
}

/* narrow: two bytes an element; size, root: the corrections. */
template <typename T>
__device__ void step_exact(Element<T> &e, const Launch &launch, T size, T root, int slot,
                           bool adamw, bool amsgrad, bool narrow, wrong how) {
  using M = typename MathOf<T>::M;
  const bool float_scalars = TYPED_EXACT == 211 && sizeof(T) == 4;
  T g = launch.maximize ? -e.g : e.g;
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
  if (how == DECAY_FACTOR && launch.decay != 0) {
    if (adamw)
      e.p = M::mul(before, M::sub(1, (T)lw));
    else /* a unit in the last place of the product more */
      g = M::add(launch.maximize ? -e.g : e.g, M::next(M::mul(before, (T)launch.decay), 1));
  }
  if (float_scalars)
    moments<T, float>(e, g, launch, true, false, how);
  else
    moments<T, double>(e, g, launch, TYPED_EXACT == 211, TYPED_EXACT == 23 && narrow && adamw, how);
  if (amsgrad)
    e.most = e.most < e.v || (how == LARGEST_OF_NAN && e.v != e.v) ? e.v : e.most;
  const T second = M::root(amsgrad ? e.most : e.v), ratio = M::div(second, root);
  T denominator = float_scalars ? (T)Float::add((float)ratio, (float)launch.eps)
                                : (T)Double::add((double)ratio, launch.eps);
  if (how == EPS_INSIDE)
    denominator = M::div(M::add(second, M::mul((T)launch.eps, root)), root);
  const T update = M::div(M::mul(size, e.m), denominator);
  if (how == DECAY_LAST && adamw && launch.decay != 0)
    e.p = M::sub(M::sub(before, update), M::mul((T)lw, before));
  else
    e.p = M::sub(e.p, update);
}
