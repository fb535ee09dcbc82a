/* What the tests of the cuBLAS stand-ins share: numbers of all types, and the plain product that
   results are held against. */
#ifndef CUBLAS_SUPPORT_H
#define CUBLAS_SUPPORT_H
#include "integration/pytorch/nccl/number.h"
#include "tests/lib/tap.h"
#include <cublas_v2.h>
#include <stdlib.h>

#define UNUSED_OK __attribute__((unused))

UNUSED_OK static size_t type_bytes(cudaDataType type) {
  return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}

UNUSED_OK static const char *type_name(cudaDataType type) {
  return type == CUDA_R_64F   ? "float64"
         : type == CUDA_R_32F ? "float32"
         : type == CUDA_R_16F ? "float16"
                              : "bfloat16";
}

/* Half of the distance of 1 to the next number. */
UNUSED_OK static double type_epsilon(cudaDataType type) {
  return ldexp(1, type == CUDA_R_64F   ? -53
                  : type == CUDA_R_32F ? -24
                  : type == CUDA_R_16F ? -11
                                       : -8);
}

UNUSED_OK static double get_number(const void *data, int64_t i, cudaDataType type) {
  if (type == CUDA_R_64F)
    return ((const double *)data)[i];
  if (type == CUDA_R_32F)
    return (double)((const float *)data)[i];
  return (double)number_unpack(((const uint16_t *)data)[i],
                               type == CUDA_R_16F ? NUMBER_FLOAT16 : NUMBER_BFLOAT16);
}

UNUSED_OK static void put_number(void *data, int64_t i, cudaDataType type, double value) {
  if (type == CUDA_R_64F)
    ((double *)data)[i] = value;
  else if (type == CUDA_R_32F)
    ((float *)data)[i] = (float)value;
  else
    ((uint16_t *)data)[i] =
        (uint16_t)number_pack((float)value, type == CUDA_R_16F ? NUMBER_FLOAT16 : NUMBER_BFLOAT16);
}

/* From -1 to 1, the same in every run. */
UNUSED_OK static double random_number(void) {
  static uint64_t state = 1;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (double)(int64_t)state / 0x1p63;
}

UNUSED_OK static void fill_random(void *data, size_t count, cudaDataType type) {
  for (size_t i = 0; i < count; i++)
    put_number(data, (int64_t)i, type, random_number());
}

/* A matrix in memory that the CPU reads. */
struct plain {
  void *data;
  cudaDataType type;
  int64_t row_stride, column_stride, batch_stride;
};

UNUSED_OK static int64_t plain_index(const struct plain *x, int64_t row, int64_t column,
                                     int64_t batch) {
  return row * x->row_stride + column * x->column_stride + batch * x->batch_stride;
}

UNUSED_OK static double plain_at(const struct plain *x, int64_t row, int64_t column,
                                 int64_t batch) {
  return get_number(x->data, plain_index(x, row, column, batch), x->type);
}

/* One element of alpha A B + beta C in double, and how far a result may be from it before it is
   rounded to its type: an error for each operation, each at most the epsilon of what is computed in
   times what is summed. */
struct element {
  double value, slack;
};

UNUSED_OK static struct element plain_element(const struct plain *a, const struct plain *b,
                                              const struct plain *c, int64_t row, int64_t column,
                                              int64_t k, int64_t batch, double alpha, double beta) {
  struct element e = {0, 0};
  double epsilon = type_epsilon(a->type == CUDA_R_64F ? CUDA_R_64F : CUDA_R_32F);
  for (int64_t l = 0; l < k && alpha != 0; l++) {
    double term = plain_at(a, row, l, batch) * plain_at(b, l, column, batch);
    e.value += alpha * term;
    e.slack += fabs(alpha * term);
  }
  if (beta != 0) {
    double term = beta * plain_at(c, row, column, batch);
    e.value += term;
    e.slack += fabs(term);
  }
  e.slack *= ((double)k + 8) * epsilon;
  return e;
}

/* Whether `is` is the number of `type` for e, give or take the slack. */
UNUSED_OK static bool is_near(double is, struct element e, cudaDataType type) {
  double least = type == CUDA_R_16F ? 0x1p-24 : 0x1p-130;
  return fabs(is - e.value) <= e.slack * 2 + fabs(e.value) * type_epsilon(type) * 1.001 + least;
}
#endif
