/* The approximate instructions. Called by ptx_exec_float.c. A result is the true value, moved by an
   error that the operands' bits and GPUSIM_APPROX_SEED choose within PTX's bound, so that nothing
   passes because this host's libm happens to agree with what it is compared with. A true value that
   is a float itself is given exactly, as GPUs do for powers of two, ex2 of whole numbers, lg2 of 1.
   Seed 0: the true value, rounded to nearest. */
#include "ptx_exec.h"

/* Bits that look random, from the seed, the instruction and what it is given. */
INLINE uint64_t mixed(uint64_t opcode, uint32_t a, uint32_t b) {
  uint64_t h = ((uint64_t)a << 32 | b) +
               (uint64_t)gpusim_settings.approx_seed * 0x9e3779b97f4a7c15u + (opcode << 56);
  h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
  h = (h ^ h >> 27) * 0x94d049bb133111ebu;
  return h ^ h >> 31;
}

/* A unit in the last place of a float near `value`. */
INLINE double unit_of(double value) {
  int exponent;
  __builtin_frexp(value, &exponent);
  return __builtin_ldexp(1, exponent > -125 ? exponent - 24 : -149);
}

/* `value`, moved by up to `most` less the half unit that rounding may add. */
INLINE float moved(double value, double most, uint64_t random) {
  const float nearest = (float)value;
  if (!gpusim_settings.approx_seed || nearest - value == 0 || !__builtin_isfinite(nearest))
    return nearest;
  const double unit = unit_of(value);
  const double reach = most - unit / 2;
  if (reach <= 0)
    return nearest;
  const double part = (double)(int64_t)random * 0x1p-63; /* from -1 to 1 */
  const float result = (float)(value + reach * part);
  return __builtin_isfinite(result) ? result : nearest;
}

/* The greatest error of `value` that the bounds allow. */
INLINE double bound(double value, double units, double relative, double absolute) {
  return units * unit_of(value) + relative * __builtin_fabs(value) + absolute;
}

#define APPROXIMATE(name, EXPRESSION, units, relative, absolute)                                   \
  static void name##_approximate(ARGS) {                                                           \
    const bool ftz = i->flags & PTX_M_FTZ, two = i->operands > 2;                                  \
    uint32_t *d = CELLS(uint32_t, 0);                                                              \
    const uint32_t *a = CELLS(uint32_t, 1), *b = two ? CELLS(uint32_t, 2) : a;                     \
    for (uint32_t l = first; l < end; l++) {                                                       \
      const double x = f32_in(a[l], ftz), y = f32_in(b[l], ftz), value = EXPRESSION;               \
      (void)y;                                                                                     \
      double most = bound(value, units, relative, absolute);                                       \
      if (PTX_OP_##name == PTX_OP_lg2 && x > 0.5 && x < 2)                                         \
        most = 0x1p-22;                                                                            \
      if ((PTX_OP_##name == PTX_OP_sin || PTX_OP_##name == PTX_OP_cos) &&                          \
          __builtin_fabs(x) > 6.28)                                                                \
        most = 0x1.3b2c48p-15; /* 2^-14.7 */                                                       \
      d[l] = f32_out(moved(value, most, mixed(PTX_OP_##name, a[l], two ? b[l] : 0)), ftz, false);  \
    }                                                                                              \
  }
#include "ptx_approximate.def"
#undef APPROXIMATE

static void rsqrt_f64(ARGS) {
  for (uint32_t l = first; l < end; l++)
    CELLS(uint64_t, 0)[l] = bits_of_f64(1 / __builtin_sqrt(f64_of(CELLS(uint64_t, 1)[l])));
}

/* rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64 see and give the upper 32 bits only. */
#define F64_GROSS(name, EXPRESSION)                                                                \
  static void name##_gross(ARGS) {                                                                 \
    for (uint32_t l = first; l < end; l++) {                                                       \
      uint64_t in = CELLS(uint64_t, 1)[l] & 0xffffffff00000000u;                                   \
      double x = f64_of(in & 0x7ff0000000000000u ? in : in & 0x8000000000000000u);                 \
      uint64_t out = bits_of_f64(EXPRESSION) & 0xffffffff00000000u;                                \
      CELLS(uint64_t, 0)[l] = out & 0x7ff0000000000000u ? out : out & 0x8000000000000000u;         \
    }                                                                                              \
  }
F64_GROSS(rcp, 1 / x)
F64_GROSS(rsqrt, 1 / __builtin_sqrt(x))

ptx_handler PTX_NAME(ptx_select_approximate)(const struct ptx_instruction *i) {
  const bool f32 = i->type == PTX_f32;
  if (i->flags & PTX_M_SAT || i->rounding)
    return NULL;
  if (!f32) {
    if (i->opcode == PTX_OP_rcp)
      return rcp_gross;
    return i->opcode != PTX_OP_rsqrt ? NULL : i->flags & PTX_M_FTZ ? rsqrt_gross : rsqrt_f64;
  }
  switch (i->opcode) {
#define APPROXIMATE(name, EXPRESSION, units, relative, absolute)                                   \
  case PTX_OP_##name:                                                                              \
    return name##_approximate;
#include "ptx_approximate.def"
#undef APPROXIMATE
  default:
    return NULL;
  }
}
