/* cuBLAS's matrix products: C = alpha op(A) op(B) + beta C, columns of matrices `ld` elements
   apart. The many names differ in types and in how a batch is given. For real numbers the conjugate
   transpose is the transpose. */
#include "integration/pytorch/cublas/handle.h"

struct operand {
  const void *data;
  cudaDataType type;
  int ld;
  long long batch_stride;
};

struct gemm {
  const char *call;
  cublasOperation_t transa, transb;
  int m, n, k;
  struct operand a, b, c;
  const void *alpha, *beta;
  bool listed;
  int batch;
  cublasComputeType_t compute;
  cudaDataType scale;
};

static cublasStatus_t describe(const struct gemm *g, const char *name, struct operand operand,
                               cublasOperation_t trans, int rows, int columns,
                               struct matrix *matrix) {
  bool transposed = trans != CUBLAS_OP_N;
  int least = transposed ? columns : rows;
  if (trans != CUBLAS_OP_N && trans != CUBLAS_OP_T && trans != CUBLAS_OP_C)
    return work_refuse(CUBLAS_STATUS_INVALID_VALUE, g->call, "operation %d on %s", (int)trans,
                       name);
  if (operand.ld < (least > 1 ? least : 1))
    return work_refuse(CUBLAS_STATUS_INVALID_VALUE, g->call,
                       "%s's columns have %d elements and are %d apart", name, least, operand.ld);
  *matrix = (struct matrix){.data = (void *)(uintptr_t)operand.data,
                            .listed = g->listed,
                            .type = operand.type,
                            .row_stride = transposed ? operand.ld : 1,
                            .column_stride = transposed ? 1 : operand.ld,
                            .batch_stride = operand.batch_stride};
  return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t queue(cublasHandle_t handle, const struct gemm *g) {
  struct product p = {.m = g->m, .n = g->n, .k = g->k, .batch = g->batch};
  cublasStatus_t status = handle_enter(handle);
  if (status != CUBLAS_STATUS_SUCCESS)
    return status;
  if (g->m < 0 || g->n < 0 || g->k < 0 || g->batch < 0)
    return work_refuse(CUBLAS_STATUS_INVALID_VALUE, g->call, "m = %d, n = %d, k = %d, batch = %d",
                       g->m, g->n, g->k, g->batch);
  status = work_check_types(g->call, g->a.type, g->b.type, g->c.type, g->compute, g->scale);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = describe(g, "A", g->a, g->transa, g->m, g->k, &p.a);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = describe(g, "B", g->b, g->transb, g->k, g->n, &p.b);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = describe(g, "C", g->c, CUBLAS_OP_N, g->m, g->n, &p.c);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = handle_scalar(g->call, handle, g->alpha, g->scale, &p.alpha);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = handle_scalar(g->call, handle, g->beta, g->scale, &p.beta);
  p.d = p.c;
  return status == CUBLAS_STATUS_SUCCESS ? work_product(g->call, handle->stream, &p) : status;
}

/* The calls give the same names to what they all have. */
#define OPERAND(...) ((struct operand){__VA_ARGS__})
#define QUEUE(name, a, b, c, listed, batch, compute, scale)                                        \
  queue(handle, &(struct gemm){name, transa, transb, m, n, k, a, b, c, alpha, beta, listed, batch, \
                               compute, scale})

/* `gemm` is the first function's name. */
#define GEMM(gemm_name, letter, real, element, compute_type)                                       \
  API cublasStatus_t gemm_name(cublasHandle_t handle, cublasOperation_t transa,                    \
                               cublasOperation_t transb, int m, int n, int k, const real *alpha,   \
                               const real *a, int lda, const real *b, int ldb, const real *beta,   \
                               real *c, int ldc) {                                                 \
    return QUEUE(#gemm_name, OPERAND(a, element, lda, 0), OPERAND(b, element, ldb, 0),             \
                 OPERAND(c, element, ldc, 0), false, 1, compute_type, element);                    \
  }                                                                                                \
  API cublasStatus_t cublas##letter##gemmStridedBatched(                                           \
      cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,     \
      int k, const real *alpha, const real *a, int lda, long long stride_a, const real *b,         \
      int ldb, long long stride_b, const real *beta, real *c, int ldc, long long stride_c,         \
      int batch) {                                                                                 \
    return QUEUE("cublas" #letter "gemmStridedBatched", OPERAND(a, element, lda, stride_a),        \
                 OPERAND(b, element, ldb, stride_b), OPERAND(c, element, ldc, stride_c), false,    \
                 batch, compute_type, element);                                                    \
  }                                                                                                \
  API cublasStatus_t cublas##letter##gemmBatched(                                                  \
      cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,     \
      int k, const real *alpha, const real *const a[], int lda, const real *const b[], int ldb,    \
      const real *beta, real *const c[], int ldc, int batch) {                                     \
    return QUEUE("cublas" #letter "gemmBatched", OPERAND(a, element, lda, 0),                      \
                 OPERAND(b, element, ldb, 0), OPERAND(c, element, ldc, 0), true, batch,            \
                 compute_type, element);                                                           \
  }
GEMM(cublasSgemm_v2, S, float, CUDA_R_32F, CUBLAS_COMPUTE_32F)
GEMM(cublasDgemm_v2, D, double, CUDA_R_64F, CUBLAS_COMPUTE_64F)
GEMM(cublasHgemm, H, cublas_half, CUDA_R_16F, CUBLAS_COMPUTE_16F)
#undef GEMM

API cublasStatus_t cublasSgemmEx(cublasHandle_t handle, cublasOperation_t transa,
                                 cublasOperation_t transb, int m, int n, int k, const float *alpha,
                                 const void *a, cudaDataType a_type, int lda, const void *b,
                                 cudaDataType b_type, int ldb, const float *beta, void *c,
                                 cudaDataType c_type, int ldc) {
  return QUEUE("cublasSgemmEx", OPERAND(a, a_type, lda, 0), OPERAND(b, b_type, ldb, 0),
               OPERAND(c, c_type, ldc, 0), false, 1, CUBLAS_COMPUTE_32F, CUDA_R_32F);
}

API cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa,
                                cublasOperation_t transb, int m, int n, int k, const void *alpha,
                                const void *a, cudaDataType a_type, int lda, const void *b,
                                cudaDataType b_type, int ldb, const void *beta, void *c,
                                cudaDataType c_type, int ldc, cublasComputeType_t compute,
                                cublasGemmAlgo_t algorithm) {
  (void)algorithm;
  return QUEUE("cublasGemmEx", OPERAND(a, a_type, lda, 0), OPERAND(b, b_type, ldb, 0),
               OPERAND(c, c_type, ldc, 0), false, 1, compute, work_scale_type(compute));
}

API cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k,
    const void *alpha, const void *a, cudaDataType a_type, int lda, long long stride_a,
    const void *b, cudaDataType b_type, int ldb, long long stride_b, const void *beta, void *c,
    cudaDataType c_type, int ldc, long long stride_c, int batch, cublasComputeType_t compute,
    cublasGemmAlgo_t algorithm) {
  (void)algorithm;
  return QUEUE("cublasGemmStridedBatchedEx", OPERAND(a, a_type, lda, stride_a),
               OPERAND(b, b_type, ldb, stride_b), OPERAND(c, c_type, ldc, stride_c), false, batch,
               compute, work_scale_type(compute));
}

API cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t transa,
                                       cublasOperation_t transb, int m, int n, int k,
                                       const void *alpha, const void *const a[],
                                       cudaDataType a_type, int lda, const void *const b[],
                                       cudaDataType b_type, int ldb, const void *beta,
                                       void *const c[], cudaDataType c_type, int ldc, int batch,
                                       cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
  (void)algorithm;
  return QUEUE("cublasGemmBatchedEx", OPERAND(a, a_type, lda, 0), OPERAND(b, b_type, ldb, 0),
               OPERAND(c, c_type, ldc, 0), true, batch, compute, work_scale_type(compute));
}
#undef QUEUE
#undef OPERAND
