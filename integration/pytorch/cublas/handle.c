/* Making handles and setting what they hold. Modes that only trade precision or determinism for
   speed are kept and change nothing: sums are in float or double and always in the same order. */
#include "integration/pytorch/cublas/handle.h"
#include "integration/pytorch/libraries/driver.h"
#include "integration/pytorch/libraries/touch.h"
#include <stdlib.h>

cublasStatus_t handle_enter(cublasHandle_t handle) {
  CUcontext current = NULL;
  if (handle == NULL)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  CUresult result = driver.cuCtxGetCurrent(&current);
  if (result == CUDA_SUCCESS && current == NULL)
    result = driver.cuCtxSetCurrent(handle->context);
  return result == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

cublasStatus_t handle_scalar(const char *call, cublasHandle_t handle, const void *value,
                             cudaDataType type, struct scalar *scalar) {
  return work_scalar(call, value, handle->pointer_mode == CUBLAS_POINTER_MODE_DEVICE, type, scalar);
}

API cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
  if (handle == NULL)
    return CUBLAS_STATUS_INVALID_VALUE;
  CUcontext context = NULL;
  if (touch_need_context(0) != CUDA_SUCCESS || driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = calloc(1, sizeof **handle);
  if (*handle == NULL)
    return CUBLAS_STATUS_ALLOC_FAILED;
  (*handle)->context = context;
  return CUBLAS_STATUS_SUCCESS;
}

/* Work that is queued holds nothing of the handle. */
API cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  if (handle == NULL)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  free(handle);
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version) {
  (void)handle;
  if (version == NULL)
    return CUBLAS_STATUS_INVALID_VALUE;
  *version = VERSION;
  return CUBLAS_STATUS_SUCCESS;
}

static bool valid_pointer_mode(cublasPointerMode_t mode) {
  return mode == CUBLAS_POINTER_MODE_HOST || mode == CUBLAS_POINTER_MODE_DEVICE;
}

static bool valid_atomics_mode(cublasAtomicsMode_t mode) {
  return mode == CUBLAS_ATOMICS_NOT_ALLOWED || mode == CUBLAS_ATOMICS_ALLOWED;
}

/* A mode, with a flag or without. */
static bool valid_math_mode(cublasMath_t mode) {
  return ((unsigned)mode & ~(unsigned)CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION) <= 4;
}

#define ANY(value) true
#define SETTING(set, get, type, member, valid)                                                     \
  API cublasStatus_t set(cublasHandle_t handle, type value) {                                      \
    if (handle == NULL)                                                                            \
      return CUBLAS_STATUS_NOT_INITIALIZED;                                                        \
    if (!valid(value))                                                                             \
      return work_refuse(CUBLAS_STATUS_INVALID_VALUE, #set, "no such mode");                       \
    handle->member = value;                                                                        \
    return CUBLAS_STATUS_SUCCESS;                                                                  \
  }                                                                                                \
  API cublasStatus_t get(cublasHandle_t handle, type *value) {                                     \
    if (handle == NULL || value == NULL)                                                           \
      return handle == NULL ? CUBLAS_STATUS_NOT_INITIALIZED : CUBLAS_STATUS_INVALID_VALUE;         \
    *value = handle->member;                                                                       \
    return CUBLAS_STATUS_SUCCESS;                                                                  \
  }
SETTING(cublasSetStream_v2, cublasGetStream_v2, cudaStream_t, stream, ANY)
SETTING(cublasSetPointerMode_v2, cublasGetPointerMode_v2, cublasPointerMode_t, pointer_mode,
        valid_pointer_mode)
SETTING(cublasSetAtomicsMode, cublasGetAtomicsMode, cublasAtomicsMode_t, atomics_mode,
        valid_atomics_mode)
SETTING(cublasSetMathMode, cublasGetMathMode, cublasMath_t, math_mode, valid_math_mode)
SETTING(cublasSetSmCountTarget, cublasGetSmCountTarget, int, sm_count_target, ANY)
#undef SETTING
#undef ANY

/* Nothing here needs one. */
API cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes) {
  (void)bytes;
  if (handle == NULL)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if ((uintptr_t)workspace % 256 != 0)
    return work_refuse(CUBLAS_STATUS_INVALID_VALUE, "cublasSetWorkspace_v2",
                       "%p isn't a multiple of 256", workspace);
  return CUBLAS_STATUS_SUCCESS;
}

/* ---- texts ---- */

#define STATUSES                                                                                   \
  STATUS(SUCCESS, "success")                                                                       \
  STATUS(NOT_INITIALIZED, "the library was not initialized")                                       \
  STATUS(ALLOC_FAILED, "the resource allocation failed")                                           \
  STATUS(INVALID_VALUE, "an unsupported value or parameter was passed to the function")            \
  STATUS(ARCH_MISMATCH, "the function requires a feature absent from the device")                  \
  STATUS(MAPPING_ERROR, "an access to GPU memory space failed")                                    \
  STATUS(EXECUTION_FAILED, "the GPU program failed to execute")                                    \
  STATUS(INTERNAL_ERROR, "an internal cuBLAS operation failed")                                    \
  STATUS(NOT_SUPPORTED, "the functionality requested is not supported")                            \
  STATUS(LICENSE_ERROR, "an error was detected when checking the current licensing")

API const char *cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
#define STATUS(name, text)                                                                         \
  case CUBLAS_STATUS_##name:                                                                       \
    return "CUBLAS_STATUS_" #name;
    STATUSES
#undef STATUS
  }
  return "unknown cuBLAS status";
}

API const char *cublasGetStatusString(cublasStatus_t status) {
  switch (status) {
#define STATUS(name, text)                                                                         \
  case CUBLAS_STATUS_##name:                                                                       \
    return text;
    STATUSES
#undef STATUS
  }
  return "unknown cuBLAS status";
}
