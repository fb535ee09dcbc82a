/* cuBLASLt's calls: descriptors, products by rows and by columns, every epilogue in all types, and
   what is refused. */
#include "tests/unit/cublas_device.h"
#include <cublasLt.h>

static cublasLtHandle_t handle;

enum { M = 21, N = 7, K = 13, BATCH = 2 };
static const struct typing {
  cudaDataType type, d_type;
  cublasComputeType_t compute;
  cudaDataType scale;
} typings[] = {
    {CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F, CUDA_R_64F},
    {CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F},
    {CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_32F, CUDA_R_32F},
    {CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_16F, CUDA_R_16F},
    {CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUDA_R_32F},
    {CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F, CUDA_R_32F},
};
enum { TYPINGS = sizeof typings / sizeof typings[0] };

#define SET(kind, object, name, type, value)                                                       \
  do {                                                                                             \
    type set = value;                                                                              \
    MUST_BLAS(cublasLt##kind##SetAttribute(object, name, &set, sizeof set));                       \
  } while (0)

/* A product and all it needs. */
struct matmul {
  struct typing t;
  cublasLtMatmulDesc_t matmul;
  cublasLtMatrixLayout_t layout[4]; /* of A, B, C, D */
  struct on_device at[4];
  struct plain seen[4]; /* as A, B, C, D are meant */
  void *before;         /* D's memory */
  double alpha, beta;
};

/* `lies` for A, B, C and D: 1, its rows are lines; 2, it is transposed by the operation (A and
   B). */
static struct matmul prepare(struct typing t, const int lies[4]) {
  struct matmul x = {.t = t, .alpha = -1.5, .beta = 0.5};
  static const int sizes[4][2] = {{M, K}, {K, N}, {M, N}, {M, N}};
  MUST_BLAS(cublasLtMatmulDescCreate(&x.matmul, t.compute, t.scale));
  for (int i = 0; i < 4; i++) {
    cudaDataType type = i < 2 ? t.type : t.d_type;
    bool by_rows = lies[i] & 1, operation = lies[i] & 2;
    int rows = sizes[i][operation], columns = sizes[i][!operation];
    x.at[i] = on_device(type, by_rows ? columns : rows, by_rows ? rows : columns, BATCH);
    x.seen[i] = by_rows != operation ? transposed(x.at[i].plain) : x.at[i].plain;
    MUST_BLAS(cublasLtMatrixLayoutCreate(&x.layout[i], type, (uint64_t)rows, (uint64_t)columns,
                                         x.at[i].ld));
    int32_t order = by_rows ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL;
    SET(MatrixLayout, x.layout[i], CUBLASLT_MATRIX_LAYOUT_ORDER, int32_t, order);
    SET(MatrixLayout, x.layout[i], CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, int32_t, BATCH);
    SET(MatrixLayout, x.layout[i], CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, int64_t,
        x.at[i].plain.batch_stride);
  }
  int32_t transa = lies[0] & 2 ? CUBLAS_OP_T : CUBLAS_OP_N;
  int32_t transb = lies[1] & 2 ? CUBLAS_OP_C : CUBLAS_OP_N;
  SET(MatmulDesc, x.matmul, CUBLASLT_MATMUL_DESC_TRANSA, int32_t, transa);
  SET(MatmulDesc, x.matmul, CUBLASLT_MATMUL_DESC_TRANSB, int32_t, transb);
  x.before = copy_of(&x.at[3]);
  return x;
}

static cublasStatus_t find(const struct matmul *x, int *found) {
  cublasLtMatmulHeuristicResult_t result;
  cublasLtMatmulPreference_t preference;
  MUST_BLAS(cublasLtMatmulPreferenceCreate(&preference));
  SET(MatmulPreference, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t, 1 << 20);
  cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, x->matmul, x->layout[0], x->layout[1], x->layout[2],
                                     x->layout[3], preference, 1, &result, found);
  MUST_BLAS(cublasLtMatmulPreferenceDestroy(preference));
  return status == CUBLAS_STATUS_SUCCESS ? result.state : status;
}

static cublasStatus_t run(struct matmul *x) {
  double scalars[2];
  put_number(&scalars[0], 0, x->t.scale, x->alpha);
  put_number(&scalars[1], 0, x->t.scale, x->beta);
  cublasStatus_t status = cublasLtMatmul(
      handle, x->matmul, &scalars[0], x->at[0].at, x->layout[0], x->at[1].at, x->layout[1],
      &scalars[1], x->at[2].at, x->layout[2], x->at[3].at, x->layout[3], NULL, NULL, 0, NULL);
  scalars[0] = scalars[1] = 77;
  MUST(cuStreamSynchronize(NULL));
  return status;
}

static void end(struct matmul *x) {
  for (int i = 0; i < 4; i++) {
    drop(&x->at[i]);
    MUST_BLAS(cublasLtMatrixLayoutDestroy(x->layout[i]));
  }
  MUST_BLAS(cublasLtMatmulDescDestroy(x->matmul));
  free(x->before);
}

static void test_products(void) {
  bool good = true, found = true;
  for (int i = 0; i < TYPINGS; i++)
    for (int variant = 0; variant < 64; variant++) {
      const int lies[4] = {variant & 3, variant >> 2 & 3, variant >> 4 & 1, variant >> 5};
      struct matmul x = prepare(typings[i], lies);
      int count = 0;
      found &= find(&x, &count) == CUBLAS_STATUS_SUCCESS && count == 1;
      struct on_device d = x.at[3];
      d.plain = x.seen[3];
      good &= run(&x) == CUBLAS_STATUS_SUCCESS &&
              is_product(&d, x.before, x.seen[0], x.seen[1], x.seen[2], M, N, K, BATCH, x.alpha,
                         x.beta);
      end(&x);
    }
  tap_ok(good, "batches of all types, by rows and by columns, by all operations");
  tap_ok(found, "the search finds one way for each");
}

static void test_device_scalars(void) {
  static const int lies[4] = {0, 0, 0, 0};
  struct matmul x = prepare(typings[1], lies);
  struct on_device scalars = on_device(CUDA_R_32F, 2, 1, 1);
  float *values = scalars.plain.data;
  values[0] = 3, values[1] = -0.25F;
  SET(MatmulDesc, x.matmul, CUBLASLT_MATMUL_DESC_POINTER_MODE, int32_t,
      CUBLASLT_POINTER_MODE_DEVICE);
  MUST_BLAS(cublasLtMatmul(handle, x.matmul, scalars.at, x.at[0].at, x.layout[0], x.at[1].at,
                           x.layout[1], (float *)scalars.at + 1, x.at[2].at, x.layout[2],
                           x.at[3].at, x.layout[3], NULL, NULL, 0, NULL));
  MUST(cuStreamSynchronize(NULL));
  tap_ok(is_product(&x.at[3], x.before, x.seen[0], x.seen[1], x.seen[2], M, N, K, BATCH, 3, -0.25),
         "alpha and beta may lie in device memory");
  end(&x);
  drop(&scalars);
}

/* ---- epilogues ---- */

static double gelu_of(double x) {
  return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope_of(double x) {
  double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

static const struct epilogue {
  const char *name;
  cublasLtEpilogue_t epilogue;
  bool bias, aux, relu, gelu, backward, gradient;
} epilogues[] = {
    {"RELU", CUBLASLT_EPILOGUE_RELU, .relu = true},
    {"RELU_AUX", CUBLASLT_EPILOGUE_RELU_AUX, .relu = true, .aux = true},
    {"BIAS", CUBLASLT_EPILOGUE_BIAS, .bias = true},
    {"RELU_BIAS", CUBLASLT_EPILOGUE_RELU_BIAS, .relu = true, .bias = true},
    {"RELU_AUX_BIAS", CUBLASLT_EPILOGUE_RELU_AUX_BIAS, .relu = true, .aux = true, .bias = true},
    {"DRELU", CUBLASLT_EPILOGUE_DRELU, .relu = true, .aux = true, .backward = true},
    {"DRELU_BGRAD", CUBLASLT_EPILOGUE_DRELU_BGRAD, .relu = true, .aux = true, .backward = true,
     .gradient = true},
    {"GELU", CUBLASLT_EPILOGUE_GELU, .gelu = true},
    {"GELU_AUX", CUBLASLT_EPILOGUE_GELU_AUX, .gelu = true, .aux = true},
    {"GELU_BIAS", CUBLASLT_EPILOGUE_GELU_BIAS, .gelu = true, .bias = true},
    {"GELU_AUX_BIAS", CUBLASLT_EPILOGUE_GELU_AUX_BIAS, .gelu = true, .aux = true, .bias = true},
    {"DGELU", CUBLASLT_EPILOGUE_DGELU, .gelu = true, .aux = true, .backward = true},
    {"DGELU_BGRAD", CUBLASLT_EPILOGUE_DGELU_BGRAD, .gelu = true, .aux = true, .backward = true,
     .gradient = true},
    {"BGRADA", CUBLASLT_EPILOGUE_BGRADA, .gradient = true},
    {"BGRADB", CUBLASLT_EPILOGUE_BGRADB, .gradient = true},
};

/* Bias or its gradient, and aux, with gaps between the matrices of the batch. */
enum {
  BIAS_STRIDE = 24,
  GELU_LD = 24,
  GELU_STRIDE = GELU_LD * N + 8,
  BITS_LD = 128,
  BITS_STRIDE = BITS_LD * N + 128
};

static bool bit_of(const void *aux, int row, int column, int i) {
  int bit = i * BITS_STRIDE + column * BITS_LD + row;
  return ((const uint8_t *)aux)[bit / 8] >> bit % 8 & 1;
}

/* One element after the other, by what the public header says of each epilogue. */
static bool check_epilogue(const struct matmul *x, const struct epilogue *e, const void *bias_was,
                           const void *bias, const void *aux_was, const void *aux) {
  cudaDataType type = x->t.d_type;
  bool good = true;
  for (int i = 0; i < BATCH; i++)
    for (int row = 0; row < M; row++) {
      struct element sum = {0, 0};
      for (int column = 0; column < N; column++) {
        struct element v = plain_element(&x->seen[0], &x->seen[1], &x->seen[2], row, column, K, i,
                                         x->alpha, x->beta);
        int at = i * GELU_STRIDE + column * GELU_LD + row;
        if (e->bias)
          v.value += get_number(bias_was, i * BIAS_STRIDE + row, type);
        if (e->aux && !e->backward && e->gelu)
          good &= is_near(get_number(aux, at, type), v, type);
        if (e->aux && !e->backward && e->relu)
          good &= bit_of(aux, row, column, i) == (v.value > 0) || fabs(v.value) <= v.slack;
        v.slack *= 2;
        if (e->backward)
          v.value *= e->relu ? bit_of(aux_was, row, column, i)
                             : gelu_slope_of(get_number(aux_was, at, type));
        else if (e->relu)
          v.value = fmax(v.value, 0);
        else if (e->gelu)
          v.value = gelu_of(v.value);
        good &= is_near(plain_at(&x->seen[3], row, column, i), v, type);
        sum.value += v.value;
        sum.slack +=
            v.slack + fabs(v.value) * 16 * type_epsilon(type == CUDA_R_64F ? type : CUDA_R_32F);
      }
      if (e->gradient && e->backward)
        good &= is_near(get_number(bias, i * BIAS_STRIDE + row, type), sum, type);
    }
  for (int i = 0; i < BATCH && e->gradient && !e->backward; i++) {
    bool of_a = e->epilogue == CUBLASLT_EPILOGUE_BGRADA;
    for (int line = 0; line < (of_a ? M : N); line++) {
      struct element sum = {0, 16 * K * type_epsilon(type == CUDA_R_64F ? type : CUDA_R_32F)};
      for (int l = 0; l < K; l++)
        sum.value += of_a ? plain_at(&x->seen[0], line, l, i) : plain_at(&x->seen[1], l, line, i);
      good &= is_near(get_number(bias, i * BIAS_STRIDE + line, type), sum, type);
    }
  }
  return good;
}

static bool try_epilogue(const struct epilogue *e, struct typing t, const int lies[4]) {
  struct matmul x = prepare(t, lies);
  struct on_device bias = on_device(t.d_type, BIAS_STRIDE * BATCH, 1, 1),
                   aux = on_device(t.d_type, GELU_STRIDE * BATCH, 1, 1);
  int64_t aux_ld = e->relu ? BITS_LD : GELU_LD, aux_stride = e->relu ? BITS_STRIDE : GELU_STRIDE;
  SET(MatmulDesc, x.matmul, CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t, (uint32_t)e->epilogue);
  SET(MatmulDesc, x.matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, void *, bias.at);
  SET(MatmulDesc, x.matmul, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, int64_t, BIAS_STRIDE);
  SET(MatmulDesc, x.matmul, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t, (int32_t)t.d_type);
  SET(MatmulDesc, x.matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, void *, aux.at);
  SET(MatmulDesc, x.matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t, aux_ld);
  SET(MatmulDesc, x.matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, int64_t, aux_stride);
  void *bias_was = copy_of(&bias), *aux_was = copy_of(&aux), *d_before = x.before;
  int found = 0;
  bool good =
      find(&x, &found) == CUBLAS_STATUS_SUCCESS && found == 1 && run(&x) == CUBLAS_STATUS_SUCCESS;
  good &= check_epilogue(&x, e, bias_was, bias.plain.data, aux_was, aux.plain.data);
  good &= e->gradient || memcmp(bias_was, bias.plain.data, bias.bytes) == 0;
  good &= (memcmp(aux_was, aux.plain.data, aux.bytes) != 0) == (e->aux && !e->backward);
  good &= memcmp(d_before, x.at[3].plain.data, x.at[3].bytes) != 0;
  free(bias_was), free(aux_was);
  drop(&bias), drop(&aux);
  end(&x);
  return good;
}

static void test_epilogues(void) {
  static const int columns[4] = {0, 2, 0, 0}, rows[4] = {1, 2, 1, 1};
  for (size_t i = 0; i < sizeof epilogues / sizeof epilogues[0]; i++) {
    bool good = true;
    for (int t = 0; t < TYPINGS; t++)
      good &= try_epilogue(&epilogues[i], typings[t], columns) &&
              try_epilogue(&epilogues[i], typings[t], rows);
    tap_ok(good, "epilogue %s, in all types", epilogues[i].name);
  }
}

/* ---- descriptors and refusals ---- */

static void test_attributes(void) {
  static const int lies[4] = {0, 0, 0, 0};
  struct matmul x = prepare(typings[0], lies);
  int32_t compute = 0, order = 7;
  uint64_t rows = 0;
  size_t written = 0;
  bool good = cublasLtMatmulDescGetAttribute(x.matmul, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, &compute,
                                             sizeof compute, &written) == 0 &&
              compute == CUBLAS_COMPUTE_64F && written == sizeof compute &&
              cublasLtMatrixLayoutGetAttribute(x.layout[1], CUBLASLT_MATRIX_LAYOUT_ROWS, &rows,
                                               sizeof rows, NULL) == 0 &&
              rows == K &&
              cublasLtMatrixLayoutGetAttribute(x.layout[1], CUBLASLT_MATRIX_LAYOUT_ORDER, &order,
                                               sizeof order, NULL) == 0 &&
              order == CUBLASLT_ORDER_COL &&
              cublasLtMatrixLayoutGetAttribute(x.layout[1], CUBLASLT_MATRIX_LAYOUT_LD, NULL, 0,
                                               &written) == 0 &&
              written == 8;
  tap_ok(good, "descriptors tell what they hold");
  good = cublasLtMatmulDescSetAttribute(x.matmul, CUBLASLT_MATMUL_DESC_TRANSA, &rows,
                                        sizeof rows) == CUBLAS_STATUS_INVALID_VALUE &&
         cublasLtMatmulDescSetAttribute(x.matmul, (cublasLtMatmulDescAttributes_t)31, &compute,
                                        4) == CUBLAS_STATUS_NOT_SUPPORTED &&
         cublasLtMatrixLayoutSetAttribute(x.layout[0], CUBLASLT_MATRIX_LAYOUT_LD, NULL, 8) ==
             CUBLAS_STATUS_INVALID_VALUE;
  tap_ok(good, "values of another size and attributes for other types are refused");
  end(&x);
}

static void test_refusals(void) {
  static const int lies[4] = {0, 0, 0, 0};
  unsigned long long launches = gpusim_counter_by_name("launches");
  int place = 0, found;
#define REFUSED(change, expected, words, sentence)                                                 \
  {                                                                                                \
    struct matmul x = prepare(typings[4], lies);                                                   \
    struct listening l = listen_to_stderr();                                                       \
    change;                                                                                        \
    bool refused = run(&x) == CUBLAS_STATUS_##expected;                                            \
    tap_ok(said(l, words) && refused, "%s", sentence);                                             \
    end(&x);                                                                                       \
  }
#define DESC(name, type, value) SET(MatmulDesc, x.matmul, CUBLASLT_MATMUL_DESC_##name, type, value)
#define LAYOUT(i, name, type, value)                                                               \
  SET(MatrixLayout, x.layout[i], CUBLASLT_MATRIX_LAYOUT_##name, type, value)
  REFUSED(DESC(EPILOGUE, uint32_t, CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_RELU),
          NOT_SUPPORTED, "cublasLtMatmul: not supported here: epilogue 258",
          "an epilogue that doesn't exist isn't supported, and is named");
  REFUSED(DESC(POINTER_MODE, int32_t, CUBLASLT_POINTER_MODE_DEVICE_VECTOR), NOT_SUPPORTED,
          "pointer mode 2", "nor a vector of alphas");
  REFUSED(LAYOUT(1, ORDER, int32_t, 2), NOT_SUPPORTED, "B has order 2", "nor tiled orders");
  REFUSED(DESC(TRANSA, int32_t, CUBLAS_OP_CONJG), INVALID_VALUE, "operation 3 on A",
          "conjugation is refused");
  REFUSED(DESC(A_SCALE_POINTER, void *, &place), INVALID_VALUE, "a scale",
          "scales are for types of 8 bits");
  REFUSED(LAYOUT(0, TYPE, uint32_t, CUDA_R_8F_E4M3), NOT_SUPPORTED, "another type (28)",
          "which aren't supported");
  REFUSED(DESC(EPILOGUE, uint32_t, CUBLASLT_EPILOGUE_BIAS), INVALID_VALUE,
          "epilogue 4 without a bias", "a bias must be there");
  REFUSED(DESC(EPILOGUE, uint32_t, CUBLASLT_EPILOGUE_DGELU), INVALID_VALUE, "aux has columns 0",
          "so must what the gradient is taken at");
  REFUSED(LAYOUT(1, ROWS, uint64_t, K - 1), INVALID_VALUE, "21 by 13 times 12 by 7 isn't 21 by 7",
          "sizes that don't fit are refused");
  REFUSED(LAYOUT(2, BATCH_COUNT, int32_t, 1), INVALID_VALUE, "batches of 2, 2, 1 and 2",
          "and batches");
  REFUSED(LAYOUT(2, TYPE, uint32_t, CUDA_R_32F), NOT_SUPPORTED, "C and D have different types",
          "C must be of D's type");
  tap_ok(gpusim_counter_by_name("launches") == launches, "nothing is launched for what is refused");
  struct matmul x = prepare(typings[4], lies);
  DESC(EPILOGUE, uint32_t, 3);
  found = 9;
  tap_ok(find(&x, &found) == CUBLAS_STATUS_NOT_SUPPORTED && found == 0,
         "the search finds nothing for it");
  DESC(EPILOGUE, uint32_t, CUBLASLT_EPILOGUE_BIAS);
  tap_ok(find(&x, &found) == CUBLAS_STATUS_SUCCESS && found == 1, "but needs no addresses");
  end(&x);
}

int main(void) {
  start();
  MUST_BLAS(cublasLtCreate(&handle));
  test_products();
  test_device_scalars();
  test_epilogues();
  test_attributes();
  test_refusals();
  MUST_BLAS(cublasLtDestroy(handle));
  tap_ok(gpusim_counter_by_name("violations") == 0, "no promise was broken");
  return tap_done();
}
