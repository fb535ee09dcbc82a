/* What the tests of calibration and of the running proof share: the companion's table, every kind of kernel, and launches'
   scalars. */
#ifndef PROOF_SUPPORT_H
#define PROOF_SUPPORT_H
#include "shim/elements.h"

static const struct adam_api *api;

enum { KINDS = 5 };
static const struct {
  const char *name;
  enum adam_type type, state;
} kinds[KINDS] = {{"fp32", ADAM_TYPE_FLOAT, ADAM_TYPE_FLOAT},
                  {"fp64", ADAM_TYPE_DOUBLE, ADAM_TYPE_DOUBLE},
                  {"fp16", ADAM_TYPE_HALF, ADAM_TYPE_HALF},
                  {"bf16", ADAM_TYPE_BFLOAT16, ADAM_TYPE_BFLOAT16},
                  {"fp32 with bf16 moments", ADAM_TYPE_FLOAT, ADAM_TYPE_BFLOAT16}};

static struct kernel_shape shape_at(int kind, int mode, int amsgrad) {
  return (struct kernel_shape){(enum adam_mode)mode, kinds[kind].type, kinds[kind].state,
                               amsgrad != 0};
}

static const struct adam_hyper launches[] = {
    {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .weight_decay = 0.01, .eps = 1e-8},
    {.lr = 3e-4, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1, .eps = 1e-8},
    {.lr = 1e-5, .beta1 = 0.9, .beta2 = 0.999, .weight_decay = 0.1, .eps = 1e-6},
    {.lr = 2e-3, .beta1 = 0.8, .beta2 = 0.99, .weight_decay = 1e-4, .eps = 1e-10},
    {.lr = 1.0, .beta1 = 0.0, .beta2 = 0.5, .weight_decay = 0.9, .eps = 1e-3},
    {.lr = 1e-12, .beta1 = 0.9999, .beta2 = 0.99999, .weight_decay = 1e-6, .eps = 1e-16},
};
enum { LAUNCHES = sizeof launches / sizeof *launches };
#endif
