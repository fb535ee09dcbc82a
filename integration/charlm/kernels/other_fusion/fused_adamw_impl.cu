// AdamW (decoupled decay), with an exp_avg that fuses the other product.
#define FUSED_LAYOUT 3336
#define FUSED_SCALARS float
#define FUSED_MODE ADAM_MODE::ADAMW
#define FUSED_ENTRY fused_adamw_other_fusion
#define FUSED_OTHER_FUSION
#include "kernels/fused_impl.cuh"
