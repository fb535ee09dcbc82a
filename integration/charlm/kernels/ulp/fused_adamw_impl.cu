// AdamW (decoupled decay), with bias correction 1 one ulp too big from step 3 on.
#define FUSED_LAYOUT 3336
#define FUSED_SCALARS float
#define FUSED_MODE ADAM_MODE::ADAMW
#define FUSED_ENTRY fused_adamw_ulp
#define FUSED_BIAS_ULP
#include "kernels/fused_impl.cuh"
