#define TYPED_MODE ADAM_MODE::ORIGINAL
#define TYPED_LISTS 4
#include "typed.cuh"
