/* Bias corrections and step size, with the roundings of each generation (adam.h). The device's powf is
   not libm's: a caller that has proof of another power asks for its neighbours by `nudge`. */
#include "scalars.h"
#include <math.h>
#include <string.h>

/* The version of pow that glibc 2.28 has; the later one differs only in leaving out the old error
 * handling. */
#if defined __GLIBC__ && defined __x86_64__
__asm__(".symver pow, pow@GLIBC_2.2.5");
#elif defined __GLIBC__ && defined __aarch64__
__asm__(".symver pow, pow@GLIBC_2.17");
#endif

const char *generation_name(enum adam_generation generation) {
  static const char *const names[ADAM_GENERATIONS] = {[ADAM_OLD] = "torch 2.0-2.2",
                                                      [ADAM_DOUBLE] = "torch 2.3-2.10",
                                                      [ADAM_FLOAT] = "torch 2.11+",
                                                      [ADAM_MIXED] =
                                                          "torch 2.12+ with bf16 moments"};
  return (unsigned)generation < ADAM_GENERATIONS ? names[generation] : "unknown";
}

/* `ulps` representable numbers away. Powers of betas are positive: the bits are ordered as the
   numbers are. A power that would leave the finite non-negative numbers stays. */
static float nudge_float(float power, int ulps) {
  int32_t bits;
  memcpy(&bits, &power, sizeof bits);
  const int64_t moved = (int64_t)bits + ulps;
  if (bits < 0 || moved < 0 || moved >= 0x7f800000)
    return power;
  bits = (int32_t)moved;
  memcpy(&power, &bits, sizeof bits);
  return power;
}

static double nudge_double(double power, int ulps) {
  int64_t bits;
  memcpy(&bits, &power, sizeof bits);
  if (bits < 0 || bits + ulps < 0 || bits + ulps >= 0x7ff0000000000000)
    return power;
  bits += ulps;
  memcpy(&power, &bits, sizeof bits);
  return power;
}

void scalars_by_libm(enum adam_generation generation, const struct adam_hyper *hyper, float step,
                     int nudge1, int nudge2, struct adam_scalars *scalars) {
  scalars->lr_decay = (float)hyper->lr * (float)hyper->weight_decay;
  scalars->lr_decay_double = hyper->lr * hyper->weight_decay;
  const double correction1 = 1.0 - nudge_double(pow(hyper->beta1, (double)step), nudge1);
  const double correction2 = 1.0 - nudge_double(pow(hyper->beta2, (double)step), nudge2);
  scalars->bias_correction2_sqrt_double = sqrt(correction2);
  scalars->step_size_double = hyper->lr / correction1;
  switch (generation) {
  case ADAM_FLOAT: {
    const float power1 = nudge_float(powf((float)hyper->beta1, step), nudge1);
    const float power2 = nudge_float(powf((float)hyper->beta2, step), nudge2);
    scalars->bias_correction2_sqrt = sqrtf(1.0f - power2);
    scalars->step_size = (float)hyper->lr / (1.0f - power1);
    return;
  }
  case ADAM_MIXED:
    scalars->bias_correction2_sqrt = (float)sqrt(correction2);
    scalars->step_size = (float)hyper->lr / (float)correction1;
    return;
  default:
    scalars->bias_correction2_sqrt =
        generation == ADAM_OLD ? sqrtf((float)correction2) : (float)sqrt(correction2);
    scalars->step_size = (float)(hyper->lr / (double)(float)correction1);
  }
}
