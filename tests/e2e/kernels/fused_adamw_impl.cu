#define VARIANT_MODE ADAM_MODE::ADAMW
#include "variant.cuh"
