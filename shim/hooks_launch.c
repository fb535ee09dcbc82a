/* Wrappers of everything that starts kernels but graphs. A recognised launch goes to the step; any other is
   shown to the state rooms and handed on unchanged. */
#include "hooks.h"
#include "state.h"
#include "step.h"

/* True when the step took the launch over, or it can't be made. */
static bool taken(const struct launch *launch, CUresult *result, const char *where) {
  if (step_launch(launch, result)) {
    (void)process_note(*result, where);
    return true;
  }
  *result = state_foreign_launch(launch->function, launch->grid[0],
                                 hook_stream(launch->stream, launch->per_thread),
                                 launch->kernel_parameters, launch->extra);
  return *result != CUDA_SUCCESS; /* what it names can't be brought in from its drive */
}

#define LAUNCH(symbol, is_per_thread)                                                              \
  CUresult hook_##symbol(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,   \
                         unsigned block_x, unsigned block_y, unsigned block_z,                     \
                         unsigned shared_bytes, CUstream stream, void **kernel_parameters,         \
                         void **extra) {                                                           \
    if (process_active()) {                                                                        \
      const struct launch launch = {function,                                                      \
                                    {grid_x, grid_y, grid_z},                                      \
                                    {block_x, block_y, block_z},                                   \
                                    shared_bytes,                                                  \
                                    stream,                                                        \
                                    is_per_thread,                                                 \
                                    true,                                                          \
                                    kernel_parameters,                                             \
                                    extra};                                                        \
      CUresult result;                                                                             \
      if (taken(&launch, &result, #symbol))                                                        \
        return result;                                                                             \
    }                                                                                              \
    const CUresult passed =                                                                        \
        hook_pass_known(symbol, (function, grid_x, grid_y, grid_z, block_x, block_y, block_z,      \
                                 shared_bytes, stream, kernel_parameters, extra));                 \
    if (ahead_open())                                                                              \
      ahead_foreign(function, grid_x, hook_stream(stream, is_per_thread), kernel_parameters);      \
    return passed;                                                                                 \
  }
LAUNCH(cuLaunchKernel, false)
LAUNCH(cuLaunchKernel_ptsz, true)

#define LAUNCH_EX(symbol, is_per_thread)                                                           \
  CUresult hook_##symbol(const CUlaunchConfig *config, CUfunction function,                        \
                         void **kernel_parameters, void **extra) {                                 \
    if (config && process_active()) {                                                              \
      const struct launch launch = {function,                                                      \
                                    {config->gridDimX, config->gridDimY, config->gridDimZ},        \
                                    {config->blockDimX, config->blockDimY, config->blockDimZ},     \
                                    config->sharedMemBytes,                                        \
                                    config->hStream,                                               \
                                    is_per_thread,                                                 \
                                    config->numAttrs == 0,                                         \
                                    kernel_parameters,                                             \
                                    extra};                                                        \
      CUresult result;                                                                             \
      if (taken(&launch, &result, #symbol))                                                        \
        return result;                                                                             \
    }                                                                                              \
    const CUresult passed = hook_pass_known(symbol, (config, function, kernel_parameters, extra)); \
    if (config && ahead_open())                                                                    \
      ahead_foreign(function, config->gridDimX, hook_stream(config->hStream, is_per_thread),       \
                    config->numAttrs ? NULL : kernel_parameters);                                  \
    return passed;                                                                                 \
  }
LAUNCH_EX(cuLaunchKernelEx, false)
LAUNCH_EX(cuLaunchKernelEx_ptsz, true)

#define LAUNCH_COOPERATIVE(symbol, is_per_thread)                                                  \
  CUresult hook_##symbol(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,   \
                         unsigned block_x, unsigned block_y, unsigned block_z,                     \
                         unsigned shared_bytes, CUstream stream, void **kernel_parameters) {       \
    if (process_active())                                                                          \
      DRIVER_TRY(state_foreign_launch(function, grid_x, hook_stream(stream, is_per_thread),        \
                                      kernel_parameters, NULL));                                   \
    return hook_pass(symbol, (function, grid_x, grid_y, grid_z, block_x, block_y, block_z,         \
                              shared_bytes, stream, kernel_parameters));                           \
  }
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel, false)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz, true)
