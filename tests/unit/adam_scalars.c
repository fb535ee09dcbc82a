/* Step size and bias corrections: the roundings of each generation, said again here in other
   words, and the nudges that the running proof asks for. */
#include "adam_support.h"
#include "tests/lib/tap.h"

static const double lrs[] = {1e-3, 1e-5, 0.1, 3.1415926e-4, 0.0, 1e30};
static const double beta1s[] = {0.9, 0.0, 0.8, 0.95, 1 - 0x1p-40};
static const double beta2s[] = {0.999, 0.95, 0.98, 0.9999, 0.0};
static const float steps[] = {1, 2, 3, 10, 100, 137, 1000, 12345, 100000, 16777216};
#define COUNT(a) (sizeof(a) / sizeof *(a))

static bool same(float a, float b) {
  return bits_of(gpu_nan(a)) == bits_of(gpu_nan(b));
}

static bool same_double(double a, double b) {
  return bits_of_wide(a) == bits_of_wide(b) || (isnan(a) && isnan(b));
}

/* The statements of each generation's kernels, one rounding each. */
static bool matches(enum adam_generation generation, const struct adam_hyper *h, float step) {
  struct adam_scalars s;
  scalars_by_libm(generation, h, step, 0, 0, &s);
  float expected_step_size, expected_correction;
  const double power1 = pow(h->beta1, (double)step), power2 = pow(h->beta2, (double)step);
  if (generation == ADAM_FLOAT) {
    float b1 = (float)h->beta1, b2 = (float)h->beta2, lr = (float)h->lr;
    float bc1 = 1.0f - powf(b1, step);
    float bc2 = 1.0f - powf(b2, step);
    expected_correction = sqrtf(bc2);
    expected_step_size = lr / bc1;
  } else if (generation == ADAM_MIXED) {
    const float bc1 = (float)(1.0 - power1);
    expected_correction = (float)sqrt(1.0 - power2);
    expected_step_size = (float)h->lr / bc1;
  } else {
    float bc1 = (float)(1.0 - power1);
    expected_correction =
        generation == ADAM_OLD ? sqrtf((float)(1.0 - power2)) : (float)sqrt(1.0 - power2);
    expected_step_size = (float)(h->lr / (double)bc1);
  }
  return same(s.step_size, expected_step_size) &&
         same(s.bias_correction2_sqrt, expected_correction) &&
         s.lr_decay_double == h->lr * h->weight_decay &&
         same_double(s.bias_correction2_sqrt_double, sqrt(1.0 - power2)) &&
         same_double(s.step_size_double, h->lr / (1.0 - power1)) &&
         same(s.lr_decay, (float)h->lr * (float)h->weight_decay);
}

static size_t mismatches(enum adam_generation generation) {
  size_t wrong = 0;
  for (size_t l = 0; l < COUNT(lrs); l++)
    for (size_t b = 0; b < COUNT(beta1s); b++)
      for (size_t t = 0; t < COUNT(steps); t++) {
        const struct adam_hyper h = {lrs[l], beta1s[b], beta2s[b], 0.1, 1e-8, false};
        wrong += !matches(generation, &h, steps[t]);
      }
  return wrong;
}

static const struct adam_hyper ordinary = {1e-3, 0.9, 0.999, 0.01, 1e-8, false};

static void test_nudges(void) {
  struct adam_scalars plain, up, down, other;
  const float step = 102; /* where libm's and the device's powf differ first */
  float power = powf((float)ordinary.beta2, step);
  bool steps_of_one = true, neighbours = true;
  for (int n = -4; n <= 4; n++) {
    float moved = power;
    for (int i = 0; i < n; i++)
      moved = nextafterf(moved, INFINITY);
    for (int i = 0; i > n; i--)
      moved = nextafterf(moved, 0.0f);
    scalars_by_libm(ADAM_FLOAT, &ordinary, step, 0, n, &other);
    neighbours = neighbours && same(other.bias_correction2_sqrt, sqrtf(1.0f - moved));
  }
  tap_ok(neighbours,
         "a nudge of beta2's power by n gives the n-th neighbouring float's correction");

  scalars_by_libm(ADAM_FLOAT, &ordinary, step, 0, 0, &plain);
  scalars_by_libm(ADAM_FLOAT, &ordinary, step, 0, 1, &up);
  scalars_by_libm(ADAM_FLOAT, &ordinary, step, 0, -1, &down);
  steps_of_one = up.bias_correction2_sqrt != plain.bias_correction2_sqrt &&
                 down.bias_correction2_sqrt != plain.bias_correction2_sqrt &&
                 up.step_size == plain.step_size;
  tap_ok(steps_of_one, "a nudge of one unit shows in that correction and not in the other");

  const struct adam_hyper slow = {1e-3, 0.999, 0.9, 0.01, 1e-8, false};
  scalars_by_libm(ADAM_FLOAT, &slow, 3, 0, 0, &plain);
  scalars_by_libm(ADAM_FLOAT, &slow, 3, 1, 0, &up);
  tap_ok(up.step_size != plain.step_size && up.bias_correction2_sqrt == plain.bias_correction2_sqrt,
         "a nudge of beta1's power shows in the step size alone");

  double wide_power = nextafter(pow(ordinary.beta2, 5.0), INFINITY);
  scalars_by_libm(ADAM_DOUBLE, &ordinary, 5, 0, 1, &other);
  tap_ok(same(other.bias_correction2_sqrt, (float)sqrt(1.0 - wide_power)),
         "with double scalars a nudge is a unit of the double power");
  bool all = true;
  for (int generation = 0; generation < ADAM_GENERATIONS; generation++) {
    scalars_by_libm((enum adam_generation)generation, &ordinary, 5, -1, 1, &other);
    const double power1 = nextafter(pow(ordinary.beta1, 5.0), 0);
    all = all && other.bias_correction2_sqrt_double == sqrt(1.0 - wide_power) &&
          other.step_size_double == ordinary.lr / (1.0 - power1);
  }
  tap_ok(all, "so it is for doubles in memory, in every generation");

  const struct adam_hyper zero = {1e-3, 0.0, 0.0, 0.01, 1e-8, false};
  bool sane = true;
  for (int n = -4; n <= 0; n++) {
    scalars_by_libm(ADAM_FLOAT, &zero, 2, n, n, &other);
    sane = sane && other.bias_correction2_sqrt == 1.0f && other.step_size == 1e-3f;
    scalars_by_libm(ADAM_DOUBLE, &zero, 2, n, n, &other);
    sane = sane && other.bias_correction2_sqrt == 1.0f && other.step_size == 1e-3f;
  }
  tap_ok(sane, "a power of zero is not nudged below zero");
}

int main(void) {
  for (int generation = 0; generation < ADAM_GENERATIONS; generation++)
    tap_ok(!mismatches((enum adam_generation)generation),
           "the scalars of %s are rounded as its kernels round them",
           generation_name((enum adam_generation)generation));
  size_t differ = 0;
  for (int t = 1; t <= 2000; t++) {
    struct adam_scalars old, later;
    scalars_by_libm(ADAM_OLD, &ordinary, (float)t, 0, 0, &old);
    scalars_by_libm(ADAM_DOUBLE, &ordinary, (float)t, 0, 0, &later);
    differ += old.bias_correction2_sqrt != later.bias_correction2_sqrt;
  }
  tap_ok(differ > 100,
         "2.0-2.2 and 2.3-2.10 differ in the root of the bias correction at %zu of "
         "2000 steps",
         differ);
  test_nudges();
  return tap_done();
}
