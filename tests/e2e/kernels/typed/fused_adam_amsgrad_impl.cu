#define TYPED_MODE ADAM_MODE::ORIGINAL
#define TYPED_LISTS 5
#include "typed.cuh"
