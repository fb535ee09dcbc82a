/* Reading and writing numbers. Conversions are exact or rounded to nearest even, so they are the
   same with every instruction set. */
#include "integration/pytorch/cublas/element.h"
#include "integration/pytorch/nccl/number.h"
#include <string.h>

size_t element_bytes(cudaDataType type) {
  switch (type) {
#define TYPE(name, word, stored)                                                                   \
  case name:                                                                                       \
    return sizeof(stored);
#include "integration/pytorch/cublas/types.def"
#undef TYPE
  default:
    return 0;
  }
}

const char *element_name(cudaDataType type) {
  switch (type) {
#define TYPE(name, word, stored)                                                                   \
  case name:                                                                                       \
    return word;
#include "integration/pytorch/cublas/types.def"
#undef TYPE
  default:
    return "another type";
  }
}

static float from_half(uint16_t code) {
  return number_unpack(code, NUMBER_FLOAT16);
}
static uint16_t to_half(float value) {
  return (uint16_t)number_pack(value, NUMBER_FLOAT16);
}
static float from_bfloat16(uint16_t code) {
  return number_unpack(code, NUMBER_BFLOAT16);
}
static uint16_t to_bfloat16(float value) {
  return (uint16_t)number_pack(value, NUMBER_BFLOAT16);
}
static float same_float(float value) {
  return value;
}
static double same_double(double value) {
  return value;
}

/* Side by side is the usual case, which compilers make vectors of. */
#define RUNS(name, stored, computed, unpack, pack)                                                 \
  static void read_##name(computed *restrict to, const stored *restrict from, int64_t stride,      \
                          size_t count) {                                                          \
    if (stride == 1)                                                                               \
      for (size_t i = 0; i < count; i++)                                                           \
        to[i] = unpack(from[i]);                                                                   \
    else                                                                                           \
      for (size_t i = 0; i < count; i++)                                                           \
        to[i] = unpack(from[(int64_t)i * stride]);                                                 \
  }                                                                                                \
  static void write_##name(stored *restrict to, const computed *restrict from, int64_t stride,     \
                           size_t count) {                                                         \
    if (stride == 1)                                                                               \
      for (size_t i = 0; i < count; i++)                                                           \
        to[i] = pack(from[i]);                                                                     \
    else                                                                                           \
      for (size_t i = 0; i < count; i++)                                                           \
        to[(int64_t)i * stride] = pack(from[i]);                                                   \
  }
RUNS(double, double, double, same_double, same_double)
RUNS(float, float, float, same_float, same_float)
RUNS(half, uint16_t, float, from_half, to_half)
RUNS(bfloat16, uint16_t, float, from_bfloat16, to_bfloat16)
#undef RUNS

void element_read_float(float *to, const void *from, cudaDataType type, int64_t stride,
                        size_t count) {
  if (type == CUDA_R_32F)
    read_float(to, from, stride, count);
  else if (type == CUDA_R_16F)
    read_half(to, from, stride, count);
  else
    read_bfloat16(to, from, stride, count);
}

void element_write_float(void *to, const float *from, cudaDataType type, int64_t stride,
                         size_t count) {
  if (type == CUDA_R_32F)
    write_float(to, from, stride, count);
  else if (type == CUDA_R_16F)
    write_half(to, from, stride, count);
  else
    write_bfloat16(to, from, stride, count);
}

void element_read_double(double *to, const void *from, cudaDataType type, int64_t stride,
                         size_t count) {
  (void)type;
  read_double(to, from, stride, count);
}

void element_write_double(void *to, const double *from, cudaDataType type, int64_t stride,
                          size_t count) {
  (void)type;
  write_double(to, from, stride, count);
}

double element_value(const void *at, cudaDataType type) {
  if (type == CUDA_R_64F) {
    double value;
    element_read_double(&value, at, type, 1, 1);
    return value;
  }
  float value;
  element_read_float(&value, at, type, 1, 1);
  return (double)value;
}
