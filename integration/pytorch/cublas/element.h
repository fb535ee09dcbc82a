/* Numbers in memory and what they are computed in: double for CUDA_R_64F, float for all others. */
#ifndef OFFLOAD_CUBLAS_ELEMENT_H
#define OFFLOAD_CUBLAS_ELEMENT_H
#include <library_types.h>
#include <stddef.h>
#include <stdint.h>

/* 0 for types that nothing here computes with. */
size_t element_bytes(cudaDataType);
const char *element_name(cudaDataType);

/* `count` numbers, `stride` elements apart in `from` or `to`; floats of the types other than
   CUDA_R_64F, doubles of that one. Writing rounds to nearest even. */
void element_read_float(float *to, const void *from, cudaDataType, int64_t stride, size_t count);
void element_write_float(void *to, const float *from, cudaDataType, int64_t stride, size_t count);
void element_read_double(double *to, const void *from, cudaDataType, int64_t stride, size_t count);
void element_write_double(void *to, const double *from, cudaDataType, int64_t stride, size_t count);
/* One number of any type. */
double element_value(const void *at, cudaDataType);
#endif
