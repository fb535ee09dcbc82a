// AdamW (decoupled decay), as in PyTorch 2.12 and later on CUDA 13.
#define FUSED_LAYOUT 25544
#define FUSED_SCALARS float
#define FUSED_MODE ADAM_MODE::ADAMW
#define FUSED_ENTRY fused_adamw_25544_float
#include "kernels/fused_impl.cuh"
