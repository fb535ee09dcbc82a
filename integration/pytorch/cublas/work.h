/* From calls to work on streams: checks, queues and runs it. */
#ifndef OFFLOAD_CUBLAS_WORK_H
#define OFFLOAD_CUBLAS_WORK_H
#include "integration/pytorch/cublas/product.h"
#include "integration/pytorch/cublas/vector.h"
#include <cublas_v2.h>
#include <cuda.h>

/* Queues a copy of what is described in `stream` of the thread's context, which there is; `call` is
   the function's name, for messages. Returns before the work is done.
   CUBLAS_STATUS_EXECUTION_FAILED if an address is no CUDA memory. Nothing is queued for a product
   without elements. */
cublasStatus_t work_product(const char *call, CUstream stream, const struct product *);
cublasStatus_t work_vector(const char *call, CUstream stream, const struct vector_work *);
/* The same, and waits for it; not while the stream captures. */
cublasStatus_t work_vector_now(const char *call, CUstream stream, const struct vector_work *);

/* Returns `status`; with GPUSIM_TRACE=1 a line on stderr tells why. */
__attribute__((format(printf, 3, 4))) cublasStatus_t
work_refuse(cublasStatus_t status, const char *call, const char *reason, ...);
/* What alpha and beta are with a compute type; -1 if nothing here computes in it. */
cudaDataType work_scale_type(cublasComputeType_t);
/* alpha or beta: read now, or from device memory when the work runs. */
cublasStatus_t work_scalar(const char *call, const void *value, bool on_device, cudaDataType,
                           struct scalar *);
/* Whether a product of these types can be computed: A's and B's, C's and D's, what it is computed
   in, alpha's and beta's. */
cublasStatus_t work_check_types(const char *call, cudaDataType a, cudaDataType b, cudaDataType c,
                                cublasComputeType_t compute, cudaDataType scale);

#define API __attribute__((visibility("default")))
enum { VERSION = 130000 }; /* what both libraries say that they are */
#endif
