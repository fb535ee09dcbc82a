// Adam (L2 penalty), with an exp_avg that fuses the other product.
#define FUSED_LAYOUT 3336
#define FUSED_SCALARS float
#define FUSED_MODE ADAM_MODE::ORIGINAL
#define FUSED_ENTRY fused_adam_other_fusion
#define FUSED_OTHER_FUSION
#include "kernels/fused_impl.cuh"
