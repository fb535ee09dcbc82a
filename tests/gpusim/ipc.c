/* Legacy IPC as far as one process goes: a handle is given for memory of cuMemAlloc and refused for
   mapped and pooled memory, as drivers do (facts of UCX, issue 7110: virtual memory has none). Opening
   one is not simulated: the process that made a handle may not open it, and another sees none of
   this one's memory. */
#include "tests/gpusim/driver.h"
#include <string.h>
#include <unistd.h>

CUresult cuIpcGetMemHandle(CUipcMemHandle *ipc, CUdeviceptr pointer) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  if (ipc == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  gpusim_memory_lock_shared();
  const struct gpusim_block *block =
      (struct gpusim_block *)gpusim_table_find(&gpusim_blocks, pointer);
  const bool plain = block != NULL && block->kind == BLOCK_DEVICE && block->pool == NULL;
  const struct {
    pid_t process;
    uintptr_t base;
    size_t bytes;
    uint64_t id;
  } named = {getpid(), plain ? block->span.low : 0, plain ? block->span.bytes : 0,
             plain ? block->id : 0};
  gpusim_memory_unlock();
  if (!plain)
    return CUDA_ERROR_INVALID_VALUE;
  memset(ipc, 0, sizeof *ipc);
  memcpy(ipc, &named, sizeof named);
  return CUDA_SUCCESS;
}
