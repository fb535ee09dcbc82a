/* The arithmetic of the cuBLAS stand-ins, without a device: each sum is taken in the order of k and
   rounded at each step, whatever the instruction set, the sizes, the strides and the batch; and it
   is near the true one. */
#include "integration/pytorch/cublas/gelu.h"
#include "integration/pytorch/cublas/product.h"
#include "integration/pytorch/cublas/tile.h"
#include "integration/pytorch/cublas/vector.h"
#include "tests/unit/cublas_support.h"
#include <string.h>

/* Addresses mean nothing before they went through the view. */
enum { SHIFT = 1 << 20 };

static void *view(void *address) {
  return (void *)((uintptr_t)address + SHIFT);
}

static void *unviewed(const void *address) {
  return (void *)((uintptr_t)address - SHIFT);
}

struct shape {
  int64_t m, n, k, batch;
};
static const struct shape shapes[] = {
    {1, 1, 1, 1},     {5, 3, 7, 3},    {16, 4, 256, 1}, {17, 5, 257, 2},
    {33, 13, 300, 1}, {520, 3, 10, 1}, {3, 1030, 5, 1}, {513, 1025, 2, 1},
    {8, 8, 0, 1},     {1, 9, 600, 2},  {40, 1, 520, 1},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

struct types {
  cudaDataType operands, result;
};
static const struct types types[] = {{CUDA_R_64F, CUDA_R_64F},   {CUDA_R_32F, CUDA_R_32F},
                                     {CUDA_R_16F, CUDA_R_16F},   {CUDA_R_16F, CUDA_R_32F},
                                     {CUDA_R_16BF, CUDA_R_16BF}, {CUDA_R_16BF, CUDA_R_32F}};
enum { TYPES = sizeof types / sizeof types[0] };
static const double scalars[][2] = {{1, 0}, {0.5, -2}, {1, 1}, {0, 1}, {0, 0}};

/* How a matrix lies: its elements' distance and whether columns or rows are lines. */
static struct plain make(cudaDataType type, int64_t rows, int64_t columns, int64_t batch,
                         bool transposed, int64_t distance, size_t *count) {
  int64_t line = (transposed ? columns : rows) * distance + 3, lines = transposed ? rows : columns;
  *count = (size_t)(line * (lines + 1) * batch + 1);
  return (struct plain){.data = calloc(*count, type_bytes(type)),
                        .type = type,
                        .row_stride = transposed ? line : distance,
                        .column_stride = transposed ? distance : line,
                        .batch_stride = line * (lines + 1)};
}

static struct matrix as_matrix(const struct plain *x) {
  return (struct matrix){.data = unviewed(x->data),
                         .type = x->type,
                         .row_stride = x->row_stride,
                         .column_stride = x->column_stride,
                         .batch_stride = x->batch_stride};
}

/* By definition of product.h, one step after the other in what is computed in. */
#define ORDERED(real)                                                                              \
  static double ordered_##real(const struct plain *a, const struct plain *b,                       \
                               const struct plain *c, int64_t row, int64_t column, int64_t k,      \
                               int64_t batch, double alpha, double beta) {                         \
    real sum = 0;                                                                                  \
    for (int64_t l = 0; l < k && alpha != 0; l++) {                                                \
      real term = (real)plain_at(a, row, l, batch) * (real)plain_at(b, l, column, batch);          \
      sum += term;                                                                                 \
    }                                                                                              \
    sum *= (real)alpha;                                                                            \
    if (beta != 0) {                                                                               \
      real term = (real)beta * (real)plain_at(c, row, column, batch);                              \
      sum += term;                                                                                 \
    }                                                                                              \
    return (double)sum;                                                                            \
  }
ORDERED(float)
ORDERED(double)

struct verdict {
  bool ordered, near, kept; /* bit for bit; near the true sum; nothing else written */
  long checked;
};

static void try_product(const struct tile_set *tiles, struct types t, struct shape s, int layout,
                        double alpha, double beta, struct verdict *verdict) {
  size_t a_count, b_count, c_count;
  struct plain a = make(t.operands, s.m, s.k, s.batch, layout & 1, layout & 8 ? 2 : 1, &a_count);
  struct plain b = make(t.operands, s.k, s.n, s.batch, layout & 2, layout & 8 ? 3 : 1, &b_count);
  struct plain c = make(t.result, s.m, s.n, s.batch, layout & 4, layout & 8 ? 2 : 1, &c_count);
  size_t c_bytes = c_count * type_bytes(t.result);
  void *expected = calloc(1, c_bytes);
  fill_random(a.data, a_count, t.operands);
  fill_random(b.data, b_count, t.operands);
  fill_random(c.data, c_count, t.result);
  if (beta == 0) /* not read */
    memset(c.data, 0xff, c_bytes);
  if (alpha == 0) {
    memset(a.data, 0xff, a_count * type_bytes(t.operands));
    memset(b.data, 0xff, b_count * type_bytes(t.operands));
  }
  memcpy(expected, c.data, c_bytes);
  struct plain should = c;
  should.data = expected;
  struct product p = {.m = s.m,
                      .n = s.n,
                      .k = s.k,
                      .batch = s.batch,
                      .a = as_matrix(&a),
                      .b = as_matrix(&b),
                      .c = as_matrix(&c),
                      .d = as_matrix(&c),
                      .alpha = {.value = alpha},
                      .beta = {.value = beta}};
  struct plain before = c;
  before.data = calloc(1, c_bytes);
  memcpy(before.data, c.data, c_bytes);
  verdict->kept &= product_run(&p, view, tiles);
  for (int64_t i = 0; i < s.batch; i++)
    for (int64_t column = 0; column < s.n; column++)
      for (int64_t row = 0; row < s.m; row++) {
        double is = (t.result == CUDA_R_64F ? ordered_double : ordered_float)(
            &a, &b, &before, row, column, s.k, i, alpha, beta);
        int64_t at = plain_index(&c, row, column, i);
        put_number(expected, at, t.result, is);
        verdict->ordered &= plain_at(&c, row, column, i) == plain_at(&should, row, column, i);
        verdict->near &=
            is_near(plain_at(&c, row, column, i),
                    plain_element(&a, &b, &before, row, column, s.k, i, alpha, beta), t.result);
        verdict->checked++;
      }
  verdict->kept &= memcmp(c.data, expected, c_bytes) == 0;
  free(a.data), free(b.data), free(c.data), free(expected), free(before.data);
}

static void test_products(const struct tile_set *tiles, struct types t) {
  struct verdict verdict = {true, true, true, 0};
  for (int shape = 0; shape < SHAPES; shape++)
    for (int layout = 0; layout < 16; layout++)
      for (size_t i = 0; i < sizeof scalars / sizeof scalars[0]; i++) {
        /* Large ones, a few times. */
        if (shapes[shape].m * shapes[shape].n > 3000 &&
            (i != (size_t)layout % 5 || layout % 5 != 0))
          continue;
        try_product(tiles, t, shapes[shape], layout, scalars[i][0], scalars[i][1], &verdict);
      }
  const char *from = type_name(t.operands), *to = type_name(t.result);
  tap_ok(verdict.ordered && verdict.checked > 100000,
         "%s: sums of %s to %s are taken in order, each step rounded", tiles->name, from, to);
  tap_ok(verdict.near, "%s: and are near the true ones (%s to %s)", tiles->name, from, to);
  tap_ok(verdict.kept, "%s: nothing but the result's elements is written (%s to %s)", tiles->name,
         from, to);
}

static void test_lists(void) {
  double a[2][6], b[2][6], c[2][4] = {{0}};
  void *lists[3][2];
  bool good = true;
  for (int i = 0; i < 2; i++) {
    fill_random(a[i], 6, CUDA_R_64F);
    fill_random(b[i], 6, CUDA_R_64F);
    /* The second matrices first: no stride leads there. */
    lists[0][i] = unviewed(a[1 - i]), lists[1][i] = unviewed(b[1 - i]),
    lists[2][i] = unviewed(c[1 - i]);
  }
  struct matrix two_rows = {.listed = true,
                            .type = CUDA_R_64F,
                            .row_stride = 1,
                            .column_stride = 2},
                three_rows = two_rows;
  three_rows.column_stride = 3;
  struct product p = {.m = 2,
                      .n = 2,
                      .k = 3,
                      .batch = 2,
                      .a = two_rows,
                      .b = three_rows,
                      .c = two_rows,
                      .d = two_rows,
                      .alpha = {.value = 1}};
  p.a.data = unviewed(lists[0]), p.b.data = unviewed(lists[1]),
  p.c.data = p.d.data = unviewed(lists[2]);
  good = product_run(&p, view, tile_set(0));
  for (int i = 0; i < 2; i++)
    for (int row = 0; row < 2; row++)
      for (int column = 0; column < 2; column++) {
        double sum = 0;
        for (int l = 0; l < 3; l++)
          sum += a[i][row + 2 * l] * b[i][l + 3 * column];
        good &= c[i][row + 2 * column] == sum;
      }
  tap_ok(good, "a batch may be lists of addresses");
}

static void test_special_numbers(void) {
  float a[4] = {1, NAN, 0, INFINITY}, b[1] = {2}, c[4] = {0};
  struct matrix column = {.type = CUDA_R_32F, .row_stride = 1, .column_stride = 4};
  struct product p = {.m = 4,
                      .n = 1,
                      .k = 1,
                      .batch = 1,
                      .a = column,
                      .b = column,
                      .c = column,
                      .d = column,
                      .alpha = {.value = 1},
                      .epilogue = {.steps = EPILOGUE_RELU}};
  p.a.data = unviewed(a), p.b.data = unviewed(b), p.c.data = p.d.data = unviewed(c);
  product_run(&p, view, tile_set(0));
  tap_ok(c[0] == 2 && c[1] != c[1] && c[2] == 0 && c[3] == INFINITY,
         "NaN and infinity stay what they are, through ReLU too");
}

static void test_gelu(void) {
  double worst = 0, worst_slope = 0;
  for (int i = -2200; i < 2200; i++) {
    double x = i * 0.0137;
    double inner = 0.7978845608028654 * (x + 0.044715 * x * x * x), t = tanh(inner);
    double slope =
        0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
    worst = fmax(worst, fabs(gelu(x) - 0.5 * x * (1 + t)));
    worst_slope = fmax(worst_slope, fabs(gelu_slope(x) - slope));
  }
  tap_ok(worst < 1e-14 && worst_slope < 1e-13,
         "GELU and its slope are those of the mathematical library (%.0e, %.0e)", worst,
         worst_slope);
  tap_ok(gelu(0) == 0 && gelu((double)INFINITY) == (double)INFINITY &&
             gelu(-(double)INFINITY) == 0 && gelu((double)NAN) != gelu((double)NAN) &&
             gelu(1e300) == 1e300 && gelu_slope(1e300) == 1 && gelu_slope(-1e300) == 0 &&
             gelu_slope(-(double)INFINITY) == 0,
         "and are right at both ends");
}

static void test_vectors(cudaDataType type) {
  enum { MOST = 2100 };
  static const int64_t counts[] = {0, 1, 5, 1024, 1025, MOST};
  bool axpy = true, scale = true, dot = true;
  void *x = calloc(MOST * 3, type_bytes(type)), *y = calloc(MOST * 3, type_bytes(type)),
       *was = calloc(MOST * 3, type_bytes(type));
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
    for (int stride = -2; stride <= 3; stride++) {
      int64_t count = counts[i], first = stride < 0 ? (1 - count) * stride : 0, back = count - 1;
      struct vector_work w = {
          .kind = VECTOR_AXPY, .count = count, .alpha = {.value = -0.75}, .result_type = type};
      if (stride == 0 || count == 0)
        continue;
      fill_random(x, MOST * 3, type);
      fill_random(y, MOST * 3, type);
      memcpy(was, y, MOST * 3 * type_bytes(type));
      w.x = (struct vector){unviewed((char *)x + first * (int64_t)type_bytes(type)), type, stride};
      w.y = (struct vector){unviewed(y), type, 1};
      vector_run(&w, view);
      double sum = 0, size = 0;
      for (int64_t at = 0; at < count; at++) {
        double from = get_number(x, first + at * stride, type), old = get_number(was, at, type);
        struct element e = {old - 0.75 * from,
                            4 * type_epsilon(type == CUDA_R_64F ? type : CUDA_R_32F) *
                                (fabs(old) + fabs(from))};
        axpy &= is_near(get_number(y, at, type), e, type);
        sum += from * get_number(y, at, type);
        size += fabs(from * get_number(y, at, type));
      }
      axpy &= memcmp((char *)y + (size_t)(back + 1) * type_bytes(type),
                     (char *)was + (size_t)(back + 1) * type_bytes(type),
                     (size_t)(MOST * 3 - count) * type_bytes(type)) == 0;
      double result = 0;
      w.kind = VECTOR_DOT;
      w.result = unviewed(&result);
      vector_run(&w, view);
      struct element e = {sum, size * (double)count *
                                   type_epsilon(type == CUDA_R_64F ? type : CUDA_R_32F)};
      dot &= is_near(get_number(&result, 0, type), e, type);
      memcpy(was, x, MOST * 3 * type_bytes(type));
      w.kind = VECTOR_SCALE;
      vector_run(&w, view);
      for (int64_t at = 0; at < MOST * 3; at++) {
        int64_t index = (at - first) / stride;
        bool in = (at - first) % stride == 0 && index >= 0 && index < count;
        struct element scaled = {get_number(was, at, type) * (in ? -0.75 : 1), 0};
        scale &= is_near(get_number(x, at, type), scaled, type);
      }
    }
  tap_ok(axpy, "%s: y + alpha x at all distances, forwards and backwards", type_name(type));
  tap_ok(scale, "%s: alpha x writes what lies on its way and nothing else", type_name(type));
  tap_ok(dot, "%s: a dot product", type_name(type));
  free(x), free(y), free(was);
}

int main(void) {
  int sets = 0;
  for (; tile_set(sets) != NULL; sets++)
    for (int i = 0; i < TYPES; i++)
      test_products(tile_set(sets), types[i]);
  tap_ok(sets > 0, "there are %d sets of instructions, and all compute the same", sets);
  test_lists();
  test_special_numbers();
  test_gelu();
  for (int i = 0; i < TYPES; i++)
    if (types[i].operands == types[i].result)
      test_vectors(types[i].operands);
  return tap_done();
}
