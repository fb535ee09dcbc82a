// AdamW (decoupled decay), reading a metadata that is eight bytes longer.
#define FUSED_LAYOUT 3344
#define FUSED_SCALARS float
#define FUSED_MODE ADAM_MODE::ADAMW
#define FUSED_ENTRY fused_adamw_wrong_layout
#include "kernels/fused_impl.cuh"
