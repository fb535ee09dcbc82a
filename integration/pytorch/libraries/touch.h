/* Work that the CPU does in a kernel's place is shown to whoever watches launches: an empty kernel
   takes its operands' addresses as parameters. */
#ifndef OFFLOAD_PYTORCH_TOUCH_H
#define OFFLOAD_PYTORCH_TOUCH_H
#include <cuda.h>

enum touch_kernel {
#define KERNEL(word, name) TOUCH_##word,
#include "integration/pytorch/libraries/touch.def"
#undef KERNEL
  TOUCH_KERNELS
};

/* Gives a thread that has no context the primary one of `device`, as the runtime does, and keeps
   the reference, as it keeps its own. */
CUresult touch_need_context(int device);
/* Launches in `stream` of the thread's context, more than once if there are many addresses, never
   for none. Waits for nothing; a stream that captures gets nodes. */
CUresult touch(enum touch_kernel, CUstream stream, const CUdeviceptr *addresses, int count);
#endif
