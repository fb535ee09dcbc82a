/* cuBLAS's operations on vectors, and of a matrix by a vector, which is a product with one
   column. */
#include "integration/pytorch/cublas/element.h"
#include "integration/pytorch/cublas/handle.h"

/* Element 0 is the last in memory when the increment is negative. */
static struct vector vector_of(const void *data, cudaDataType type, int n, int increment) {
  int64_t back =
      increment < 0 && n > 0 ? (int64_t)(1 - n) * increment * (int64_t)element_bytes(type) : 0;
  return (struct vector){.data = (char *)(uintptr_t)data + back, .type = type, .stride = increment};
}

/* x, y and what is computed in: float for the small types. */
static cublasStatus_t check_types(const char *call, cudaDataType x, cudaDataType y,
                                  cudaDataType scale, cudaDataType compute) {
  bool wide = x == CUDA_R_64F;
  if (element_bytes(x) != 0 && x == y && compute == (wide ? CUDA_R_64F : CUDA_R_32F) &&
      (scale == compute || scale == x))
    return CUBLAS_STATUS_SUCCESS;
  return work_refuse(CUBLAS_STATUS_NOT_SUPPORTED, call,
                     "%s (%d) with %s (%d), a scalar of type %d, in type %d", element_name(x),
                     (int)x, element_name(y), (int)y, (int)scale, (int)compute);
}

static cublasStatus_t axpy(const char *call, cublasHandle_t handle, int n, const void *alpha,
                           cudaDataType alpha_type, const void *x, cudaDataType x_type, int incx,
                           void *y, cudaDataType y_type, int incy, cudaDataType compute) {
  struct vector_work w = {.kind = VECTOR_AXPY,
                          .count = n,
                          .x = vector_of(x, x_type, n, incx),
                          .y = vector_of(y, y_type, n, incy)};
  cublasStatus_t status = handle_enter(handle);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = check_types(call, x_type, y_type, alpha_type, compute);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = handle_scalar(call, handle, alpha, alpha_type, &w.alpha);
  if (status != CUBLAS_STATUS_SUCCESS || n <= 0)
    return status;
  return work_vector(call, handle->stream, &w);
}

static cublasStatus_t scal(const char *call, cublasHandle_t handle, int n, const void *alpha,
                           cudaDataType alpha_type, void *x, cudaDataType x_type, int incx,
                           cudaDataType compute) {
  struct vector_work w = {.kind = VECTOR_SCALE, .count = n, .x = vector_of(x, x_type, n, incx)};
  cublasStatus_t status = handle_enter(handle);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = check_types(call, x_type, x_type, alpha_type, compute);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = handle_scalar(call, handle, alpha, alpha_type, &w.alpha);
  if (status != CUBLAS_STATUS_SUCCESS || n <= 0 || incx <= 0)
    return status;
  return work_vector(call, handle->stream, &w);
}

static cublasStatus_t dot(const char *call, cublasHandle_t handle, int n, const void *x,
                          cudaDataType x_type, int incx, const void *y, cudaDataType y_type,
                          int incy, void *result, cudaDataType result_type, cudaDataType compute) {
  struct vector_work w = {.kind = VECTOR_DOT,
                          .count = n > 0 ? n : 0,
                          .x = vector_of(x, x_type, n, incx),
                          .y = vector_of(y, y_type, n, incy),
                          .result = result,
                          .result_type = result_type};
  cublasStatus_t status = handle_enter(handle);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = check_types(call, x_type, y_type, result_type, compute);
  if (status == CUBLAS_STATUS_SUCCESS && result == NULL)
    status = work_refuse(CUBLAS_STATUS_INVALID_VALUE, call, "there is no place for the result");
  if (status != CUBLAS_STATUS_SUCCESS)
    return status;
  if (handle->pointer_mode == CUBLAS_POINTER_MODE_DEVICE)
    return work_vector(call, handle->stream, &w);
  return work_vector_now(call, handle->stream, &w);
}

/* y = alpha op(A) x + beta y; A is m by n. */
static cublasStatus_t gemv(const char *call, cublasHandle_t handle, cublasOperation_t trans, int m,
                           int n, const void *alpha, const void *a, int lda, const void *x,
                           int incx, const void *beta, void *y, int incy, cudaDataType type) {
  bool transposed = trans != CUBLAS_OP_N;
  int rows = transposed ? n : m, terms = transposed ? m : n;
  struct vector from = vector_of(x, type, terms, incx), to = vector_of(y, type, rows, incy);
  struct product p = {.m = rows, .n = 1, .k = terms, .batch = 1};
  cublasStatus_t status = handle_enter(handle);
  if (status != CUBLAS_STATUS_SUCCESS)
    return status;
  if (m < 0 || n < 0 || incx == 0 || incy == 0 || lda < (m > 1 ? m : 1) ||
      (unsigned)trans > CUBLAS_OP_C)
    return work_refuse(CUBLAS_STATUS_INVALID_VALUE, call,
                       "operation %d, m = %d, n = %d, lda = %d, incx = %d, incy = %d", (int)trans,
                       m, n, lda, incx, incy);
  p.a = (struct matrix){.data = (void *)(uintptr_t)a,
                        .type = type,
                        .row_stride = transposed ? lda : 1,
                        .column_stride = transposed ? 1 : lda};
  p.b = (struct matrix){
      .data = from.data, .type = type, .row_stride = from.stride, .column_stride = 1};
  p.c = p.d =
      (struct matrix){.data = to.data, .type = type, .row_stride = to.stride, .column_stride = 1};
  status = handle_scalar(call, handle, alpha, type, &p.alpha);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = handle_scalar(call, handle, beta, type, &p.beta);
  return status == CUBLAS_STATUS_SUCCESS ? work_product(call, handle->stream, &p) : status;
}

#define VECTORS(letter, real, type)                                                                \
  API cublasStatus_t cublas##letter##axpy_v2(cublasHandle_t handle, int n, const real *alpha,      \
                                             const real *x, int incx, real *y, int incy) {         \
    return axpy("cublas" #letter "axpy", handle, n, alpha, type, x, type, incx, y, type, incy,     \
                type);                                                                             \
  }                                                                                                \
  API cublasStatus_t cublas##letter##scal_v2(cublasHandle_t handle, int n, const real *alpha,      \
                                             real *x, int incx) {                                  \
    return scal("cublas" #letter "scal", handle, n, alpha, type, x, type, incx, type);             \
  }                                                                                                \
  API cublasStatus_t cublas##letter##dot_v2(cublasHandle_t handle, int n, const real *x, int incx, \
                                            const real *y, int incy, real *result) {               \
    return dot("cublas" #letter "dot", handle, n, x, type, incx, y, type, incy, result, type,      \
               type);                                                                              \
  }                                                                                                \
  API cublasStatus_t cublas##letter##gemv_v2(                                                      \
      cublasHandle_t handle, cublasOperation_t trans, int m, int n, const real *alpha,             \
      const real *a, int lda, const real *x, int incx, const real *beta, real *y, int incy) {      \
    return gemv("cublas" #letter "gemv", handle, trans, m, n, alpha, a, lda, x, incx, beta, y,     \
                incy, type);                                                                       \
  }
VECTORS(S, float, CUDA_R_32F)
VECTORS(D, double, CUDA_R_64F)
#undef VECTORS

API cublasStatus_t cublasAxpyEx(cublasHandle_t handle, int n, const void *alpha,
                                cudaDataType alpha_type, const void *x, cudaDataType x_type,
                                int incx, void *y, cudaDataType y_type, int incy,
                                cudaDataType compute) {
  return axpy("cublasAxpyEx", handle, n, alpha, alpha_type, x, x_type, incx, y, y_type, incy,
              compute);
}

API cublasStatus_t cublasScalEx(cublasHandle_t handle, int n, const void *alpha,
                                cudaDataType alpha_type, void *x, cudaDataType x_type, int incx,
                                cudaDataType compute) {
  return scal("cublasScalEx", handle, n, alpha, alpha_type, x, x_type, incx, compute);
}

API cublasStatus_t cublasDotEx(cublasHandle_t handle, int n, const void *x, cudaDataType x_type,
                               int incx, const void *y, cudaDataType y_type, int incy, void *result,
                               cudaDataType result_type, cudaDataType compute) {
  return dot("cublasDotEx", handle, n, x, x_type, incx, y, y_type, incy, result, result_type,
             compute);
}
