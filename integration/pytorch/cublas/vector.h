/* Operations on vectors as data, and their arithmetic. Addresses, scalars and sums are as in
   product.h. */
#ifndef OFFLOAD_CUBLAS_VECTOR_H
#define OFFLOAD_CUBLAS_VECTOR_H
#include "integration/pytorch/cublas/product.h"

enum vector_kind {
  VECTOR_AXPY,  /* y += alpha x */
  VECTOR_SCALE, /* x *= alpha */
  VECTOR_DOT,   /* *result = sum of x y */
};

/* Of the element with index 0; `stride` may be negative. */
struct vector {
  void *data;
  cudaDataType type;
  int64_t stride;
};

struct vector_work {
  enum vector_kind kind;
  int64_t count;
  struct vector x, y;
  struct scalar alpha;
  void *result;
  cudaDataType result_type;
};

void vector_run(const struct vector_work *, void *(*view)(void *));
#endif
