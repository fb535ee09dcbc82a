/* The innermost part of a product, by instruction set. */
#ifndef OFFLOAD_CUBLAS_TILE_H
#define OFFLOAD_CUBLAS_TILE_H
#include <stdbool.h>
#include <stddef.h>

enum { TILE_COLUMNS = 4 };

/* For each row and column of a tile, with l from 0 to depth - 1 in this order:
     sums[column * stride + row] += a[l * rows + row] * b[l * TILE_COLUMNS + column]
   A product is rounded before it is added, so each sum is the same with every set. */
typedef void tile_float(const float *a, const float *b, size_t depth, float *sums, size_t stride);
typedef void tile_double(const double *a, const double *b, size_t depth, double *sums,
                         size_t stride);

struct tile_set {
  const char *name;
  size_t rows_float, rows_double;
  tile_float *run_float;
  tile_double *run_double;
};

/* Those that this CPU can run, the fastest first; NULL behind the last. */
const struct tile_set *tile_set(int number);
#endif
