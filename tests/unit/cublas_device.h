/* What the tests of the cuBLAS stand-ins' calls share: matrices in the simulated GPU's memory, and
   what is said on stderr. */
#ifndef CUBLAS_DEVICE_H
#define CUBLAS_DEVICE_H
#include "tests/unit/cublas_support.h"
#include "tests/unit/gpusim_driver.h"

UNUSED_OK static void must_blas(cublasStatus_t status, const char *call, int line) {
  if (status == CUBLAS_STATUS_SUCCESS)
    return;
  printf("Bail out! line %d: %s: %d\n", line, call, (int)status);
  fflush(stdout);
  _exit(1);
}
#define MUST_BLAS(call) must_blas((call), #call, __LINE__)

/* Columns `ld` elements apart; `plain` sees it through the CPU's view. */
struct on_device {
  struct plain plain;
  void *at;
  int ld;
  size_t bytes;
};

/* Random numbers everywhere, also between the columns. */
UNUSED_OK static struct on_device on_device(cudaDataType type, int rows, int columns, int batch) {
  struct on_device x = {.ld = rows + 3};
  size_t count = (size_t)x.ld * (size_t)(columns + 1) * (size_t)batch;
  CUdeviceptr at;
  x.bytes = count * type_bytes(type);
  MUST(cuMemAlloc(&at, x.bytes));
  x.at = (void *)at;
  x.plain = (struct plain){.data = gpusim_host_view(x.at),
                           .type = type,
                           .row_stride = 1,
                           .column_stride = x.ld,
                           .batch_stride = (int64_t)x.ld * (columns + 1)};
  fill_random(x.plain.data, count, type);
  return x;
}

UNUSED_OK static void drop(struct on_device *x) {
  MUST(cuMemFree((CUdeviceptr)x->at));
}

UNUSED_OK static struct plain transposed(struct plain x) {
  int64_t stride = x.row_stride;
  x.row_stride = x.column_stride;
  x.column_stride = stride;
  return x;
}

UNUSED_OK static void *copy_of(const struct on_device *x) {
  void *copy = malloc(x->bytes);
  memcpy(copy, x->plain.data, x->bytes);
  return copy;
}

/* Whether all of D is near alpha A B + beta C and nothing else in its memory changed. `before` is
   what the memory of D held, and C if that is the same. */
UNUSED_OK static bool is_product(const struct on_device *d, const void *before, struct plain a,
                                 struct plain b, struct plain c, int m, int n, int k, int batch,
                                 double alpha, double beta) {
  void *rest = copy_of(d);
  bool good = true;
  for (int i = 0; i < batch; i++)
    for (int column = 0; column < n; column++)
      for (int row = 0; row < m; row++) {
        struct element e = plain_element(&a, &b, &c, row, column, k, i, alpha, beta);
        int64_t at = plain_index(&d->plain, row, column, i);
        good &= is_near(plain_at(&d->plain, row, column, i), e, d->plain.type);
        put_number(rest, at, d->plain.type, get_number(before, at, d->plain.type));
      }
  good &= memcmp(rest, before, d->bytes) == 0 && memcmp(d->plain.data, before, d->bytes) != 0;
  free(rest);
  return good;
}

/* What the process says on stderr between the two, with GPUSIM_TRACE=1. */
struct listening {
  int kept, file;
};

UNUSED_OK static struct listening listen_to_stderr(void) {
  struct listening l = {dup(2), -1};
  FILE *file = tmpfile();
  if (file == NULL)
    exit(2);
  l.file = fileno(file); /* the file goes with the process */
  setenv("GPUSIM_TRACE", "1", 1);
  dup2(l.file, 2);
  return l;
}

UNUSED_OK static bool said(struct listening l, const char *words) {
  char text[2048];
  ssize_t count;
  unsetenv("GPUSIM_TRACE");
  dup2(l.kept, 2);
  count = pread(l.file, text, sizeof text - 1, 0);
  text[count > 0 ? count : 0] = 0;
  close(l.kept);
  return strstr(text, words) != NULL;
}
#endif
