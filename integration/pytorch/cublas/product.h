/* D = epilogue(alpha * A B + beta * C) as data, and the arithmetic of it. Transposition, row and
   column order and increments are strides: the element of row r and column c lies r * row_stride +
   c * column_stride elements behind a matrix's start. */
#ifndef OFFLOAD_CUBLAS_PRODUCT_H
#define OFFLOAD_CUBLAS_PRODUCT_H
#include <library_types.h>
#include <stdbool.h>
#include <stdint.h>

struct tile_set;

/* Addresses are a device's, or of memory that it can read. */
struct matrix {
  void *data;
  bool listed; /* data is an array of the batch's matrices */
  cudaDataType type;
  int64_t row_stride, column_stride, batch_stride;
};

/* Read when the work runs if `device` isn't NULL. */
struct scalar {
  double value;
  const void *device;
  cudaDataType type;
};

/* In this order. */
enum epilogue_step {
  EPILOGUE_BIAS = 1, /* + bias[row] */
  EPILOGUE_AUX = 2,  /* GELU's argument, or a bit per element that ReLU keeps, to aux */
  EPILOGUE_RELU = 4,
  EPILOGUE_GELU = 8,              /* the one with tanh */
  EPILOGUE_RELU_GRADIENT = 16,    /* * its slope, by the bits in aux */
  EPILOGUE_GELU_GRADIENT = 32,    /* * its slope at aux */
  EPILOGUE_BIAS_GRADIENT = 64,    /* bias[row] = sum over D's columns, before it is rounded */
  EPILOGUE_BIAS_GRADIENT_A = 128, /* bias[row] = sum over A's columns */
  EPILOGUE_BIAS_GRADIENT_B = 256, /* bias[column] = sum over B's rows */
};

struct epilogue {
  unsigned steps;
  void *bias;
  cudaDataType bias_type;
  int64_t bias_batch_stride;
  void *aux;
  cudaDataType aux_type;                /* of GELU's */
  int64_t aux_stride, aux_batch_stride; /* from column to column; of ReLU's, in bits */
};

/* A is m by k, B is k by n; types are of types.def, all of them CUDA_R_64F or none. */
struct product {
  int64_t m, n, k, batch;
  struct matrix a, b, c, d;
  struct scalar alpha, beta;
  struct epilogue epilogue;
};

/* Computes it in the calling thread, reaching memory through `view`. Each sum is taken over k in
   order, in float or double, each product rounded before it is added: it depends on its terms
   alone, not on sizes, addresses or the CPU. A and B aren't read when alpha is 0, nor C when beta
   is. False when there isn't memory for some blocks. */
bool product_run(const struct product *, void *(*view)(void *), const struct tile_set *);
#endif
