/* cuBLAS's handle: a context's, with what the calls with it have in common. As with the real one,
   calls with one handle are the business of one thread at a time. */
#ifndef OFFLOAD_CUBLAS_HANDLE_H
#define OFFLOAD_CUBLAS_HANDLE_H
#include "integration/pytorch/cublas/work.h"

struct cublasContext {
  CUcontext context;
  CUstream stream;
  cublasPointerMode_t pointer_mode;
  cublasAtomicsMode_t atomics_mode;
  cublasMath_t math_mode;
  int sm_count_target;
};

/* CUBLAS_STATUS_NOT_INITIALIZED for NULL. Gives a thread without a context the handle's. */
cublasStatus_t handle_enter(cublasHandle_t);
/* alpha or beta as the pointer mode has it. */
cublasStatus_t handle_scalar(const char *call, cublasHandle_t, const void *value, cudaDataType,
                             struct scalar *);
#endif
