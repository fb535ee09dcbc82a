/* Matrix products on the CPU: addresses of the moment here, the arithmetic in product_real.h for
   each type that is computed in. Knows nothing of streams, and may be called in any thread. */
#include "integration/pytorch/cublas/product.h"
#include "integration/pytorch/cublas/element.h"
#include "integration/pytorch/cublas/gelu.h"
#include "integration/pytorch/cublas/tile.h"
#include <stdlib.h>
#include <string.h>

/* The packed part of A stays in a core's second cache, a panel of B in its first; multiples of what
   tiles and bytes of bits need. */
enum { DEPTH = 256, BLOCK_ROWS = 512, BLOCK_COLUMNS = 1024 };

static size_t least(size_t a, size_t b) {
  return a < b ? a : b;
}

static size_t most(size_t a, size_t b) {
  return a > b ? a : b;
}

static size_t round_up(size_t count, size_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

static const char *element_at(const char *start, const struct matrix *matrix, int64_t row,
                              int64_t column) {
  if (start == NULL)
    return NULL;
  return start + (row * matrix->row_stride + column * matrix->column_stride) *
                     (int64_t)element_bytes(matrix->type);
}

static char *matrix_now(const struct matrix *matrix, void *(*view)(void *), int64_t number) {
  if (matrix->listed) {
    void **list = view(matrix->data);
    return view(list[number]);
  }
  return (char *)view(matrix->data) +
         number * matrix->batch_stride * (int64_t)element_bytes(matrix->type);
}

static double scalar_now(const struct scalar *scalar, void *(*view)(void *)) {
  if (scalar->device == NULL)
    return scalar->value;
  return element_value(view((void *)(uintptr_t)scalar->device), scalar->type);
}

/* With its vectors of one matrix of the batch. */
static struct epilogue epilogue_now(const struct epilogue *epilogue, void *(*view)(void *),
                                    int64_t number) {
  struct epilogue now = *epilogue;
  bool bits = (now.steps & (EPILOGUE_RELU | EPILOGUE_RELU_GRADIENT)) != 0;
  int64_t aux_bytes = (int64_t)element_bytes(now.aux_type);
  if (now.bias != NULL)
    now.bias = (char *)view(now.bias) +
               number * now.bias_batch_stride * (int64_t)element_bytes(now.bias_type);
  if (now.aux != NULL)
    now.aux = (char *)view(now.aux) +
              number * (bits ? now.aux_batch_stride / 8 : now.aux_batch_stride * aux_bytes);
  return now;
}

/* How many elements the bias' gradient has, if one is wanted. */
static size_t gradients_of(const struct product *p) {
  if (p->epilogue.steps & EPILOGUE_BIAS_GRADIENT_B)
    return (size_t)p->n;
  return p->epilogue.steps & (EPILOGUE_BIAS_GRADIENT | EPILOGUE_BIAS_GRADIENT_A) ? (size_t)p->m : 0;
}

#define REAL float
#include "integration/pytorch/cublas/product_real.h"
#define REAL double
#include "integration/pytorch/cublas/product_real.h"

bool product_run(const struct product *p, void *(*view)(void *), const struct tile_set *tiles) {
  return p->d.type == CUDA_R_64F ? run_double(p, view, tiles) : run_float(p, view, tiles);
}
