/* A small cuBLAS and cuBLASLt by their public headers: matrix products on the host, queued on the caller's stream
   through cuLaunchHostFunc. Everything not here is a generated stub. Built twice: -DIN_libcublas and -DIN_libcublasLt. */
#define _GNU_SOURCE
#include <cuda.h>
#include <stdlib.h>
#include <string.h>
#include <dlfcn.h>
#include <math.h>
#ifdef IN_libcublas
#include <cublas_v2.h>
#else
#include <cublasLt.h>
#endif
typedef struct { char ta, tb; int m, n, k; const void *a, *b; const void *c; void *d; cudaDataType ty_a, ty_b, ty_c, ty_d; long lda, ldb, ldc, ldd, sa, sb, sc, sd; int batch; double alpha, beta; const void *pa, *pb; int dev_scalar, sc64;
  const void *bias; cudaDataType ty_bias; int epi; } job;      /* epi: 1 bias, 2 relu, 4 gelu */
static float h2f(uint16_t u) { _Float16 h; memcpy(&h, &u, 2); return h; }
static float b2f(uint16_t u) { uint32_t x = (uint32_t)u << 16; float f; memcpy(&f, &x, 4); return f; }
static uint16_t f2h(float f) { _Float16 h = f; uint16_t u; memcpy(&u, &h, 2); return u; }
static uint16_t f2b(float f) { uint32_t x; memcpy(&x, &f, 4); if ((x & 0x7fffffff) > 0x7f800000) return 0x7fff; return (x + 0x7fff + (x >> 16 & 1)) >> 16; }
static double get(const void *p, long i, cudaDataType t) { switch (t) { case CUDA_R_64F: return ((double *)p)[i]; case CUDA_R_32F: return ((float *)p)[i]; case CUDA_R_16F: return h2f(((uint16_t *)p)[i]); default: return b2f(((uint16_t *)p)[i]); } }
static void put(void *p, long i, cudaDataType t, double v) { switch (t) { case CUDA_R_64F: ((double *)p)[i] = v; break; case CUDA_R_32F: ((float *)p)[i] = v; break; case CUDA_R_16F: ((uint16_t *)p)[i] = f2h(v); break; default: ((uint16_t *)p)[i] = f2b(v); } }
static size_t tsz(cudaDataType t) { return t == CUDA_R_64F ? 8 : t == CUDA_R_32F ? 4 : 2; }
/* A packed by rows (m x k), B by columns (n x k): each result is a dot product of two contiguous rows */
#define KERNEL(T, name) static __attribute__((optimize("O3"), target_clones("avx512f", "avx2,fma", "default"))) void name(const T *restrict a, const T *restrict b, T *restrict c, int m, int n, int k) { \
  for (int j = 0; j < n; j++) for (int i0 = 0; i0 < m; i0 += 64) { int i1 = i0 + 64 < m ? i0 + 64 : m; T s[64]; memset(s, 0, sizeof s); \
    for (int l = 0; l < k; l++) { T x = b[(size_t)j * k + l]; const T *q = a + (size_t)l * m; for (int i = i0; i < i1; i++) s[i - i0] += q[i] * x; } \
    for (int i = i0; i < i1; i++) c[(size_t)j * m + i] = s[i - i0]; } }
KERNEL(float, mmf)
KERNEL(double, mmd)
static void pack(void *o, int d64, const void *p, cudaDataType t, int rows, int cols, long ld, int trans, int want_row_contig) {
  /* element (r,c) of op(X) -> o[c*rows+r] when want_row_contig, else o[r*cols+c] */
  for (int c = 0; c < cols; c++) for (int r = 0; r < rows; r++) { double v = get(p, trans ? (long)r * ld + c : (long)c * ld + r, t); size_t i = want_row_contig ? (size_t)c * rows + r : (size_t)r * cols + c; if (d64) ((double *)o)[i] = v; else ((float *)o)[i] = v; } }
static void run(void *v) {
  job *j = v; static void *(*hp)(void *); if (!hp) hp = (void *(*)(void *))dlsym(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), "gpusim_host_view");
#define HP(f) j->f = (__typeof__(j->f))hp((void *)j->f)
  HP(a); HP(b); HP(c); HP(d); if (j->bias) HP(bias); if (j->dev_scalar) { HP(pa); HP(pb); }
  int d64 = j->ty_a == CUDA_R_64F; size_t e = d64 ? 8 : 4; if (j->dev_scalar) { j->alpha = j->sc64 ? *(double *)j->pa : *(float *)j->pa; j->beta = j->sc64 ? *(double *)j->pb : *(float *)j->pb; }
  void *a = malloc(e * j->m * (j->k + 1)), *b = malloc(e * j->n * (j->k + 1)), *c = malloc(e * j->m * (size_t)j->n + 1);
  for (int q = 0; q < j->batch; q++) {
    const char *A = (const char *)j->a + q * j->sa * tsz(j->ty_a), *B = (const char *)j->b + q * j->sb * tsz(j->ty_b), *C = (const char *)j->c + q * j->sc * tsz(j->ty_c); char *D = (char *)j->d + q * j->sd * tsz(j->ty_d);
    if (j->alpha != 0 && j->k) { pack(a, d64, A, j->ty_a, j->m, j->k, j->lda, j->ta, 1); pack(b, d64, B, j->ty_b, j->k, j->n, j->ldb, j->tb, 1); d64 ? mmd(a, b, c, j->m, j->n, j->k) : mmf(a, b, c, j->m, j->n, j->k); } else memset(c, 0, e * j->m * (size_t)j->n);
    for (int n = 0; n < j->n; n++) for (int m = 0; m < j->m; m++) { double x = d64 ? ((double *)c)[(size_t)n * j->m + m] : ((float *)c)[(size_t)n * j->m + m]; x *= j->alpha; if (j->beta != 0) x += j->beta * get(C, (long)n * j->ldc + m, j->ty_c);
      if (j->epi & 1) x += get(j->bias, m, j->ty_bias); if (j->epi & 2) x = x > 0 ? x : 0; if (j->epi & 4) x = .5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); put(D, (long)n * j->ldd + m, j->ty_d, x); } }
  free(a); free(b); free(c); free(j);
}
static int okty(cudaDataType t) { return t == CUDA_R_64F || t == CUDA_R_32F || t == CUDA_R_16F || t == CUDA_R_16BF; }
static int queue(job j, CUstream s) { if (!okty(j.ty_a) || !okty(j.ty_b) || !okty(j.ty_c) || !okty(j.ty_d)) return 15; if (!j.m || !j.n || !j.batch) return 0; job *p = malloc(sizeof *p); *p = j; return cuLaunchHostFunc(s, run, p) ? 14 : 0; }

#ifdef IN_libcublas
typedef struct { cublasMath_t mode; cublasPointerMode_t pm; cudaStream_t s; } H;
#define API cublasStatus_t
API cublasCreate_v2(cublasHandle_t *h) { *h = calloc(1, sizeof(H)); return 0; }
API cublasDestroy_v2(cublasHandle_t h) { free(h); return 0; }
API cublasSetStream_v2(cublasHandle_t h, cudaStream_t s) { ((H *)h)->s = s; return 0; }
API cublasGetStream_v2(cublasHandle_t h, cudaStream_t *s) { *s = ((H *)h)->s; return 0; }
API cublasSetWorkspace_v2(cublasHandle_t h, void *p, size_t n) { return 0; }
API cublasSetMathMode(cublasHandle_t h, cublasMath_t m) { ((H *)h)->mode = m; return 0; }
API cublasGetMathMode(cublasHandle_t h, cublasMath_t *m) { *m = ((H *)h)->mode; return 0; }
API cublasSetPointerMode_v2(cublasHandle_t h, cublasPointerMode_t m) { ((H *)h)->pm = m; return 0; }
API cublasGetPointerMode_v2(cublasHandle_t h, cublasPointerMode_t *m) { *m = ((H *)h)->pm; return 0; }
API cublasSetSmCountTarget(cublasHandle_t h, int n) { return 0; }
static API gemm(cublasHandle_t hh, int ta, int tb, int m, int n, int k, const void *al, const void *a, cudaDataType at, long lda, long sa, const void *b, cudaDataType bt, long ldb, long sb, const void *be, void *c, cudaDataType ct, long ldc, long sc, int batch, int s64) {
  H *h = (H *)hh; job j = {.ta = ta != 0, .tb = tb != 0, .m = m, .n = n, .k = k, .a = a, .b = b, .c = c, .d = c, .ty_a = at, .ty_b = bt, .ty_c = ct, .ty_d = ct, .lda = lda, .ldb = ldb, .ldc = ldc, .ldd = ldc, .sa = sa, .sb = sb, .sc = sc, .sd = sc, .batch = batch, .sc64 = s64};
  if (h->pm == CUBLAS_POINTER_MODE_DEVICE) j.dev_scalar = 1, j.pa = al, j.pb = be; else j.alpha = s64 ? *(double *)al : *(float *)al, j.beta = s64 ? *(double *)be : *(float *)be;
  return queue(j, (CUstream)h->s); }
API cublasSgemm_v2(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const float *al, const float *a, int lda, const float *b, int ldb, const float *be, float *c, int ldc) { return gemm(h, ta, tb, m, n, k, al, a, CUDA_R_32F, lda, 0, b, CUDA_R_32F, ldb, 0, be, c, CUDA_R_32F, ldc, 0, 1, 0); }
API cublasDgemm_v2(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const double *al, const double *a, int lda, const double *b, int ldb, const double *be, double *c, int ldc) { return gemm(h, ta, tb, m, n, k, al, a, CUDA_R_64F, lda, 0, b, CUDA_R_64F, ldb, 0, be, c, CUDA_R_64F, ldc, 0, 1, 1); }
API cublasSgemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const float *al, const void *a, cudaDataType at, int lda, const void *b, cudaDataType bt, int ldb, const float *be, void *c, cudaDataType ct, int ldc) { return gemm(h, ta, tb, m, n, k, al, a, at, lda, 0, b, bt, ldb, 0, be, c, ct, ldc, 0, 1, 0); }
API cublasGemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void *al, const void *a, cudaDataType at, int lda, const void *b, cudaDataType bt, int ldb, const void *be, void *c, cudaDataType ct, int ldc, cublasComputeType_t cp, cublasGemmAlgo_t g) { if (cp == CUBLAS_COMPUTE_16F || cp == CUBLAS_COMPUTE_16F_PEDANTIC) return 15; return gemm(h, ta, tb, m, n, k, al, a, at, lda, 0, b, bt, ldb, 0, be, c, ct, ldc, 0, 1, at == CUDA_R_64F); }
API cublasSgemmStridedBatched(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const float *al, const float *a, int lda, long long sa, const float *b, int ldb, long long sb, const float *be, float *c, int ldc, long long sc, int bc) { return gemm(h, ta, tb, m, n, k, al, a, CUDA_R_32F, lda, sa, b, CUDA_R_32F, ldb, sb, be, c, CUDA_R_32F, ldc, sc, bc, 0); }
API cublasDgemmStridedBatched(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const double *al, const double *a, int lda, long long sa, const double *b, int ldb, long long sb, const double *be, double *c, int ldc, long long sc, int bc) { return gemm(h, ta, tb, m, n, k, al, a, CUDA_R_64F, lda, sa, b, CUDA_R_64F, ldb, sb, be, c, CUDA_R_64F, ldc, sc, bc, 1); }
API cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void *al, const void *a, cudaDataType at, int lda, long long sa, const void *b, cudaDataType bt, int ldb, long long sb, const void *be, void *c, cudaDataType ct, int ldc, long long sc, int bc, cublasComputeType_t cp, cublasGemmAlgo_t g) { if (cp == CUBLAS_COMPUTE_16F || cp == CUBLAS_COMPUTE_16F_PEDANTIC) return 15; return gemm(h, ta, tb, m, n, k, al, a, at, lda, sa, b, bt, ldb, sb, be, c, ct, ldc, sc, bc, at == CUDA_R_64F); }
#else
typedef struct { int32_t ta, tb, epi; const void *bias; int32_t bias_ty, scale, pm; } desc;
typedef struct { cudaDataType t; uint64_t r, c; int64_t ld, stride; int32_t batch; } lay;
#define API cublasStatus_t
size_t cublasLtGetVersion(void) { return 130000; }
API cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t c, cudaDataType_t s) { desc *x = calloc(1, sizeof *x); x->scale = s; x->bias_ty = -1; x->epi = CUBLASLT_EPILOGUE_DEFAULT; *d = (void *)x; return 0; }
API cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { free(d); return 0; }
API cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void *b, size_t n) { desc *x = (void *)d;
  switch (a) { case CUBLASLT_MATMUL_DESC_TRANSA: x->ta = *(int32_t *)b; break; case CUBLASLT_MATMUL_DESC_TRANSB: x->tb = *(int32_t *)b; break; case CUBLASLT_MATMUL_DESC_EPILOGUE: x->epi = *(int32_t *)b; break; case CUBLASLT_MATMUL_DESC_BIAS_POINTER: x->bias = *(void **)b; break; case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: x->bias_ty = *(int32_t *)b; break; case CUBLASLT_MATMUL_DESC_POINTER_MODE: x->pm = *(int32_t *)b; break; default: break; } return 0; }
API cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p) { *p = calloc(1, 64); return 0; }
API cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { free(p); return 0; }
API cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t a, const void *b, size_t n) { return 0; }
API cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType t, uint64_t r, uint64_t c, int64_t ld) { lay *x = calloc(1, sizeof *x); *x = (lay){t, r, c, ld, 0, 1}; *l = (void *)x; return 0; }
API cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { free(l); return 0; }
API cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t a, const void *b, size_t n) { lay *x = (void *)l; if (a == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) x->batch = *(int32_t *)b; if (a == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) x->stride = *(int64_t *)b; return 0; }
static int epi(int e) { switch (e) { case CUBLASLT_EPILOGUE_DEFAULT: return 0; case CUBLASLT_EPILOGUE_BIAS: return 1; case CUBLASLT_EPILOGUE_RELU: return 2; case CUBLASLT_EPILOGUE_RELU_BIAS: return 3; case CUBLASLT_EPILOGUE_GELU: return 4; case CUBLASLT_EPILOGUE_GELU_BIAS: return 5; default: return -1; } }
API cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t dd, cublasLtMatmulPreference_t p, int want, cublasLtMatmulHeuristicResult_t *r, int *got) {
  *got = 0; if (epi(((desc *)d)->epi) < 0 || want < 1 || !okty(((lay *)a)->t)) return 15; memset(r, 0, sizeof *r); *got = 1; return 0; }
API cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t dd, const void *al, const void *a, cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb, const void *be, const void *c, cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t *algo, void *ws, size_t wn, cudaStream_t s) {
  desc *x = (void *)dd; lay *A = (void *)la, *B = (void *)lb, *C = (void *)lc, *D = (void *)ld; int e = epi(x->epi); if (e < 0) return 15;
  job j = {.ta = x->ta != 0, .tb = x->tb != 0, .m = D->r, .n = D->c, .k = x->ta ? A->r : A->c, .a = a, .b = b, .c = c, .d = d, .ty_a = A->t, .ty_b = B->t, .ty_c = C->t, .ty_d = D->t, .lda = A->ld, .ldb = B->ld, .ldc = C->ld, .ldd = D->ld, .sa = A->stride, .sb = B->stride, .sc = C->stride, .sd = D->stride, .batch = D->batch, .sc64 = x->scale == CUDA_R_64F, .bias = x->bias, .ty_bias = x->bias_ty < 0 ? D->t : x->bias_ty, .epi = e};
  if (x->pm) j.dev_scalar = 1, j.pa = al, j.pb = be; else j.alpha = j.sc64 ? *(double *)al : *(float *)al, j.beta = j.sc64 ? *(double *)be : *(float *)be;
  return queue(j, (CUstream)s); }
#endif
