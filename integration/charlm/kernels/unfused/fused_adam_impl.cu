// Adam (L2 penalty), with a weight decay that is rounded twice.
#define FUSED_LAYOUT 3336
#define FUSED_SCALARS float
#define FUSED_MODE ADAM_MODE::ORIGINAL
#define FUSED_ENTRY fused_adam_unfused
#define FUSED_DECAY_UNFUSED
#include "kernels/fused_impl.cuh"
