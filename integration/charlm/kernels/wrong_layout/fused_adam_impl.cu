// Adam (L2 penalty), reading a metadata that is eight bytes longer.
#define FUSED_LAYOUT 3344
#define FUSED_SCALARS float
#define FUSED_MODE ADAM_MODE::ORIGINAL
#define FUSED_ENTRY fused_adam_wrong_layout
#include "kernels/fused_impl.cuh"
