#define TYPED_MODE ADAM_MODE::ADAMW
#define TYPED_LISTS 5
#include "typed.cuh"
