#define VARIANT_MODE ADAM_MODE::ORIGINAL
#include "variant.cuh"
