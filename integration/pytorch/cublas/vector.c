/* Vectors on the CPU, in parts that are converted at a time. */
#include "integration/pytorch/cublas/vector.h"
#include "integration/pytorch/cublas/element.h"

enum { PART = 1024 };

/* Of types other than CUDA_R_64F, in float; each of the two is the other with another type. */
#define VECTORS(real)                                                                              \
  static void axpy_##real(const struct vector_work *w, char *x, char *y, double alpha) {           \
    real a[PART], b[PART];                                                                         \
    for (int64_t at = 0; at < w->count; at += PART) {                                              \
      size_t count = (size_t)(w->count - at < PART ? w->count - at : PART);                        \
      char *to = y + at * w->y.stride * (int64_t)element_bytes(w->y.type);                         \
      element_read_##real(a, x + at * w->x.stride * (int64_t)element_bytes(w->x.type), w->x.type,  \
                          w->x.stride, count);                                                     \
      element_read_##real(b, to, w->y.type, w->y.stride, count);                                   \
      for (size_t i = 0; i < count; i++)                                                           \
        b[i] += (real)alpha * a[i];                                                                \
      element_write_##real(to, b, w->y.type, w->y.stride, count);                                  \
    }                                                                                              \
  }                                                                                                \
  static void scale_##real(const struct vector_work *w, char *x, double alpha) {                   \
    real a[PART];                                                                                  \
    for (int64_t at = 0; at < w->count; at += PART) {                                              \
      size_t count = (size_t)(w->count - at < PART ? w->count - at : PART);                        \
      char *to = x + at * w->x.stride * (int64_t)element_bytes(w->x.type);                         \
      element_read_##real(a, to, w->x.type, w->x.stride, count);                                   \
      for (size_t i = 0; i < count; i++)                                                           \
        a[i] *= (real)alpha;                                                                       \
      element_write_##real(to, a, w->x.type, w->x.stride, count);                                  \
    }                                                                                              \
  }                                                                                                \
  static void dot_##real(const struct vector_work *w, char *x, char *y, void *result) {            \
    real a[PART], b[PART], sum = 0;                                                                \
    for (int64_t at = 0; at < w->count; at += PART) {                                              \
      size_t count = (size_t)(w->count - at < PART ? w->count - at : PART);                        \
      element_read_##real(a, x + at * w->x.stride * (int64_t)element_bytes(w->x.type), w->x.type,  \
                          w->x.stride, count);                                                     \
      element_read_##real(b, y + at * w->y.stride * (int64_t)element_bytes(w->y.type), w->y.type,  \
                          w->y.stride, count);                                                     \
      for (size_t i = 0; i < count; i++)                                                           \
        sum += a[i] * b[i];                                                                        \
    }                                                                                              \
    element_write_##real(result, &sum, w->result_type, 1, 1);                                      \
  }
VECTORS(float)
VECTORS(double)
#undef VECTORS

void vector_run(const struct vector_work *w, void *(*view)(void *)) {
  bool wide = w->x.type == CUDA_R_64F;
  char *x = view(w->x.data), *y = w->kind == VECTOR_SCALE ? NULL : view(w->y.data);
  if (w->kind == VECTOR_DOT) {
    (wide ? dot_double : dot_float)(w, x, y, view(w->result));
    return;
  }
  double alpha = w->alpha.value;
  if (w->alpha.device != NULL)
    alpha = element_value(view((void *)(uintptr_t)w->alpha.device), w->alpha.type);
  if (w->kind == VECTOR_AXPY)
    (wide ? axpy_double : axpy_float)(w, x, y, alpha);
  else
    (wide ? scale_double : scale_float)(w, x, alpha);
}
