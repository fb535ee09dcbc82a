/* cuBLAS's calls: every name of a product by every operation, vectors, scalars on both sides, what
   a handle holds, and what is refused and how. */
#include "tests/unit/cublas_device.h"

static cublasHandle_t handle;

static void finish(void) {
  MUST(cuStreamSynchronize(NULL));
}

/* ---- products ---- */

enum name { PLAIN, EX, STRIDED, STRIDED_EX, BATCHED, BATCHED_EX, OLD_EX, NAMES };
static const char *const names[] = {
    "gemm",          "gemmEx", "gemmStridedBatched", "gemmStridedBatchedEx", "gemmBatched",
    "gemmBatchedEx", "SgemmEx"};

/* All that a call of any of them needs. */
struct call {
  enum name name;
  cudaDataType type, c_type;
  cublasComputeType_t compute;
  cublasOperation_t transa, transb;
  int m, n, k, batch;
  struct on_device a, b, c;
  void **lists[3]; /* on the device */
  const void *alpha, *beta;
};

static void **list_on_device(const struct on_device *x, int batch) {
  CUdeviceptr list;
  MUST(cuMemAlloc(&list, (size_t)batch * sizeof(void *)));
  void **view = gpusim_host_view((void *)list);
  for (int i = 0; i < batch; i++)
    view[i] = (char *)x->at + i * x->plain.batch_stride * (int64_t)type_bytes(x->plain.type);
  return (void **)list;
}

#define ARGUMENTS handle, x->transa, x->transb, x->m, x->n, x->k
#define STRIDE(matrix) matrix.ld, matrix.plain.batch_stride
#define LISTS(type, i) (type)(void *) x->lists[i]
#define BY_TYPE(letter, real, first)                                                               \
  switch (x->name) {                                                                               \
  case PLAIN:                                                                                      \
    return first(ARGUMENTS, x->alpha, x->a.at, x->a.ld, x->b.at, x->b.ld, x->beta, x->c.at,        \
                 x->c.ld);                                                                         \
  case STRIDED:                                                                                    \
    return cublas##letter##gemmStridedBatched(ARGUMENTS, x->alpha, x->a.at, STRIDE(x->a), x->b.at, \
                                              STRIDE(x->b), x->beta, x->c.at, STRIDE(x->c),        \
                                              x->batch);                                           \
  case BATCHED:                                                                                    \
    return cublas##letter##gemmBatched(ARGUMENTS, x->alpha, LISTS(const real *const *, 0),         \
                                       x->a.ld, LISTS(const real *const *, 1), x->b.ld, x->beta,   \
                                       LISTS(real *const *, 2), x->c.ld, x->batch);                \
  default:                                                                                         \
    return CUBLAS_STATUS_INTERNAL_ERROR;                                                           \
  }

static cublasStatus_t call(const struct call *x) {
  switch (x->name) {
  case OLD_EX:
    return cublasSgemmEx(ARGUMENTS, x->alpha, x->a.at, x->type, x->a.ld, x->b.at, x->type, x->b.ld,
                         x->beta, x->c.at, x->c_type, x->c.ld);
  case EX:
    return cublasGemmEx(ARGUMENTS, x->alpha, x->a.at, x->type, x->a.ld, x->b.at, x->type, x->b.ld,
                        x->beta, x->c.at, x->c_type, x->c.ld, x->compute, CUBLAS_GEMM_DEFAULT);
  case STRIDED_EX:
    return cublasGemmStridedBatchedEx(ARGUMENTS, x->alpha, x->a.at, x->type, STRIDE(x->a), x->b.at,
                                      x->type, STRIDE(x->b), x->beta, x->c.at, x->c_type,
                                      STRIDE(x->c), x->batch, x->compute,
                                      CUBLAS_GEMM_DEFAULT_TENSOR_OP);
  case BATCHED_EX:
    return cublasGemmBatchedEx(ARGUMENTS, x->alpha, LISTS(const void *const *, 0), x->type, x->a.ld,
                               LISTS(const void *const *, 1), x->type, x->b.ld, x->beta,
                               LISTS(void *const *, 2), x->c_type, x->c.ld, x->batch, x->compute,
                               CUBLAS_GEMM_DEFAULT);
  default:
    break;
  }
  if (x->type == CUDA_R_64F)
    BY_TYPE(D, double, cublasDgemm_v2)
  if (x->type == CUDA_R_32F)
    BY_TYPE(S, float, cublasSgemm_v2)
  BY_TYPE(H, cublas_half, cublasHgemm)
}

static bool try_call(struct call x, cudaDataType scale, double alpha, double beta) {
  double scalars[2];
  struct on_device *all[] = {&x.a, &x.b, &x.c};
  bool ta = x.transa != CUBLAS_OP_N, tb = x.transb != CUBLAS_OP_N;
  x.a = on_device(x.type, ta ? x.k : x.m, ta ? x.m : x.k, x.batch);
  x.b = on_device(x.type, tb ? x.n : x.k, tb ? x.k : x.n, x.batch);
  x.c = on_device(x.c_type, x.m, x.n, x.batch);
  for (int i = 0; i < 3; i++)
    x.lists[i] = list_on_device(all[i], x.batch);
  put_number(&scalars[0], 0, scale, alpha);
  put_number(&scalars[1], 0, scale, beta);
  x.alpha = &scalars[0], x.beta = &scalars[1];
  void *before = copy_of(&x.c);
  struct plain was = x.c.plain;
  was.data = before;
  bool good = call(&x) == CUBLAS_STATUS_SUCCESS;
  scalars[0] = scalars[1] = 77; /* they were taken at the call */
  finish();
  good &=
      is_product(&x.c, before, ta ? transposed(x.a.plain) : x.a.plain,
                 tb ? transposed(x.b.plain) : x.b.plain, was, x.m, x.n, x.k, x.batch, alpha, beta);
  free(before);
  for (int i = 0; i < 3; i++) {
    drop(all[i]);
    MUST(cuMemFree((CUdeviceptr)x.lists[i]));
  }
  return good;
}

struct typing {
  cudaDataType type, c_type;
  cublasComputeType_t compute;
  cudaDataType scale;
};
static const struct typing typings[] = {
    {CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F, CUDA_R_64F},
    {CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, CUDA_R_32F},
    {CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F},
    {CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_32F, CUDA_R_32F},
    {CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F_PEDANTIC, CUDA_R_32F},
    {CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_16F, CUDA_R_16F},
    {CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUDA_R_32F},
    {CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F, CUDA_R_32F},
};
enum { TYPINGS = sizeof typings / sizeof typings[0] };

/* Only the names with Ex take types; SgemmEx has float scalars. */
static bool exists(enum name name, const struct typing *t) {
  bool one_type =
      t->type == t->c_type && t->scale == t->type && t->compute != CUBLAS_COMPUTE_32F_FAST_TF32;
  if (name == OLD_EX)
    return t->compute == CUBLAS_COMPUTE_32F;
  return one_type || name == EX || name == STRIDED_EX || name == BATCHED_EX;
}

static void test_products(enum name name) {
  static const cublasOperation_t operations[] = {CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C};
  bool good = true;
  int calls = 0,
      batch =
          name == STRIDED || name == STRIDED_EX || name == BATCHED || name == BATCHED_EX ? 3 : 1;
  for (int i = 0; i < TYPINGS; i++)
    for (int operation = 0; operation < 9 && exists(name, &typings[i]); operation++) {
      struct typing t = typings[i];
      struct call x = {.name = name,
                       .type = t.type,
                       .c_type = t.c_type,
                       .compute = t.compute,
                       .transa = operations[operation % 3],
                       .transb = operations[operation / 3],
                       .m = 21,
                       .n = 7,
                       .k = 13,
                       .batch = batch};
      good &= try_call(x, t.scale, 1, 0) && try_call(x, t.scale, -1.5, 0.25);
      calls++;
    }
  tap_ok(good && calls >= 9, "%s computes the product in all its types, by all operations",
         names[name]);
}

/* ---- scalars ---- */

static void test_pointer_mode(void) {
  static const cudaDataType types[] = {CUDA_R_64F, CUDA_R_32F, CUDA_R_16F};
  bool good = true;
  for (int i = 0; i < 3; i++) {
    cudaDataType type = types[i];
    struct on_device scalars = on_device(type, 2, 1, 1);
    struct call x = {.name = i == 2 ? PLAIN : EX,
                     .type = type,
                     .c_type = type,
                     .compute = type == CUDA_R_64F ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                     .m = 9,
                     .n = 5,
                     .k = 4,
                     .batch = 1};
    x.a = on_device(type, x.m, x.k, 1), x.b = on_device(type, x.k, x.n, 1),
    x.c = on_device(type, x.m, x.n, 1);
    x.alpha = scalars.at, x.beta = (char *)scalars.at + type_bytes(type);
    put_number(scalars.plain.data, 0, type, 3);
    put_number(scalars.plain.data, 1, type, -0.5);
    void *before = copy_of(&x.c);
    struct plain was = x.c.plain;
    was.data = before;
    MUST_BLAS(cublasSetPointerMode_v2(handle, CUBLAS_POINTER_MODE_DEVICE));
    good &= call(&x) == CUBLAS_STATUS_SUCCESS;
    finish();
    MUST_BLAS(cublasSetPointerMode_v2(handle, CUBLAS_POINTER_MODE_HOST));
    good &= is_product(&x.c, before, x.a.plain, x.b.plain, was, x.m, x.n, x.k, 1, 3, -0.5);
    free(before);
    drop(&x.a), drop(&x.b), drop(&x.c), drop(&scalars);
  }
  tap_ok(good, "alpha and beta may lie in device memory");
}

/* ---- vectors ---- */

static void test_gemv(void) {
  bool good = true;
  for (int variant = 0; variant < 16; variant++) {
    bool wide = variant & 1, transpose = variant & 2;
    int incx = variant & 4 ? -2 : 1, incy = variant & 8 ? -3 : 2, m = 19, n = 6;
    int rows = transpose ? n : m, terms = transpose ? m : n;
    cudaDataType type = wide ? CUDA_R_64F : CUDA_R_32F;
    struct on_device a = on_device(type, m, n, 1), x = on_device(type, terms * 2, 1, 1),
                     y = on_device(type, rows * 3, 1, 1);
    void *before = copy_of(&y);
    double alpha = 2, beta = -1;
    float alpha_float = 2, beta_float = -1;
    cublasOperation_t trans = transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    if (wide)
      MUST_BLAS(
          cublasDgemv_v2(handle, trans, m, n, &alpha, a.at, a.ld, x.at, incx, &beta, y.at, incy));
    else
      MUST_BLAS(cublasSgemv_v2(handle, trans, m, n, &alpha_float, a.at, a.ld, x.at, incx,
                               &beta_float, y.at, incy));
    finish();
    /* By the definition: with a negative increment the first element is the last in memory. */
    struct plain vector = {(char *)x.plain.data +
                               (incx < 0 ? (1 - terms) * incx : 0) * (int)type_bytes(type),
                           type, incx, 0, 0};
    int64_t first = incy < 0 ? (1 - rows) * incy : 0;
    struct plain was = {(char *)before + first * (int64_t)type_bytes(type), type, incy, 0, 0};
    struct plain matrix = transpose ? transposed(a.plain) : a.plain;
    for (int row = 0; row < rows; row++)
      good &= is_near(get_number(y.plain.data, first + row * incy, type),
                      plain_element(&matrix, &vector, &was, row, 0, terms, 0, alpha, beta), type);
    free(before);
    drop(&a), drop(&x), drop(&y);
  }
  tap_ok(good, "gemv multiplies by the matrix and its transpose, at all increments");
}

static void test_vectors(void) {
  bool axpy = true, scale = true, dot = true;
  static const cudaDataType types[] = {CUDA_R_64F, CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF};
  for (int i = 0; i < 4; i++) {
    cudaDataType type = types[i], compute = i == 0 ? CUDA_R_64F : CUDA_R_32F;
    struct on_device x = on_device(type, 60, 1, 1), y = on_device(type, 60, 1, 1);
    void *was_x = copy_of(&x), *was_y = copy_of(&y), *result = calloc(1, 8);
    double alpha, expected = 0, size = 0;
    put_number(&alpha, 0, compute, -2);
    /* Element j of x is at 2 * (19 - j). */
    MUST_BLAS(cublasAxpyEx(handle, 20, &alpha, compute, x.at, type, -2, y.at, type, 1, compute));
    if (type == CUDA_R_64F)
      MUST_BLAS(cublasDdot_v2(handle, 20, x.at, 3, y.at, 1, result));
    else if (type == CUDA_R_32F)
      MUST_BLAS(cublasSdot_v2(handle, 20, x.at, 3, y.at, 1, result));
    else
      MUST_BLAS(cublasDotEx(handle, 20, x.at, type, 3, y.at, type, 1, result, type, compute));
    double is = get_number(result, 0, type); /* at once: the result is in host memory */
    MUST_BLAS(cublasScalEx(handle, 20, &alpha, compute, x.at, type, 3, compute));
    if (type == CUDA_R_64F) {
      MUST_BLAS(cublasDaxpy_v2(handle, 20, &alpha, x.at, 1, y.at, 1));
      MUST_BLAS(cublasDscal_v2(handle, 20, &alpha, y.at, 1));
    } else if (type == CUDA_R_32F) {
      MUST_BLAS(cublasSaxpy_v2(handle, 20, (float *)(void *)&alpha, x.at, 1, y.at, 1));
      MUST_BLAS(cublasSscal_v2(handle, 20, (float *)(void *)&alpha, y.at, 1));
    }
    finish();
    for (int j = 0; j < 20; j++) {
      struct element e = {get_number(was_y, j, type) - 2 * get_number(was_x, 2 * (19 - j), type),
                          type_epsilon(type) * 8};
      double y_then = e.value;
      expected += get_number(was_x, 3 * j, type) * y_then;
      size += fabs(get_number(was_x, 3 * j, type) * y_then);
      scale &= get_number(x.plain.data, 3 * j, type) == -2 * get_number(was_x, 3 * j, type);
      if (i < 2) {
        e.value = -2 * (e.value - 2 * get_number(x.plain.data, j, type));
        e.slack *= 8;
      }
      axpy &= is_near(get_number(y.plain.data, j, type), e, type);
    }
    struct element e = {expected, size * 40 * type_epsilon(type)};
    dot &= is_near(is, e, type) &&
           memcmp((char *)y.plain.data + 20 * type_bytes(type),
                  (char *)was_y + 20 * type_bytes(type), 40 * type_bytes(type)) == 0;
    free(was_x), free(was_y), free(result);
    drop(&x), drop(&y);
  }
  tap_ok(axpy, "axpy adds in all types, backwards too");
  tap_ok(scale, "scal multiplies in all types");
  tap_ok(dot, "dot is there in host memory when the call returns");
  struct on_device x = on_device(CUDA_R_32F, 8, 1, 1), result = on_device(CUDA_R_32F, 2, 1, 1);
  float sum = 0, kept = ((float *)result.plain.data)[1];
  for (int i = 0; i < 8; i++)
    sum += ((float *)x.plain.data)[i] * ((float *)x.plain.data)[i];
  MUST_BLAS(cublasSetPointerMode_v2(handle, CUBLAS_POINTER_MODE_DEVICE));
  MUST_BLAS(cublasSdot_v2(handle, 8, x.at, 1, x.at, 1, result.at));
  finish();
  bool good = fabsf(((float *)result.plain.data)[0] - sum) < 1e-5F &&
              ((float *)result.plain.data)[1] == kept;
  MUST_BLAS(cublasSdot_v2(handle, 0, x.at, 1, x.at, 1, result.at));
  finish();
  tap_ok(good && ((float *)result.plain.data)[0] == 0,
         "or in device memory, and is 0 for no elements");
  MUST_BLAS(cublasSetPointerMode_v2(handle, CUBLAS_POINTER_MODE_HOST));
}

/* ---- the handle, and refusals ---- */

static void test_handle(void) {
  cudaStream_t stream = (cudaStream_t)1;
  CUstream own;
  cublasPointerMode_t pointers = (cublasPointerMode_t)5;
  cublasAtomicsMode_t atomics = (cublasAtomicsMode_t)5;
  cublasMath_t math = (cublasMath_t)77;
  int count = -1, version = 0;
  MUST(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
  bool good = cublasGetStream_v2(handle, &stream) == 0 && stream == NULL &&
              cublasGetPointerMode_v2(handle, &pointers) == 0 &&
              pointers == CUBLAS_POINTER_MODE_HOST && cublasGetAtomicsMode(handle, &atomics) == 0 &&
              atomics == CUBLAS_ATOMICS_NOT_ALLOWED && cublasGetMathMode(handle, &math) == 0 &&
              math == CUBLAS_DEFAULT_MATH && cublasGetSmCountTarget(handle, &count) == 0 &&
              count == 0 && cublasGetVersion_v2(handle, &version) == 0 && version >= 130000;
  tap_ok(good, "a new handle has the documented settings");
  cublasMath_t wanted =
      (cublasMath_t)(CUBLAS_TF32_TENSOR_OP_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
  good = cublasSetStream_v2(handle, own) == 0 && cublasGetStream_v2(handle, &stream) == 0 &&
         stream == own && cublasSetMathMode(handle, wanted) == 0 &&
         cublasGetMathMode(handle, &math) == 0 && math == wanted &&
         cublasSetAtomicsMode(handle, CUBLAS_ATOMICS_ALLOWED) == 0 &&
         cublasGetAtomicsMode(handle, &atomics) == 0 && atomics == CUBLAS_ATOMICS_ALLOWED &&
         cublasSetSmCountTarget(handle, 8) == 0 && cublasGetSmCountTarget(handle, &count) == 0 &&
         count == 8 && cublasSetWorkspace_v2(handle, (void *)4096, 1 << 20) == 0;
  tap_ok(good, "and keeps those that are set");
  good =
      cublasSetPointerMode_v2(handle, (cublasPointerMode_t)2) == CUBLAS_STATUS_INVALID_VALUE &&
      cublasSetMathMode(handle, (cublasMath_t)9) == CUBLAS_STATUS_INVALID_VALUE &&
      cublasSetWorkspace_v2(handle, (void *)100, 1) == CUBLAS_STATUS_INVALID_VALUE &&
      cublasSetStream_v2(NULL, own) == CUBLAS_STATUS_NOT_INITIALIZED &&
      cublasDestroy_v2(NULL) == CUBLAS_STATUS_NOT_INITIALIZED &&
      cublasCreate_v2(NULL) == CUBLAS_STATUS_INVALID_VALUE &&
      strcmp(cublasGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED") == 0;
  tap_ok(good, "modes that don't exist and handles that aren't are refused");
  MUST_BLAS(cublasSetStream_v2(handle, NULL));
  MUST(cuStreamDestroy(own));
}

static void test_refusals(void) {
  struct call x = {.name = EX,
                   .type = CUDA_R_32F,
                   .c_type = CUDA_R_32F,
                   .compute = CUBLAS_COMPUTE_32F,
                   .m = 4,
                   .n = 4,
                   .k = 4,
                   .batch = 1};
  float one = 1;
  x.a = on_device(CUDA_R_32F, 4, 4, 1), x.b = on_device(CUDA_R_32F, 4, 4, 1),
  x.c = on_device(CUDA_R_32F, 4, 4, 1);
  x.alpha = x.beta = &one;
  unsigned long long launches = gpusim_counter_by_name("launches");
  struct call y = x;
#define REFUSED(change, status, words, sentence)                                                   \
  {                                                                                                \
    struct listening l = listen_to_stderr();                                                       \
    change;                                                                                        \
    bool refused = call(&y) == CUBLAS_STATUS_##status;                                             \
    tap_ok(said(l, words) && refused, "%s", sentence);                                             \
    y = x;                                                                                         \
  }
  REFUSED(y.transa = CUBLAS_OP_CONJG, INVALID_VALUE, "cublasGemmEx: refused: operation 3 on A",
          "conjugation is refused, by name");
  REFUSED(y.a.ld = 3, INVALID_VALUE, "A's columns have 4 elements and are 3 apart",
          "columns that overlap are refused");
  REFUSED(y.m = -1, INVALID_VALUE, "m = -1", "negative sizes are refused");
  REFUSED(y.type = y.c_type = CUDA_R_8I, NOT_SUPPORTED, "not supported here: another type (3)",
          "other types aren't supported, and the trace says which");
  REFUSED(y.c_type = CUDA_R_16F, NOT_SUPPORTED, "float32 (0) by float32 (0) to float16 (2)",
          "nor a result with less than its operands' precision");
  REFUSED(y.compute = CUBLAS_COMPUTE_32I, NOT_SUPPORTED, "compute type 72", "nor whole numbers");
  REFUSED(y.compute = CUBLAS_COMPUTE_64F, NOT_SUPPORTED, "in compute type 70",
          "nor float computed in double");
  REFUSED(y.alpha = NULL, INVALID_VALUE, "alpha or beta is NULL", "alpha must be there");
  REFUSED(y.b.at = &one, EXECUTION_FAILED, "B at ",
          "an operand in ordinary host memory is an error");
  REFUSED(y.c.at = (char *)x.c.at + x.c.bytes - 16, EXECUTION_FAILED, "C at ",
          "so is one that ends outside its allocation");
  finish();
  tap_ok(gpusim_counter_by_name("launches") == launches, "nothing is launched for what is refused");
  y.n = 0;
  bool good = call(&y) == CUBLAS_STATUS_SUCCESS;
  finish();
  tap_ok(good && gpusim_counter_by_name("launches") == launches,
         "nor for a result without elements, which is none");
  cublasHandle_t own = handle;
  handle = NULL;
  tap_ok(call(&x) == CUBLAS_STATUS_NOT_INITIALIZED, "a product needs a handle");
  handle = own;
  drop(&x.a), drop(&x.b), drop(&x.c);
}

int main(void) {
  start();
  MUST_BLAS(cublasCreate_v2(&handle));
  for (int name = 0; name < NAMES; name++)
    test_products((enum name)name);
  test_pointer_mode();
  test_gemv();
  test_vectors();
  test_handle();
  test_refusals();
  MUST_BLAS(cublasDestroy_v2(handle));
  tap_ok(gpusim_counter_by_name("violations") == 0, "no promise was broken");
  return tap_done();
}
