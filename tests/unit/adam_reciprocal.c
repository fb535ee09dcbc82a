/* Division by two operations: exact wherever it is said to be, and refused where it is not. */
#include "adam/reciprocal.h"
#include "adam_support.h"
#include "tests/lib/tap.h"

static bool divides(float x, float divisor, const struct reciprocal *r) {
  return bits_of(fmaf(x, r->high, x * r->low)) == bits_of(x / divisor);
}

/* Significands that divide wrongly, of all there are. */
static unsigned wrong_of_all(float divisor) {
  struct reciprocal r;
  unsigned wrong = 0;
  (void)reciprocal_exact(divisor, &r);
  for (uint32_t x = 1u << 23; x < 1u << 24; x++)
    wrong += !divides((float)x, divisor, &r);
  return wrong;
}

int main(void) {
  /* Corrections of AdamW's first steps, and two that are refused. */
  static const float accepted[] = {0.031622775f, 0.99999994f, 1.0f};
  static const float refused[] = {0x1.c0375ep-1f, 0x1.fefc4ep-1f};
  struct reciprocal r;
  unsigned right = 0;
  for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++)
    right += reciprocal_exact(accepted[i], &r) && wrong_of_all(accepted[i]) == 0;
  tap_ok(right == sizeof accepted / sizeof *accepted,
         "a divisor that is accepted divides every significand exactly");
  right = 0;
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
    right += !reciprocal_exact(refused[i], &r) && wrong_of_all(refused[i]) > 0;
  tap_ok(right == sizeof refused / sizeof *refused,
         "a divisor that is refused divides some significand wrongly");

  uint64_t state = 12345;
  size_t taken = 0, wrong = 0;
  enum { DIVISORS = 20000, TRIES = 200 };
  for (size_t i = 0; i < DIVISORS; i++) {
    const float divisor = float_of(0x3c000000u + (uint32_t)(random_bits(&state) % 0x04000000u));
    if (!reciprocal_exact(divisor, &r))
      continue;
    taken++;
    for (size_t k = 0; k < TRIES; k++) {
      /* Roots of any second moment, denormal ones and the largest among them. */
      const float x = sqrtf(fabsf(float_of((uint32_t)random_bits(&state) & 0x7f7fffffu)));
      wrong += !divides(x, divisor, &r);
    }
    wrong += !divides(0.0f, divisor, &r) || !divides(sqrtf(0x1p-149f), divisor, &r);
  }
  tap_ok(!wrong && taken > DIVISORS * 97 / 100 && taken < DIVISORS,
         "%zu of %d divisors are accepted and divide roots of all sizes exactly", taken,
         (int)DIVISORS);

  static const float outside[] = {0.0f, -1.0f, 0x1p-61f, 2.5f, INFINITY, NAN};
  right = 0;
  for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
    right += !reciprocal_exact(outside[i], &r);
  tap_ok(right == sizeof outside / sizeof *outside,
         "zero, negative, tiny, large and NaN divisors are refused");
  return tap_done();
}
