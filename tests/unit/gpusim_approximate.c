/* What PTX leaves open: the error of approximate instructions keeps to PTX's bounds, differs with
   GPUSIM_APPROX_SEED and repeats with it; GPUSIM_CONTRACT fuses products and sums, and only those
   that PTX lets it fuse. Both builds of the interpreter's loops give the same bits. */
#include "tests/gpusim/ptx.h"
#include "tests/lib/tap.h"
#include "tests/unit/gpusim_ptx.h"
#include <math.h>

enum { CASES = 4096 };
static float in_a[CASES], in_b[CASES], in_c[CASES];
static uint32_t random_state = 2463534242u;

static uint32_t random_bits(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 17;
  return random_state ^= random_state << 5;
}
/* Even in the exponent, between 2^low and 2^high. */
static float random_float(int low, int high, bool any_sign) {
  float mantissa = 1 + (float)(random_bits() >> 9) * 0x1p-23f;
  float x = ldexpf(mantissa, low + (int)(random_bits() % (uint32_t)(high - low)));
  return any_sign && random_bits() & 1 ? -x : x;
}

/* d = body of a, b, c, for every case. */
static bool compute(const char *body, uint32_t *out) {
  char ptx[2048];
  int error;
  snprintf(
      ptx, sizeof ptx,
      ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 d, "
      ".param .u64 a, .param .u64 b, .param .u64 c)\n{\n.reg .pred %%p; .reg .b32 %%i, %%n; "
      ".reg .b64 %%at, %%base; .reg .f32 %%a, %%b, %%c, %%d, %%e, %%f;\n"
      "mov.u32 %%i, %%ctaid.x;\nmov.u32 %%n, %%tid.x;\nmad.lo.s32 %%i, %%i, 128, %%n;\n"
      "mul.wide.u32 %%at, %%i, 4;\n"
      "ld.param.u64 %%base, [a];\nadd.u64 %%base, %%base, %%at;\nld.global.f32 %%a, [%%base];\n"
      "ld.param.u64 %%base, [b];\nadd.u64 %%base, %%base, %%at;\nld.global.f32 %%b, [%%base];\n"
      "ld.param.u64 %%base, [c];\nadd.u64 %%base, %%base, %%at;\nld.global.f32 %%c, [%%base];\n"
      "%s\nld.param.u64 %%base, [d];\nadd.u64 %%base, %%base, %%at;\n"
      "st.global.f32 [%%base], %%d;\nret;\n}\n",
      body);
  struct gpusim_image *image = gpusim_image_load(ptx, &error);
  struct gpusim_kernel *kernel = image ? gpusim_image_kernel(image, "k") : NULL;
  uintptr_t d = device_new(sizeof in_a), a = device_new(sizeof in_a);
  uintptr_t b = device_new(sizeof in_a), c = device_new(sizeof in_a);
  memcpy(host(a), in_a, sizeof in_a);
  memcpy(host(b), in_b, sizeof in_b);
  memcpy(host(c), in_c, sizeof in_c);
  void *arguments[] = {&d, &a, &b, &c};
  int code = kernel ? launch(kernel, CASES / 128, 128, 4, arguments) : -1;
  memcpy(out, host(d), sizeof in_a);
  if (code)
    printf("# %s: %d %s %s\n", body, code, launch_error, last_trace);
  gpusim_image_free(image);
  device_reset();
  return !code;
}

static float f32(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
static uint32_t bits32(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
static double unit_of(double x) {
  return fmax(ldexp(1, ilogb(x) - 23), 0x1p-149);
}

/* ---- approximations: exact values and PTX's bounds, written down a second time ---- */

struct approximation {
  const char *instruction;
  double (*exact)(double x, double y);
  double (*bound)(double x, double exact);
  int low, high; /* exponents of a */
  bool any_sign;
};
#define EXACT(name, EXPRESSION)                                                                    \
  static double name(double x, double y) {                                                         \
    (void)x, (void)y;                                                                              \
    return EXPRESSION;                                                                             \
  }
EXACT(quotient, x / y)
EXACT(reciprocal, 1 / x)
EXACT(root, sqrt(x))
EXACT(reciprocal_root, 1 / sqrt(x))
EXACT(power_of_two, exp2(x))
EXACT(logarithm, log2(x))
EXACT(sine, sin(x))
EXACT(cosine, cos(x))
EXACT(tangent, tanh(x))
#define BOUND(name, EXPRESSION)                                                                    \
  static double name(double x, double exact) {                                                     \
    (void)x, (void)exact;                                                                          \
    return EXPRESSION;                                                                             \
  }
BOUND(one_unit, unit_of(exact))
BOUND(two_units, 2 * unit_of(exact))
BOUND(relative_23, fabs(exact) * 0x1p-23)
BOUND(relative_22_9, fabs(exact) * exp2(-22.9))
BOUND(relative_22, fabs(exact) * 0x1p-22)
BOUND(of_logarithm, x > 0.5 && x < 2 ? 0x1p-22 : fabs(exact) * 0x1p-22)
BOUND(of_sine, exp2(fabs(x) <= 2 * 3.14159265358979 ? -20.5 : -14.7))
BOUND(relative_11, fabs(exact) * 0x1p-11)

static const struct approximation approximations[] = {
    {"div.approx.f32 %d, %a, %b;", quotient, two_units, -40, 40, true},
    {"div.full.f32 %d, %a, %b;", quotient, two_units, -40, 40, true},
    {"rcp.approx.f32 %d, %a;", reciprocal, one_unit, -100, 100, true},
    {"rcp.approx.ftz.f32 %d, %a;", reciprocal, one_unit, -100, 100, true},
    {"sqrt.approx.f32 %d, %a;", root, relative_23, -120, 120, false},
    {"rsqrt.approx.f32 %d, %a;", reciprocal_root, relative_22_9, -120, 120, false},
    {"ex2.approx.f32 %d, %a;", power_of_two, relative_22, -8, 6, true},
    {"ex2.approx.f32 %d, %a;", power_of_two, two_units, -8, 6, true},
    {"lg2.approx.f32 %d, %a;", logarithm, of_logarithm, -100, 100, false},
    {"lg2.approx.f32 %d, %a;", logarithm, of_logarithm, -1, 1, false},
    {"sin.approx.f32 %d, %a;", sine, of_sine, -10, 8, true},
    {"cos.approx.f32 %d, %a;", cosine, of_sine, -10, 8, true},
    {"tanh.approx.f32 %d, %a;", tangent, relative_11, -10, 3, true},
};

static void test_approximation(const struct approximation *f) {
  static uint32_t nearest[CASES], one[CASES], again[CASES], plain[CASES], two[CASES];
  int rounded = 0, beyond = 0, moved = 0, differ = 0;
  for (int k = 0; k < CASES; k++) {
    in_a[k] = random_float(f->low, f->high, f->any_sign);
    in_b[k] = random_float(-40, 40, true);
  }
  bool ran = true;
  const struct {
    int seed;
    bool plain;
    uint32_t *out;
  } runs[] = {
      {0, false, nearest}, {1, false, one}, {1, false, again}, {1, true, plain}, {2, false, two}};
  for (size_t k = 0; k < sizeof runs / sizeof *runs; k++) {
    gpusim_settings.approx_seed = runs[k].seed;
    ptx_select_plain(runs[k].plain);
    ran &= compute(f->instruction, runs[k].out);
  }
  ptx_select_plain(false);
  for (int k = 0; k < CASES; k++) {
    double exact = f->exact(in_a[k], in_b[k]), bound = f->bound(in_a[k], exact) * (1 + 0x1p-40);
    rounded += nearest[k] == bits32((float)exact);
    beyond += !(fabs(f32(one[k]) - exact) <= bound) || !(fabs(f32(two[k]) - exact) <= bound);
    moved += one[k] != nearest[k];
    differ += one[k] != two[k];
  }
  tap_ok(ran && rounded == CASES, "%s without a seed is the true value, rounded", f->instruction);
  tap_ok(ran && !beyond, "%s keeps to PTX's bound", f->instruction);
  tap_ok(moved > CASES / 20 && differ > CASES / 20 && !memcmp(one, again, sizeof one) &&
             !memcmp(one, plain, sizeof one),
         "%s is off by a seeded error that repeats in either build", f->instruction);
}

static void test_exact(void) {
  static const struct {
    const char *instruction;
    float a, d;
  } cases[] = {{"rcp.approx.f32 %d, %a;", 4, 0.25f},      {"sqrt.approx.f32 %d, %a;", 9, 3},
               {"rsqrt.approx.f32 %d, %a;", 16, 0.25f},   {"ex2.approx.f32 %d, %a;", 0, 1},
               {"ex2.approx.f32 %d, %a;", -3, 0.125f},    {"lg2.approx.f32 %d, %a;", 1, 0},
               {"lg2.approx.f32 %d, %a;", 8, 3},          {"sin.approx.f32 %d, %a;", 0, 0},
               {"cos.approx.f32 %d, %a;", 0, 1},          {"tanh.approx.f32 %d, %a;", 0, 0},
               {"ex2.approx.f32 %d, %a;", 200, INFINITY}, {"rcp.approx.f32 %d, %a;", 0, INFINITY},
               {"lg2.approx.f32 %d, %a;", 0, -INFINITY}};
  static uint32_t out[CASES];
  bool right = true;
  gpusim_settings.approx_seed = 1;
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
    in_a[0] = cases[k].a;
    bool good = compute(cases[k].instruction, out) && out[0] == bits32(cases[k].d);
    if (!good)
      printf("# %s of %g: %g, expected %g\n", cases[k].instruction, (double)cases[k].a,
             (double)f32(out[0]), (double)cases[k].d);
    right &= good;
  }
  tap_ok(right,
         "approximations are exact where the true value is a float, zeros and infinities too");
}

/* ---- contraction ---- */

struct contraction {
  const char *sentence, *body;
  float (*apart)(float a, float b, float c);
  float (*fused)(float a, float b, float c);
};
#define VALUE(name, EXPRESSION)                                                                    \
  static float name(float a, float b, float c) {                                                   \
    return EXPRESSION;                                                                             \
  }
VALUE(product_plus, a *b + c)
VALUE(fused_plus, fmaf(a, b, c))
VALUE(product_minus, a *b - c)
VALUE(fused_minus, fmaf(a, b, -c))
VALUE(minus_product, c - a * b)
VALUE(fused_from, fmaf(-a, b, c))
VALUE(both_uses, (a * b + c) * (a * b))
VALUE(both_uses_fused, fmaf(a, b, c) * (a * b))

static const struct contraction contractions[] = {
    {"a product and a sum fuse", "mul.f32 %e, %a, %b;\nadd.f32 %d, %e, %c;", product_plus,
     fused_plus},
    {"in either order", "mul.f32 %e, %a, %b;\nadd.f32 %d, %c, %e;", product_plus, fused_plus},
    {"a product less something fuses", "mul.f32 %e, %a, %b;\nsub.f32 %d, %e, %c;", product_minus,
     fused_minus},
    {"something less a product fuses", "mul.f32 %e, %a, %b;\nsub.f32 %d, %c, %e;", minus_product,
     fused_from},
    {"a product's other readers still get it",
     "mul.f32 %e, %a, %b;\nadd.f32 %f, %e, %c;\nmul.f32 %d, %f, %e;", both_uses, both_uses_fused},
    {"mul.rn stays apart", "mul.rn.f32 %e, %a, %b;\nadd.f32 %d, %e, %c;", product_plus,
     product_plus},
    {"add.rn stays apart", "mul.f32 %e, %a, %b;\nadd.rn.f32 %d, %e, %c;", product_plus,
     product_plus},
    {"operands that changed in between stay apart",
     "mul.f32 %e, %a, %b;\nmov.f32 %a, %c;\nadd.f32 %d, %e, %c;", product_plus, product_plus},
    {"a label in between keeps apart",
     "mul.f32 %e, %a, %b;\nsetp.ne.f32 %p, %c, %c;\n@%p bra L;\nL:\nadd.f32 %d, %e, %c;",
     product_plus, product_plus},
};

static void test_contraction(const struct contraction *f) {
  static uint32_t out[CASES];
  int wrong = 0, shown = 0;
  for (int k = 0; k < CASES; k++) {
    in_a[k] = random_float(-3, 3, true);
    in_b[k] = random_float(-3, 3, true);
    in_c[k] = random_float(-3, 3, true);
  }
  for (int on = 0; on < 2; on++) {
    gpusim_settings.contract = on;
    wrong += !compute(f->body, out);
    for (int k = 0; k < CASES; k++) {
      float want = (on ? f->fused : f->apart)(in_a[k], in_b[k], in_c[k]);
      wrong += out[k] != bits32(want);
      shown += f->apart(in_a[k], in_b[k], in_c[k]) != f->fused(in_a[k], in_b[k], in_c[k]);
    }
  }
  gpusim_settings.contract = 0;
  bool stays = f->fused == product_plus;
  tap_ok(!wrong && (stays || shown > CASES / 10), "GPUSIM_CONTRACT: %s", f->sentence);
}

int main(void) {
  for (size_t k = 0; k < sizeof approximations / sizeof *approximations; k++)
    test_approximation(&approximations[k]);
  test_exact();
  for (size_t k = 0; k < sizeof contractions / sizeof *contractions; k++)
    test_contraction(&contractions[k]);
  return tap_done();
}
