/* Each arithmetic instruction of the PTX interpreter against a reference in C, bit for bit, on
   zeros, subnormals, infinities, NaNs, limits and random bits. A kernel of one instruction is
   written out as PTX for each. Directed rounding is checked against exact 128-bit arithmetic,
   half precision against a table of all halves, so that nothing is compared with itself. Every
   check is made with both builds of the interpreter's loops. */
#include "tests/gpusim/ptx.h"
#include "tests/lib/tap.h"
#include "tests/unit/gpusim_ptx.h"
#include <fenv.h>
#include <float.h>
#include <math.h>

enum { CASES = 3000 };
typedef uint64_t reference(uint64_t a, uint64_t b, uint64_t c);
static uint64_t random_state;

static uint64_t random_bits(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  return random_state ^= random_state << 17;
}

/* ---- a kernel of one instruction over arrays of 64-bit cells ---- */

static struct gpusim_image *kernel_of(const char *instruction, const int bits[4]) {
  char *ptx = NULL;
  size_t size;
  FILE *out = open_memstream(&ptx, &size);
  fprintf(out, ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(\n"
               ".param .u64 d, .param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)\n{\n"
               ".reg .pred %%p, %%q; .reg .b32 %%i, %%n; .reg .b64 %%at, %%base;\n");
  for (int k = 0; k < 4; k++)
    fprintf(out, ".reg .b%d %%%c;\n", bits[k], "dabc"[k]);
  fprintf(out, "mov.u32 %%i, %%ctaid.x;\nmov.u32 %%n, %%tid.x;\nmad.lo.s32 %%i, %%i, 128, %%n;\n"
               "ld.param.u32 %%n, [n];\nsetp.ge.u32 %%p, %%i, %%n;\n@%%p ret;\n"
               "mul.wide.u32 %%at, %%i, 8;\n");
  for (int k = 1; k < 4; k++)
    fprintf(out,
            "ld.param.u64 %%base, [%c];\nadd.u64 %%base, %%base, %%at;\nld.global.b%d %%%c, "
            "[%%base];\n",
            "dabc"[k], bits[k], "dabc"[k]);
  fprintf(out,
          "%s\nld.param.u64 %%base, [d];\nadd.u64 %%base, %%base, %%at;\nst.global.b%d [%%base], "
          "%%d;\nret;\n}\n",
          instruction, bits[0]);
  fclose(out);
  int error;
  struct gpusim_image *image = gpusim_image_load(ptx, &error);
  free(ptx);
  return image;
}

static uint64_t in_a[CASES], in_b[CASES], in_c[CASES], result[CASES];

static bool compute(const char *instruction, const int bits[4]) {
  struct gpusim_image *image = kernel_of(instruction, bits);
  struct gpusim_kernel *kernel = image ? gpusim_image_kernel(image, "k") : NULL;
  if (!kernel) {
    printf("# %s: %s\n", instruction, last_trace);
    return false;
  }
  uint64_t *inputs[3] = {in_a, in_b, in_c};
  uintptr_t device[4];
  for (int k = 0; k < 4; k++) {
    device[k] = device_new(sizeof result);
    if (k)
      memcpy(host(device[k]), inputs[k - 1], sizeof result);
  }
  int n = CASES;
  void *arguments[] = {&device[0], &device[1], &device[2], &device[3], &n};
  int code = launch(kernel, (CASES + 127) / 128, 128, 5, arguments);
  memcpy(result, host(device[0]), sizeof result);
  gpusim_image_free(image);
  device_reset();
  if (code)
    printf("# %s: %d %s\n", instruction, code, launch_error);
  return !code;
}

enum equality { BITS, F64_NAN };
static bool equal(uint64_t got, uint64_t want, enum equality how) {
  double x, y;
  memcpy(&x, &got, 8);
  memcpy(&y, &want, 8);
  return got == want || (how == F64_NAN && x != x && y != y);
}

static bool agrees(const char *instruction, const int bits[4], reference *expected,
                   enum equality how) {
  uint64_t mask = bits[0] == 64 ? UINT64_MAX : (UINT64_C(1) << bits[0]) - 1;
  int wrong = 0;
  for (int plain = 0; plain < 2; plain++) {
    ptx_select_plain(plain);
    if (!compute(instruction, bits))
      return false;
    for (int k = 0; k < CASES; k++) {
      uint64_t want = expected(in_a[k], in_b[k], in_c[k]) & mask;
      if (equal(result[k] & mask, want, how) || wrong++ > 3)
        continue;
      printf("# %s (%s build) of %#llx %#llx %#llx: %#llx, expected %#llx\n", instruction,
             plain ? "plain" : "best", (unsigned long long)in_a[k], (unsigned long long)in_b[k],
             (unsigned long long)in_c[k], (unsigned long long)(result[k] & mask),
             (unsigned long long)want);
    }
  }
  return !wrong;
}

/* ---- inputs ---- */

static const uint32_t special32[] = {
    0,          0x80000000, 1,          0x80000001, 0x007fffff, 0x807fffff, 0x00800000,
    0x80800000, 0x3f800000, 0xbf800000, 0x3f7fffff, 0x3f800001, 0x7f7fffff, 0xff7fffff,
    0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7fa00000, 0x7fffffff, 0x4b800000,
    0xcb800000, 0x4f000000, 0xcf000000, 0x4effffff, 0x5f000000, 0x3f000000, 0x40200000,
    0x00000002, 0x33800000, 31,         32,         33,         255};
static const uint64_t special64[] = {0,
                                     UINT64_C(1) << 63,
                                     1,
                                     0x000fffffffffffff,
                                     0x0010000000000000,
                                     0x3ff0000000000000,
                                     0xbff0000000000000,
                                     0x3fefffffffffffff,
                                     0x7fefffffffffffff,
                                     0x7ff0000000000000,
                                     0xfff0000000000000,
                                     0x7ff8000000000000,
                                     0x41dfffffffc00000,
                                     0x43e0000000000000,
                                     0xc3e0000000000000,
                                     0x3fe0000000000000,
                                     0x4004000000000000,
                                     0x36a0000000000000,
                                     0x380fffffe0000000,
                                     0x47efffffffffffff,
                                     UINT64_MAX,
                                     0x7fffffffffffffff};

static void fill(uint64_t *cells, int bits) {
  for (int k = 0; k < CASES; k++) {
    uint64_t pick = random_bits();
    if (pick % 3)
      cells[k] = random_bits();
    else if (bits == 64)
      cells[k] = special64[pick / 3 % (sizeof special64 / sizeof *special64)];
    else if (bits == 32)
      cells[k] = special32[pick / 3 % (sizeof special32 / sizeof *special32)];
    else
      cells[k] = pick / 3 % 7 ? special32[pick / 5 % (sizeof special32 / sizeof *special32)] >> 16
                              : pick / 3 % 4;
    if (bits < 64)
      cells[k] &= (UINT64_C(1) << bits) - 1;
  }
}
static void fill_all(const int bits[4]) {
  random_state = 88172645463325252u;
  fill(in_a, bits[1]);
  fill(in_b, bits[2]);
  fill(in_c, bits[3]);
}
/* Finite floats whose exponents lie so close together that sums of products are exact in 128
   bits. */
static void fill_moderate(void) {
  uint64_t *inputs[3] = {in_a, in_b, in_c};
  random_state = 362436069u;
  for (int which = 0; which < 3; which++)
    for (int k = 0; k < CASES; k++) {
      uint64_t r = random_bits();
      inputs[which][k] = (r & 0x807fffff) | (127 - 14 + (r >> 32) % 28) << 23;
      if (r >> 60 == 0)
        inputs[which][k] &= 0xff800000;
    }
  for (int k = 0; k < CASES; k += 7)
    in_c[k] = in_a[k] ^ 0x80000000;
}

static float f32(uint64_t bits) {
  uint32_t narrow_bits = (uint32_t)bits;
  float value;
  memcpy(&value, &narrow_bits, sizeof value);
  return value;
}
static uint64_t bits32(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return value != value ? 0x7fffffff : bits;
}
static double f64(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
static uint64_t bits64(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

/* ---- references: floats ---- */

#define REFERENCE(name, EXPRESSION)                                                                \
  static uint64_t name(uint64_t a, uint64_t b, uint64_t c) {                                       \
    (void)a, (void)b, (void)c;                                                                     \
    return (uint64_t)(EXPRESSION);                                                                 \
  }
#define A f32(a)
#define B f32(b)
#define C f32(c)
REFERENCE(add32, bits32(A + B))
REFERENCE(sub32, bits32(A - B))
REFERENCE(mul32, bits32(A *B))
REFERENCE(fma32, bits32(fmaf(A, B, C)))
REFERENCE(div32, bits32(A / B))
REFERENCE(sqrt32, bits32(sqrtf(A)))
REFERENCE(rcp32, bits32(1 / A))
REFERENCE(abs32, bits32(fabsf(A)))
REFERENCE(neg32, bits32(-A))
REFERENCE(add64, bits64(f64(a) + f64(b)))
REFERENCE(sub64, bits64(f64(a) - f64(b)))
REFERENCE(mul64, bits64(f64(a) * f64(b)))
REFERENCE(fma64, bits64(fma(f64(a), f64(b), f64(c))))
REFERENCE(div64, bits64(f64(a) / f64(b)))
REFERENCE(sqrt64, bits64(sqrt(f64(a))))

static float flushed(float x) {
  return fabsf(x) < FLT_MIN ? copysignf(0, x) : x;
}
REFERENCE(add32_ftz, bits32(flushed(flushed(A) + flushed(B))))
REFERENCE(mul32_ftz, bits32(flushed(flushed(A) * flushed(B))))
REFERENCE(fma32_ftz, bits32(flushed(fmaf(flushed(A), flushed(B), flushed(C)))))
REFERENCE(div32_ftz, bits32(flushed(flushed(A) / flushed(B))))
static float saturated(float x) {
  return x >= 1 ? 1 : x > 0 ? x : 0;
}
REFERENCE(add32_sat, bits32(saturated(A + B)))
REFERENCE(fma32_ftz_sat, bits32(saturated(flushed(fmaf(flushed(A), flushed(B), flushed(C))))))

static uint64_t extreme32(uint64_t a, uint64_t b, bool largest, bool nan_wins) {
  if (A != A && B != B)
    return 0x7fffffff;
  if (A != A || B != B)
    return nan_wins ? 0x7fffffff : A != A ? b : a;
  if (A == B)
    return (a >> 31) == largest ? b : a;
  return (A > B) == largest ? a : b;
}
REFERENCE(min32, extreme32(a, b, false, false))
REFERENCE(max32, extreme32(a, b, true, false))
REFERENCE(min32_nan, extreme32(a, b, false, true))

/* Rounding of an exact value in a direction, by looking on which side the nearest float lies. */
static float directed(__float128 exact, enum ptx_round mode) {
  float f = (float)exact;
  if (mode == PTX_RM || (mode == PTX_RZ && exact > 0))
    return (__float128)f > exact ? nextafterf(f, -INFINITY) : f;
  if (mode == PTX_RP || mode == PTX_RZ)
    return (__float128)f < exact ? nextafterf(f, INFINITY) : f;
  return f;
}
static float directed_sum(__float128 x, __float128 y, enum ptx_round mode) {
  if (x + y == 0 && x != 0) /* an exact zero of opposite terms */
    return mode == PTX_RM ? -0.0f : 0.0f;
  return directed(x + y, mode);
}
static float directed_sqrt(float x, enum ptx_round mode) {
  float f = sqrtf(x);
  __float128 square = (__float128)f * f;
  if (mode == PTX_RP)
    return square < x ? nextafterf(f, INFINITY) : f;
  return mode != PTX_RN && square > x ? nextafterf(f, 0) : f;
}
#define MODES(R, mode)                                                                             \
  REFERENCE(add32_##mode, bits32(directed_sum(A, B, R)))                                           \
  REFERENCE(sub32_##mode, bits32(directed_sum(A, -B, R)))                                          \
  REFERENCE(mul32_##mode, bits32(directed((__float128)A *B, R)))                                   \
  REFERENCE(fma32_##mode, bits32(directed_sum((__float128)A *B, C, R)))                            \
  REFERENCE(div32_##mode, bits32(directed((__float128)A / B, R)))                                  \
  REFERENCE(sqrt32_##mode, A < 0 ? 0x7fffffff : bits32(directed_sqrt(A, R)))                       \
  REFERENCE(narrow32_##mode, bits32(directed((__float128)f64(a), R)))
MODES(PTX_RN, rn)
MODES(PTX_RZ, rz)
MODES(PTX_RM, rm)
MODES(PTX_RP, rp)

/* ---- references: half and bfloat16, by search among all of them ---- */

static double small_value(uint32_t bits, bool half) {
  uint32_t exponent = half ? bits >> 10 & 31 : bits >> 7 & 255;
  uint32_t mantissa = half ? bits & 1023 : bits & 127;
  int scale = half ? 25 : 134, top = half ? 31 : 255;
  double whole = exponent ? (half ? 1024 : 128) + mantissa : mantissa;
  double value = (int)exponent == top ? (mantissa ? NAN : INFINITY)
                                      : ldexp(whole, (int)(exponent ? exponent : 1) - scale);
  return bits >> 15 ? -value : value;
}
/* Positive small floats are in the order of their bits: bisect for the largest that isn't above
   x. */
static uint64_t small_of(__float128 x, bool half, enum ptx_round mode) {
  uint32_t infinity = half ? 0x7c00 : 0x7f80, low = 0, high = infinity;
  bool negative = x < 0 || (x == 0 && signbit((double)x));
  if (x != x)
    return 0x7fff;
  if (negative)
    x = -x;
  while (high - low > 1) {
    uint32_t middle = (low + high) / 2;
    if ((__float128)small_value(middle, half) <= x)
      low = middle;
    else
      high = middle;
  }
  __float128 below = (__float128)small_value(low, half);
  __float128 above = high == infinity ? 2 * below - (__float128)small_value(low - 1, half)
                                      : (__float128)small_value(high, half);
  bool up = mode == PTX_RZ   ? false
            : mode == PTX_RM ? negative && x > below
            : mode == PTX_RP ? !negative && x > below
                             : x - below > above - x || (x - below == above - x && low & 1);
  if (x == (__float128)INFINITY)
    up = true;
  return (up ? high : low) | (negative ? 0x8000u : 0);
}
/* A sum that 128 bits don't hold is moved off the tie that it may seem to be. */
static __float128 exact_enough(__float128 x, __float128 y) {
  __float128 sum = x + y;
  __float128 lost = (x > y ? x > -y : -x > y) ? y - (sum - x) : x - (sum - y);
  if (lost == 0 || lost != lost)
    return sum;
  __float128 step = (sum < 0 ? -sum : sum) * (__float128)0x1p-110;
  return lost > 0 ? sum + step : sum - step;
}
#define SMALL(suffix, half)                                                                        \
  REFERENCE(add_##suffix, small_of((__float128)small_value((uint32_t)a, half) +                    \
                                       (__float128)small_value((uint32_t)b, half),                 \
                                   half, PTX_RN))                                                  \
  REFERENCE(mul_##suffix, small_of((__float128)small_value((uint32_t)a, half) *                    \
                                       (__float128)small_value((uint32_t)b, half),                 \
                                   half, PTX_RN))                                                  \
  REFERENCE(fma_##suffix, small_of(exact_enough((__float128)small_value((uint32_t)a, half) *       \
                                                    (__float128)small_value((uint32_t)b, half),    \
                                                (__float128)small_value((uint32_t)c, half)),       \
                                   half, PTX_RN))                                                  \
  REFERENCE(of_f32_rn_##suffix, small_of((__float128)A, half, PTX_RN))                             \
  REFERENCE(of_f32_rz_##suffix, small_of((__float128)A, half, PTX_RZ))                             \
  REFERENCE(of_f64_##suffix, small_of((__float128)f64(a), half, PTX_RN))                           \
  REFERENCE(to_f32_##suffix, bits32((float)small_value((uint32_t)a, half)))
SMALL(f16, true)
SMALL(bf16, false)
REFERENCE(of_s64_f16, small_of((__float128)(int64_t)a, true, PTX_RN))
REFERENCE(of_u64_bf16, small_of((__float128)a, false, PTX_RN))
REFERENCE(add_f16x2, add_f16(a >> 16, b >> 16, 0) << 16 | add_f16(a & 0xffff, b & 0xffff, 0))
REFERENCE(fma_bf16x2,
          fma_bf16(a >> 16, b >> 16, c >> 16) << 16 | fma_bf16(a & 0xffff, b & 0xffff, c & 0xffff))
REFERENCE(pair_f16, of_f32_rn_f16(a, 0, 0) << 16 | of_f32_rn_f16(b, 0, 0))

/* ---- references: conversions to integers ---- */

static uint64_t integer_of(double x, int bits, bool is_signed, bool nan_is_high) {
  uint64_t high = UINT64_C(1) << (bits - 1);
  if (x != x)
    return nan_is_high ? (is_signed ? 0 - high : high) : 0;
  if (is_signed)
    return x >= (double)high ? high - 1 : x <= -(double)high ? 0 - high : (uint64_t)(int64_t)x;
  return x >= 2.0 * (double)high ? (high - 1) * 2 + 1 : x <= 0 ? 0 : (uint64_t)x;
}
REFERENCE(s32_of_f32_rz, integer_of(trunc((double)A), 32, true, false))
REFERENCE(s32_of_f32_rn, integer_of(rint((double)A), 32, true, false))
REFERENCE(s32_of_f32_rm, integer_of(floor((double)A), 32, true, false))
REFERENCE(u32_of_f32_rp, integer_of(ceil((double)A), 32, false, false))
REFERENCE(u8_of_f32, integer_of(trunc((double)A), 8, false, false))
REFERENCE(s64_of_f32, integer_of(trunc((double)A), 64, true, true))
REFERENCE(s64_of_f64, integer_of(trunc(f64(a)), 64, true, true))
REFERENCE(u64_of_f64, integer_of(trunc(f64(a)), 64, false, true))
REFERENCE(f32_of_s32, bits32((float)(int32_t)a))
REFERENCE(f32_of_u32, bits32((float)(uint32_t)a))
REFERENCE(f32_of_s64, bits32((float)(int64_t)a))
REFERENCE(f32_of_u64_rz, bits32(directed((__float128)a, PTX_RZ)))
REFERENCE(f64_of_s64, bits64((double)(int64_t)a))
REFERENCE(f64_of_f32, bits64((double)A))
REFERENCE(whole32, bits32(rintf(A)))
REFERENCE(s8_sat, (int32_t)a > 127 ? 127 : (int32_t)a < -128 ? -128 : (int32_t)a)
REFERENCE(u16_of_s32_sat, (int32_t)a > 65535 ? 65535 : (int32_t)a < 0 ? 0 : (int32_t)a)
REFERENCE(sign_extend8, (int64_t)(int8_t)a)
REFERENCE(zero_extend16, a & 0xffff)

/* ---- references: integers ---- */

#define S32(v) ((int32_t)(v))
#define U32(v) ((uint32_t)(v))
#define S64(v) ((int64_t)(v))
REFERENCE(iadd, a + b)
REFERENCE(isub, a - b)
REFERENCE(imul, a *b)
REFERENCE(imad, a *b + c)
REFERENCE(mul_hi_s32, (uint64_t)((int64_t)S32(a) * S32(b)) >> 32)
REFERENCE(mul_hi_u64, (uint64_t)((unsigned __int128)a *b >> 64))
REFERENCE(mul_hi_s64, (uint64_t)((__int128)S64(a) * S64(b) >> 64))
REFERENCE(mul_wide_s32, (int64_t)S32(a) * S32(b))
REFERENCE(mad_wide_u16, (uint32_t)((a & 0xffff) * (b & 0xffff)) + c)
REFERENCE(add_sat, (int64_t)S32(a) + S32(b) > INT32_MAX   ? INT32_MAX
                   : (int64_t)S32(a) + S32(b) < INT32_MIN ? INT32_MIN
                                                          : S32(a) + (int64_t)S32(b))
REFERENCE(div_s32, !S32(b) ? -1 : S64(S32(a)) / S32(b))
REFERENCE(rem_s32, !S32(b) ? S32(a) : S64(S32(a)) % S32(b))
REFERENCE(div_u64, b ? a / b : UINT64_MAX)
REFERENCE(rem_s64, !b ? S64(a) : S64(b) == -1 ? 0 : S64(a) % S64(b))
REFERENCE(min_s32, S32(a) < S32(b) ? a : b)
REFERENCE(max_u64, a > b ? a : b)
REFERENCE(min_s16, (int16_t)a < (int16_t)b ? a : b)
REFERENCE(sad_s32, c + (uint64_t)llabs((int64_t)S32(a) - S32(b)))
REFERENCE(shl32, U32(b) > 31 ? 0 : a << U32(b))
REFERENCE(shr_s32, (int64_t)S32(a) >> (U32(b) > 31 ? 31 : U32(b)))
REFERENCE(shr_u64, U32(b) > 63 ? 0 : a >> U32(b))
REFERENCE(shr_s64, (__int128)S64(a) >> (U32(b) > 63 ? 63 : U32(b)))
REFERENCE(shf_l_wrap, (b << 32 | a) << (c & 31) >> 32)
REFERENCE(shf_r_clamp, (b << 32 | a) >> (U32(c) > 32 ? 32 : U32(c)))
REFERENCE(logic, (a & b) ^ (~c | b))
REFERENCE(lop3_96, a ^ b ^ c)
REFERENCE(lop3_e8, (a & b) | (a & c) | (b & c))
REFERENCE(popc64, __builtin_popcountll(a))
REFERENCE(clz32, U32(a) ? __builtin_clz(U32(a)) : 32)
static uint64_t reversed_slowly(uint64_t x, int bits) {
  uint64_t r = 0;
  for (int k = 0; k < bits; k++)
    r |= (x >> k & 1) << (bits - 1 - k);
  return r;
}
REFERENCE(brev32, reversed_slowly(a, 32))
REFERENCE(brev64, reversed_slowly(a, 64))
/* PTX ISA's own text for bfe and bfi, bit by bit. */
static uint64_t bfe_slowly(uint64_t a, uint32_t position, uint32_t length, int msb,
                           bool is_signed) {
  uint64_t d = 0, sign = 0;
  position &= 255;
  length &= 255;
  if (is_signed && length) {
    uint32_t last = position + length - 1 < (uint32_t)msb ? position + length - 1 : (uint32_t)msb;
    sign = a >> last & 1;
  }
  for (uint32_t i = 0; i <= (uint32_t)msb; i++)
    d |= (i < length && position + i <= (uint32_t)msb ? a >> (position + i) & 1 : sign) << i;
  return d;
}
REFERENCE(bfe_s32, bfe_slowly(a, U32(b), U32(c), 31, true))
REFERENCE(bfe_u64, bfe_slowly(a, U32(b), U32(c), 63, false))
static uint64_t bfi_slowly(uint64_t a, uint64_t b, uint32_t position, uint32_t length, int msb) {
  position &= 255;
  length &= 255;
  for (uint32_t i = 0; i < length && position + i <= (uint32_t)msb; i++)
    b = (b & ~(UINT64_C(1) << (position + i))) | (a >> i & 1) << (position + i);
  return b;
}
REFERENCE(bfi32, bfi_slowly(a, b, U32(c), 9, 31))
REFERENCE(bfi64, bfi_slowly(a, b, U32(c), 20, 63))
REFERENCE(bfind_s32,
          (S32(a) < 0 ? ~U32(a) : U32(a)) ? 31 - __builtin_clz(S32(a) < 0 ? ~U32(a) : U32(a)) : -1)
static uint64_t permuted(uint64_t a, uint64_t b, uint64_t c) {
  uint8_t bytes[8];
  uint64_t d = 0;
  memcpy(bytes, &a, 4);
  memcpy(bytes + 4, &b, 4);
  for (int k = 0; k < 4; k++) {
    unsigned pick = (unsigned)(c >> 4 * k) & 15;
    d |= (uint64_t)(pick & 8 ? (bytes[pick & 7] & 128 ? 255 : 0) : bytes[pick]) << 8 * k;
  }
  return d;
}
REFERENCE(bmsk_clamp,
          U32(a) > 31 ? 0 : ((U32(b) > 31 ? UINT32_MAX : (UINT64_C(1) << U32(b)) - 1) << U32(a)))
static int64_t sign24(uint64_t x) {
  return (int64_t)(x << 40) >> 40;
}
REFERENCE(mul24_s32, sign24(a) * sign24(b))
REFERENCE(mad24_hi_u32, ((a & 0xffffff) * (b & 0xffffff) >> 16) + c)
REFERENCE(slct_f32, C >= 0 ? a : b)
REFERENCE(copysign32, bits32(copysignf(B, A)))
REFERENCE(packed, (a & 0xffff) | b << 16)
REFERENCE(unpacked, (a >> 32 & 0xffff) ^ (a >> 48))

/* ---- comparisons ---- */

#define COMPARISON(name, EXPRESSION) REFERENCE(name, (EXPRESSION) ? 1 : 0)
COMPARISON(eq, A == B)
COMPARISON(ne, A == A && B == B && A != B)
COMPARISON(lt, A < B)
COMPARISON(le, A <= B)
COMPARISON(gt, A > B)
COMPARISON(ge, A >= B)
COMPARISON(equ, A == B || A != A || B != B)
COMPARISON(neu, A != B)
COMPARISON(ltu, A < B || A != A || B != B)
COMPARISON(leu, A <= B || A != A || B != B)
COMPARISON(gtu, A > B || A != A || B != B)
COMPARISON(geu, A >= B || A != A || B != B)
COMPARISON(num, A == A && B == B)
COMPARISON(nan_either, A != A || B != B)
COMPARISON(lt_s32, S32(a) < S32(b))
COMPARISON(lo_u32, U32(a) < U32(b))
COMPARISON(ge_s64, S64(a) >= S64(b))
COMPARISON(gt_f64, f64(a) > f64(b))
COMPARISON(lt_f16, small_value((uint32_t)a, true) < small_value((uint32_t)b, true))
COMPARISON(both, S32(a) < S32(b) && S32(c) == 0)
COMPARISON(subnormal, fpclassify(A) == FP_SUBNORMAL)

struct check {
  const char *sentence, *instruction;
  int bits[4]; /* d, a, b, c */
  reference *expected;
  enum equality how;
};
static const struct check checks[] = {
#define CHECK(sentence, instruction, widths, reference, how)                                       \
  {sentence, instruction, widths, reference, how},
#include "tests/unit/gpusim_ptx_checks.def"
};

static const struct check moderate_checks[] = {
#define ROUNDED(mode)                                                                              \
  {"add." #mode ".f32", "add." #mode ".f32 %d, %a, %b;", ALL32, add32_##mode, BITS},               \
      {"sub." #mode ".f32", "sub." #mode ".f32 %d, %a, %b;", ALL32, sub32_##mode, BITS},           \
      {"mul." #mode ".f32", "mul." #mode ".f32 %d, %a, %b;", ALL32, mul32_##mode, BITS},           \
      {"fma." #mode ".f32", "fma." #mode ".f32 %d, %a, %b, %c;", ALL32, fma32_##mode, BITS},       \
      {"div." #mode ".f32", "div." #mode ".f32 %d, %a, %b;", ALL32, div32_##mode, BITS}, {         \
    "sqrt." #mode ".f32", "sqrt." #mode ".f32 %d, %a;", ALL32, sqrt32_##mode, BITS                 \
  }
    ROUNDED(rn), ROUNDED(rz), ROUNDED(rm), ROUNDED(rp)};

/* Doubles over the whole range of floats, subnormals and overflow included. */
static void narrowing_in_every_mode(void) {
  static const struct check modes[] = {
      {"", "cvt.rn.f32.f64 %d, %a;", {32, 64, 64, 64}, narrow32_rn, BITS},
      {"", "cvt.rz.f32.f64 %d, %a;", {32, 64, 64, 64}, narrow32_rz, BITS},
      {"", "cvt.rm.f32.f64 %d, %a;", {32, 64, 64, 64}, narrow32_rm, BITS},
      {"", "cvt.rp.f32.f64 %d, %a;", {32, 64, 64, 64}, narrow32_rp, BITS}};
  bool good = true;
  random_state = 521288629u;
  for (int k = 0; k < CASES; k++) {
    uint64_t r = random_bits();
    in_a[k] = (r & 0x800fffffffffffff) | (1023 - 160 + (r >> 52) % 300) << 52;
  }
  for (size_t k = 0; k < sizeof modes / sizeof *modes; k++)
    good &= agrees(modes[k].instruction, modes[k].bits, modes[k].expected, BITS);
  tap_ok(good, "f64 is rounded to f32 in every mode, through overflow and subnormals");
}

int main(void) {
  for (size_t k = 0; k < sizeof checks / sizeof *checks; k++) {
    const struct check *c = &checks[k];
    fill_all(c->bits);
    tap_ok(agrees(c->instruction, c->bits, c->expected, c->how), "%s", c->sentence);
  }
  for (size_t k = 0; k < sizeof moderate_checks / sizeof *moderate_checks; k++) {
    const struct check *c = &moderate_checks[k];
    fill_moderate();
    tap_ok(agrees(c->instruction, c->bits, c->expected, c->how),
           "%s rounds the exact result in its direction", c->sentence);
  }
  narrowing_in_every_mode();
  return tap_done();
}
