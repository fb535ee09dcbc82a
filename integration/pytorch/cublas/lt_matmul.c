/* cuBLASLt's matrix product: what descriptors say becomes a struct product, or is refused. The
   search for an algorithm answers by the same code, so what it finds can be run. */
#include "integration/pytorch/cublas/lt.h"
#include "integration/pytorch/cublas/work.h"
#include "integration/pytorch/libraries/touch.h"
#include <stdlib.h>
#include <string.h>

#define REFUSE(status, ...) work_refuse(CUBLAS_STATUS_##status, call, __VA_ARGS__)

/* A cublasHandle_t may stand for it, which has another layout in another library: it is never
   looked into. */
struct cublasLtContext {
  char unused;
};

API size_t cublasLtGetVersion(void) {
  return VERSION;
}

API cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
  if (handle == NULL)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (touch_need_context(0) != CUDA_SUCCESS)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = malloc(sizeof **handle);
  return *handle != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

API cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  if (handle == NULL)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  free(handle);
  return CUBLAS_STATUS_SUCCESS;
}

/* ---- matrices ---- */

static cublasStatus_t describe_matrix(const char *call, const char *name,
                                      cublasLtMatrixLayout_t layout, int32_t trans, int64_t *rows,
                                      int64_t *columns, struct matrix *matrix) {
  bool by_rows = layout->order == CUBLASLT_ORDER_ROW, transposed = trans != CUBLAS_OP_N;
  uint64_t line = by_rows ? layout->columns : layout->rows;
  if (trans != CUBLAS_OP_N && trans != CUBLAS_OP_T && trans != CUBLAS_OP_C)
    return REFUSE(INVALID_VALUE, "operation %d on %s", (int)trans, name);
  if ((!by_rows && layout->order != CUBLASLT_ORDER_COL) || layout->plane_offset != 0)
    return REFUSE(NOT_SUPPORTED, "%s has order %d and plane offset %lld", name, (int)layout->order,
                  (long long)layout->plane_offset);
  if (layout->rows > INT32_MAX || layout->columns > INT32_MAX || layout->ld < (int64_t)line ||
      layout->batch < 1)
    return REFUSE(INVALID_VALUE, "%s has %llu by %llu elements, lines %lld apart, %d times", name,
                  (unsigned long long)layout->rows, (unsigned long long)layout->columns,
                  (long long)layout->ld, layout->batch);
  *rows = (int64_t)(transposed ? layout->columns : layout->rows);
  *columns = (int64_t)(transposed ? layout->rows : layout->columns);
  *matrix = (struct matrix){.type = (cudaDataType)layout->type,
                            .row_stride = by_rows != transposed ? layout->ld : 1,
                            .column_stride = by_rows != transposed ? 1 : layout->ld,
                            .batch_stride = layout->batch_stride};
  return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t describe_matrices(const char *call, cublasLtMatmulDesc_t matmul,
                                        cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                        cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                        struct product *p) {
  int64_t k = 0, c_rows = 0, c_columns = 0;
  cublasStatus_t status = describe_matrix(call, "D", d, matmul->transc, &p->m, &p->n, &p->d);
  int64_t m = 0, n = 0;
  if (status == CUBLAS_STATUS_SUCCESS)
    status = describe_matrix(call, "A", a, matmul->transa, &m, &p->k, &p->a);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = describe_matrix(call, "B", b, matmul->transb, &k, &n, &p->b);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = describe_matrix(call, "C", c, CUBLAS_OP_N, &c_rows, &c_columns, &p->c);
  if (status != CUBLAS_STATUS_SUCCESS)
    return status;
  if (m != p->m || n != p->n || k != p->k || c_rows != p->m || c_columns != p->n)
    return REFUSE(INVALID_VALUE, "%lld by %lld times %lld by %lld isn't %lld by %lld", (long long)m,
                  (long long)p->k, (long long)k, (long long)n, (long long)p->m, (long long)p->n);
  if (a->batch != d->batch || b->batch != d->batch || c->batch != d->batch)
    return REFUSE(INVALID_VALUE, "batches of %d, %d, %d and %d matrices", a->batch, b->batch,
                  c->batch, d->batch);
  p->batch = d->batch;
  if (p->c.type != p->d.type)
    return REFUSE(NOT_SUPPORTED, "C and D have different types");
  return work_check_types(call, p->a.type, p->b.type, p->d.type,
                          (cublasComputeType_t)matmul->compute_type,
                          (cudaDataType)matmul->scale_type);
}

/* ---- the epilogue ---- */

static bool steps_of(uint32_t epilogue, unsigned *steps) {
  switch (epilogue) {
#define EPILOGUE(name, made_of)                                                                    \
  case CUBLASLT_EPILOGUE_##name:                                                                   \
    *steps = made_of;                                                                              \
    return true;
#include "integration/pytorch/cublas/lt_epilogues.def"
#undef EPILOGUE
  default:
    return false;
  }
}

static cublasStatus_t describe_epilogue(const char *call, cublasLtMatmulDesc_t matmul,
                                        bool with_pointers, struct product *p) {
  struct epilogue *e = &p->epilogue;
  if (!steps_of(matmul->epilogue, &e->steps))
    return REFUSE(NOT_SUPPORTED, "epilogue %u", matmul->epilogue);
  bool bias = (e->steps & (EPILOGUE_BIAS | EPILOGUE_BIAS_GRADIENT | EPILOGUE_BIAS_GRADIENT_A |
                           EPILOGUE_BIAS_GRADIENT_B)) != 0;
  bool aux = (e->steps & (EPILOGUE_AUX | EPILOGUE_RELU_GRADIENT | EPILOGUE_GELU_GRADIENT)) != 0;
  bool bits = aux && (e->steps & (EPILOGUE_RELU | EPILOGUE_RELU_GRADIENT)) != 0;
  e->bias_type = matmul->bias_type < 0 ? p->d.type : (cudaDataType)matmul->bias_type;
  e->aux_type = matmul->aux_type < 0 || bits ? p->d.type : (cudaDataType)matmul->aux_type;
  if ((bias && e->bias_type != p->d.type) || (aux && e->aux_type != p->d.type))
    return REFUSE(NOT_SUPPORTED, "bias or aux have another type than D");
  if (bias && with_pointers && matmul->bias == NULL)
    return REFUSE(INVALID_VALUE, "epilogue %u without a bias", matmul->epilogue);
  if (bias) {
    e->bias = matmul->bias;
    e->bias_batch_stride = matmul->bias_batch_stride;
  }
  if (!aux)
    return CUBLAS_STATUS_SUCCESS;
  int64_t multiple = bits ? 128 : 8;
  if (matmul->aux_ld < p->m || matmul->aux_ld % multiple != 0 ||
      (bits && matmul->aux_batch_stride % multiple != 0))
    return REFUSE(INVALID_VALUE,
                  "aux has columns %lld and matrices %lld apart; at least %lld and multiples of "
                  "%lld are needed",
                  (long long)matmul->aux_ld, (long long)matmul->aux_batch_stride, (long long)p->m,
                  (long long)multiple);
  if (with_pointers && matmul->aux == NULL)
    return REFUSE(INVALID_VALUE, "epilogue %u without aux", matmul->epilogue);
  e->aux = matmul->aux;
  e->aux_stride = matmul->aux_ld;
  e->aux_batch_stride = matmul->aux_batch_stride;
  return CUBLAS_STATUS_SUCCESS;
}

/* All but the matrices' addresses and the scalars. */
static cublasStatus_t describe(const char *call, cublasLtMatmulDesc_t matmul,
                               cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                               cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                               bool with_pointers, struct product *p) {
  if (matmul == NULL || a == NULL || b == NULL || c == NULL || d == NULL)
    return REFUSE(INVALID_VALUE, "a descriptor is NULL");
  if (matmul->transc != CUBLAS_OP_N || matmul->fill_mode != CUBLAS_FILL_MODE_FULL ||
      (matmul->pointer_mode != CUBLASLT_POINTER_MODE_HOST &&
       matmul->pointer_mode != CUBLASLT_POINTER_MODE_DEVICE))
    return REFUSE(NOT_SUPPORTED, "operation %d on C, fill mode %d, pointer mode %d", matmul->transc,
                  matmul->fill_mode, matmul->pointer_mode);
  /* For types of 8 bits. */
  if (matmul->a_scale || matmul->b_scale || matmul->c_scale || matmul->d_scale || matmul->amax_d ||
      matmul->aux_scale || matmul->aux_amax)
    return REFUSE(INVALID_VALUE, "a matrix has a scale or a maximum");
  cublasStatus_t status = describe_matrices(call, matmul, a, b, c, d, p);
  return status == CUBLAS_STATUS_SUCCESS ? describe_epilogue(call, matmul, with_pointers, p)
                                         : status;
}

/* ---- calls ---- */

API cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t preference, int requested, cublasLtMatmulHeuristicResult_t results[],
    int *returned) {
  const char *call = __func__;
  struct product p = {.m = 0};
  (void)preference;
  if (handle == NULL)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (requested < 1 || results == NULL || returned == NULL)
    return REFUSE(INVALID_VALUE, "%d results", requested);
  *returned = 0;
  cublasStatus_t status = describe(call, matmul, a, b, c, d, false, &p);
  if (status != CUBLAS_STATUS_SUCCESS)
    return status;
  memset(results, 0, sizeof *results);
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1;
  *returned = 1;
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul,
                                  const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                                  const void *b, cublasLtMatrixLayout_t b_layout, const void *beta,
                                  const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                                  cublasLtMatrixLayout_t d_layout,
                                  const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                                  size_t workspace_bytes, cudaStream_t stream) {
  const char *call = __func__;
  struct product p = {.m = 0};
  (void)algorithm, (void)workspace, (void)workspace_bytes;
  if (handle == NULL || touch_need_context(0) != CUDA_SUCCESS)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  cublasStatus_t status = describe(call, matmul, a_layout, b_layout, c_layout, d_layout, true, &p);
  if (status != CUBLAS_STATUS_SUCCESS)
    return status;
  bool on_device = matmul->pointer_mode == CUBLASLT_POINTER_MODE_DEVICE;
  status = work_scalar(call, alpha, on_device, (cudaDataType)matmul->scale_type, &p.alpha);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = work_scalar(call, beta, on_device, (cudaDataType)matmul->scale_type, &p.beta);
  if (status != CUBLAS_STATUS_SUCCESS)
    return status;
  p.a.data = (void *)(uintptr_t)a;
  p.b.data = (void *)(uintptr_t)b;
  p.c.data = (void *)(uintptr_t)c;
  p.d.data = d;
  return work_product(call, stream, &p);
}
