#define TYPED_MODE ADAM_MODE::ADAMW
#define TYPED_LISTS 4
#include "typed.cuh"
