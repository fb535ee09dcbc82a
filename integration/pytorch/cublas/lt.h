/* cuBLASLt's descriptors, as lt_attributes.def lists what they hold. */
#ifndef OFFLOAD_CUBLAS_LT_H
#define OFFLOAD_CUBLAS_LT_H
#include <cublasLt.h>

struct cublasLtMatmulDescOpaque {
#define MATMUL(attribute, type, member, initial) type member;
#include "integration/pytorch/cublas/lt_attributes.def"
#undef MATMUL
};

struct cublasLtMatrixLayoutOpaque {
#define LAYOUT(attribute, type, member, initial) type member;
#include "integration/pytorch/cublas/lt_attributes.def"
#undef LAYOUT
};

struct cublasLtMatmulPreferenceOpaque {
#define PREFERENCE(attribute, type, member, initial) type member;
#include "integration/pytorch/cublas/lt_attributes.def"
#undef PREFERENCE
};
#endif
