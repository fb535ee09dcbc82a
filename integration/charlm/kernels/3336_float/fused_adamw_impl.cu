// AdamW (decoupled decay), as in PyTorch 2.11.
#define FUSED_LAYOUT 3336
#define FUSED_SCALARS float
#define FUSED_MODE ADAM_MODE::ADAMW
#define FUSED_ENTRY fused_adamw_3336_float
#include "kernels/fused_impl.cuh"
