/* Launches: parameters are packed at the call, the kernel runs on the stream's thread. Also
   occupancy, which is simple arithmetic on a device of 2048 threads and 32 blocks per
   multiprocessor. */
#include "tests/gpusim/clock.h"
#include "tests/gpusim/driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kernel_launch {
  struct gpusim_kernel *kernel;
  struct gpusim_launch shape;
  void **pointers; /* to each parameter, for whoever asks a graph's node */
  uint8_t parameters[];
};

/* What the launch that this thread ran last moved; nothing in threads that only submit. Kept out of
   the launch: as a graph's node it may run in several streams at once. */
static __thread struct gpusim_traffic traffic;

static CUresult run(void *argument) {
  const struct kernel_launch *launch = argument;
  struct gpusim_launch own_shape = launch->shape, *shape = &own_shape;
  char error[512] = "";
  traffic = (struct gpusim_traffic){.measured = false};
  shape->traffic = &traffic;
  gpusim_trace(2, "launch %s, grid %u,%u,%u, block %u,%u,%u, %u bytes shared", shape->name,
               shape->grid[0], shape->grid[1], shape->grid[2], shape->block[0], shape->block[1],
               shape->block[2], shape->dynamic_shared_bytes);
  int result = gpusim_kernel_run(launch->kernel, launch->parameters, shape, error, sizeof error);
  gpusim_count(GPUSIM_COUNT_launches, 1);
  if (result != CUDA_SUCCESS) {
    gpusim_count(GPUSIM_COUNT_kernel_errors, 1);
    gpusim_trace(0, "%s: %s: %s", shape->name, gpusim_error_name((CUresult)result), error);
  }
  return (CUresult)result;
}

/* Any aligned word of the parameters may be a pointer: by-value lists of tensors have hundreds.
   Words that happen to look like one are taken for one. */
static bool touches(void *argument, uintptr_t low, uintptr_t high) {
  const struct kernel_launch *launch = argument;
  for (uint32_t i = 0; i + 8 <= launch->kernel->parameter_bytes; i += 8) {
    uintptr_t word;
    memcpy(&word, launch->parameters + i, sizeof word);
    if (word >= low && word < high)
      return true;
  }
  return false;
}

static void describe(void *argument, char *into, size_t bytes) {
  const struct kernel_launch *launch = argument;
  snprintf(into, bytes, "launch of %s", launch->shape.name);
}

static void drop(void *argument) {
  gpusim_image_free(((struct kernel_launch *)argument)->kernel->image);
  free(((struct kernel_launch *)argument)->pointers);
  free(argument);
}

static void cost(void *argument, struct clock_cost *into) {
  const struct kernel_launch *launch = argument;
  const struct gpusim_traffic *t = &traffic;
  const uint32_t *grid = launch->shape.grid;
  into->kind = CLOCK_KERNEL;
  into->name = launch->shape.name;
  into->blocks = (uint64_t)grid[0] * grid[1] * grid[2];
  into->measured = t->measured;
  into->amount[CLOCK_HBM] = (double)(t->device_read + t->device_written);
  into->amount[CLOCK_UP] = (double)t->host_read;
  into->amount[CLOCK_DOWN] = (double)t->host_written;
  into->amount[CLOCK_ISSUE] = (double)t->instructions;
}

static const struct operation_kind launch_kind = {.name = "launch",
                                                  .capturable = true,
                                                  .node = CU_GRAPH_NODE_TYPE_KERNEL,
                                                  .run = run,
                                                  .drop = drop,
                                                  .touches = touches,
                                                  .describe = describe,
                                                  .cost = cost};

/* ---- parameters ---- */

/* One pointer per parameter, or the packed form of cuda.h's CU_LAUNCH_PARAM_*; never both. */
static CUresult pack(struct kernel_launch *launch, void **pointers, void **extra) {
  const struct gpusim_kernel *kernel = launch->kernel;
  if (pointers != NULL && extra != NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (pointers != NULL) {
    for (int i = 0; i < kernel->parameter_count; i++) {
      if (pointers[i] == NULL)
        return CUDA_ERROR_INVALID_VALUE;
      memcpy(launch->parameters + kernel->parameters[i].offset, pointers[i],
             kernel->parameters[i].bytes);
    }
    return CUDA_SUCCESS;
  }
  const void *buffer = NULL;
  size_t bytes = 0;
  for (; extra != NULL && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
      buffer = extra[1];
    else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE && extra[1] != NULL)
      bytes = *(const size_t *)extra[1];
    else
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (bytes < kernel->parameter_bytes || (buffer == NULL && kernel->parameter_bytes > 0))
    return CUDA_ERROR_INVALID_VALUE;
  if (kernel->parameter_bytes > 0)
    memcpy(launch->parameters, buffer, kernel->parameter_bytes);
  return CUDA_SUCCESS;
}

static bool shape_fits(const struct gpusim_kernel *kernel, const struct gpusim_launch *shape) {
  const uint32_t *grid = shape->grid, *block = shape->block;
  uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
  return grid[0] - 1 < 2147483647 && grid[1] - 1 < 65535 && grid[2] - 1 < 65535 && threads > 0 &&
         block[0] <= 1024 && block[1] <= 1024 && block[2] <= 64 &&
         threads <= (kernel->max_threads != 0 ? kernel->max_threads : 1024) &&
         (int64_t)shape->dynamic_shared_bytes <= gpusim_kernel_dynamic_limit(kernel);
}

/* A launch ready to be carried out on shape.device. gpusim_mutex held. */
static CUresult make(struct gpusim_kernel *kernel, struct gpusim_launch shape, void **pointers,
                     void **extra, struct kernel_launch **made) {
  shape.name = kernel->name;
  /* asking by name binds the PTX of GPUSIM_PTX to a kernel that was only enumerated */
  bool runnable =
      kernel->ptx != NULL ||
      (gpusim_image_kernel(kernel->image, kernel->name) == kernel && kernel->ptx != NULL);
  if (!runnable) {
    gpusim_trace(0, "%s: its image has no PTX, nor has GPUSIM_PTX", kernel->name);
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  if (!shape_fits(kernel, &shape))
    return CUDA_ERROR_INVALID_VALUE;
  *made = gpusim_new(sizeof **made + kernel->parameter_bytes + 16);
  (*made)->kernel = kernel;
  (*made)->shape = shape;
  gpusim_image_hold(kernel->image);
  CUresult result = pack(*made, pointers, extra);
  if (result != CUDA_SUCCESS)
    drop(*made);
  return result;
}

static CUresult launch(CUfunction function, struct gpusim_launch shape, CUstream handle,
                       void **pointers, void **extra) {
  struct CUstream_st *stream;
  struct kernel_launch *made;
  CUresult result = gpusim_ready();
  if (result == CUDA_SUCCESS && !gpusim_handle_is(function, HANDLE_KERNEL))
    return CUDA_ERROR_INVALID_HANDLE;
  if (result == CUDA_SUCCESS)
    result = gpusim_enter_submit(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  if (stream->context != gpusim_current()) {
    gpusim_unlock();
    return gpusim_current() != NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
  }
  shape.device = stream->context->device;
  /* again, as another thread may have unloaded it before we had the lock */
  if (gpusim_handle_is(function, HANDLE_KERNEL))
    result = make((struct gpusim_kernel *)(void *)function, shape, pointers, extra, &made);
  else
    result = CUDA_ERROR_INVALID_HANDLE;
  if (result == CUDA_SUCCESS)
    return gpusim_submit_leave(stream, &launch_kind, made);
  gpusim_unlock();
  return result;
}

/* ---- nodes of graphs ---- */

CUresult gpusim_launch_node(const CUDA_KERNEL_NODE_PARAMS_v2 *p, const struct operation_kind **kind,
                            void **argument) {
  struct kernel_launch *made;
  if (p == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUcontext context = p->func == NULL && p->ctx != NULL ? p->ctx : gpusim_current();
  const void *handle = p->func != NULL ? (const void *)p->func : (const void *)p->kern;
  if (!gpusim_handle_is(handle, HANDLE_KERNEL))
    return CUDA_ERROR_INVALID_HANDLE;
  if (context == NULL || !gpusim_handle_is(context, HANDLE_CONTEXT))
    return CUDA_ERROR_INVALID_CONTEXT;
  struct gpusim_launch shape = {.grid = {p->gridDimX, p->gridDimY, p->gridDimZ},
                                .block = {p->blockDimX, p->blockDimY, p->blockDimZ},
                                .dynamic_shared_bytes = p->sharedMemBytes,
                                .device = context->device};
  CUresult result = make((struct gpusim_kernel *)handle, shape, p->kernelParams, p->extra, &made);
  if (result != CUDA_SUCCESS)
    return result;
  *kind = &launch_kind;
  *argument = made;
  return CUDA_SUCCESS;
}

void gpusim_launch_parameters(void *argument, CUDA_KERNEL_NODE_PARAMS_v2 *out) {
  struct kernel_launch *made = argument;
  const struct gpusim_launch *shape = &made->shape;
  if (made->pointers == NULL) {
    made->pointers = gpusim_new(((size_t)made->kernel->parameter_count + 1) * sizeof(void *));
    for (int i = 0; i < made->kernel->parameter_count; i++)
      made->pointers[i] = made->parameters + made->kernel->parameters[i].offset;
  }
  *out = (CUDA_KERNEL_NODE_PARAMS_v2){.func = (CUfunction)(void *)made->kernel,
                                      .gridDimX = shape->grid[0],
                                      .gridDimY = shape->grid[1],
                                      .gridDimZ = shape->grid[2],
                                      .blockDimX = shape->block[0],
                                      .blockDimY = shape->block[1],
                                      .blockDimZ = shape->block[2],
                                      .sharedMemBytes = shape->dynamic_shared_bytes,
                                      .kernelParams = made->pointers};
}

bool gpusim_launch_alive(const void *argument) {
  return gpusim_handle_is(((const struct kernel_launch *)argument)->kernel, HANDLE_KERNEL);
}

/* ---- entry points ---- */

CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared_bytes, CUstream stream,
                        void **parameters, void **extra) {
  struct gpusim_launch shape = {
      .grid = {gx, gy, gz}, .block = {bx, by, bz}, .dynamic_shared_bytes = shared_bytes};
  return launch(function, shape, stream, parameters, extra);
}

/* Blocks of a cooperative grid must all be resident: the device holds 2048 threads on each of 4
 * multiprocessors. */
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz,
                                   unsigned bx, unsigned by, unsigned bz, unsigned shared_bytes,
                                   CUstream stream, void **parameters) {
  int per_processor = 0;
  CUresult result = cuOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, function,
                                                                (int)(bx * by * bz), shared_bytes);
  if (result != CUDA_SUCCESS)
    return result;
  if ((uint64_t)gx * gy * gz > (uint64_t)per_processor * 4)
    return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  struct gpusim_launch shape = {
      .grid = {gx, gy, gz}, .block = {bx, by, bz}, .dynamic_shared_bytes = shared_bytes};
  return launch(function, shape, stream, parameters, NULL);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters,
                          void **extra) {
  if (config == NULL || (config->numAttrs > 0 && config->attrs == NULL))
    return CUDA_ERROR_INVALID_VALUE;
  bool cooperative = false;
  for (unsigned i = 0; i < config->numAttrs; i++) {
    const CUlaunchAttribute *attribute = &config->attrs[i];
    switch (attribute->id) {
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      cooperative = attribute->value.cooperative != 0;
      break;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
      if (attribute->value.clusterDim.x * attribute->value.clusterDim.y *
              attribute->value.clusterDim.z !=
          1)
        return CUDA_ERROR_NOT_SUPPORTED;
      break;
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
      return CUDA_ERROR_NOT_SUPPORTED; /* they record events, which must not be lost */
    default:                           /* hints */
      break;
    }
  }
  if (cooperative && extra == NULL)
    return cuLaunchCooperativeKernel(function, config->gridDimX, config->gridDimY, config->gridDimZ,
                                     config->blockDimX, config->blockDimY, config->blockDimZ,
                                     config->sharedMemBytes, config->hStream, parameters);
  return cuLaunchKernel(function, config->gridDimX, config->gridDimY, config->gridDimZ,
                        config->blockDimX, config->blockDimY, config->blockDimZ,
                        config->sharedMemBytes, config->hStream, parameters, extra);
}

/* ---- occupancy ---- */

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function,
                                                              int threads, size_t shared_bytes,
                                                              unsigned flags) {
  struct gpusim_kernel *kernel;
  CUresult result = gpusim_enter_kernel(function, &kernel);
  if (result != CUDA_SUCCESS)
    return result;
  size_t shared = shared_bytes + kernel->static_shared_bytes;
  gpusim_unlock();
  if (blocks == NULL || threads <= 0 || flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
    return CUDA_ERROR_INVALID_VALUE;
  int by_shared = shared > 0 ? (int)(233472 / (shared + 1024)) : 32;
  *blocks = 2048 / threads;
  if (*blocks > 32)
    *blocks = 32;
  if (*blocks > by_shared)
    *blocks = by_shared;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                     size_t shared_bytes) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads,
                                                              shared_bytes, 0);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction function,
                                                   CUoccupancyB2DSize shared_of_block,
                                                   size_t shared_bytes, int limit, unsigned flags) {
  struct gpusim_kernel *kernel;
  CUresult result = gpusim_enter_kernel(function, &kernel);
  if (result != CUDA_SUCCESS)
    return result;
  const int most = kernel->max_threads != 0 ? (int)kernel->max_threads : 1024;
  gpusim_unlock();
  if (grid == NULL || block == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *block = most;
  if (limit > 0 && limit < *block)
    *block = limit;
  if (shared_of_block != NULL)
    shared_bytes = shared_of_block(*block);
  result = cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(grid, function, *block,
                                                                shared_bytes, flags);
  *grid *= 4;
  return result;
}

CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function,
                                          CUoccupancyB2DSize shared_of_block, size_t shared_bytes,
                                          int limit) {
  return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, shared_of_block,
                                                   shared_bytes, limit, 0);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction function, int blocks,
                                                 int threads) {
  struct gpusim_kernel *kernel;
  CUresult result = gpusim_enter_kernel(function, &kernel);
  if (result != CUDA_SUCCESS)
    return result;
  if (bytes == NULL || blocks <= 0 || threads <= 0)
    result = CUDA_ERROR_INVALID_VALUE;
  else
    *bytes = (size_t)gpusim_kernel_dynamic_limit(kernel);
  gpusim_unlock();
  return result;
}
