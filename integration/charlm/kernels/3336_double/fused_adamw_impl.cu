// AdamW (decoupled decay), as in PyTorch 2.3 to 2.10.
#define FUSED_LAYOUT 3336
#define FUSED_SCALARS double
#define FUSED_MODE ADAM_MODE::ADAMW
#define FUSED_ENTRY fused_adamw_3336_double
#include "kernels/fused_impl.cuh"
