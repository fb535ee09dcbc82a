/* Making cuBLASLt's descriptors, and setting and reading what they hold. Attributes that aren't
   listed, which are of types and scalings that nothing here computes with, are refused. */
#include "integration/pytorch/cublas/lt.h"
#include "integration/pytorch/cublas/work.h"
#include <stdlib.h>
#include <string.h>

static cublasStatus_t set(const char *call, void *member, size_t member_bytes, const void *value,
                          size_t bytes) {
  if (value == NULL || bytes != member_bytes)
    return work_refuse(CUBLAS_STATUS_INVALID_VALUE, call, "%zu bytes for an attribute of %zu",
                       bytes, member_bytes);
  memcpy(member, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t get(const char *call, const void *member, size_t member_bytes, void *value,
                          size_t bytes, size_t *written) {
  if (written != NULL)
    *written = member_bytes;
  if (bytes == 0 && written != NULL)
    return CUBLAS_STATUS_SUCCESS;
  if (value == NULL || bytes != member_bytes)
    return work_refuse(CUBLAS_STATUS_INVALID_VALUE, call, "%zu bytes for an attribute of %zu",
                       bytes, member_bytes);
  memcpy(value, member, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t unknown(const char *call, int attribute) {
  return work_refuse(CUBLAS_STATUS_NOT_SUPPORTED, call, "attribute %d", attribute);
}

/* ---- the operation ---- */

API cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *descriptor,
                                            cublasComputeType_t compute, cudaDataType_t scale) {
  cublasLtMatmulDesc_t made = descriptor != NULL ? malloc(sizeof *made) : NULL;
  if (made == NULL)
    return descriptor == NULL ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_ALLOC_FAILED;
#define MATMUL(attribute, type, member, initial) made->member = initial;
#include "integration/pytorch/cublas/lt_attributes.def"
#undef MATMUL
  made->compute_type = (int32_t)compute;
  made->scale_type = (int32_t)scale;
  *descriptor = made;
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t descriptor) {
  free(descriptor);
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t descriptor,
                                                  cublasLtMatmulDescAttributes_t attribute,
                                                  const void *value, size_t bytes) {
  switch (attribute) {
#define MATMUL(name, type, member, initial)                                                        \
  case name:                                                                                       \
    return set(__func__, &descriptor->member, sizeof(type), value, bytes);
#include "integration/pytorch/cublas/lt_attributes.def"
#undef MATMUL
  }
  return unknown(__func__, (int)attribute);
}

API cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t descriptor,
                                                  cublasLtMatmulDescAttributes_t attribute,
                                                  void *value, size_t bytes, size_t *written) {
  switch (attribute) {
#define MATMUL(name, type, member, initial)                                                        \
  case name:                                                                                       \
    return get(__func__, &descriptor->member, sizeof(type), value, bytes, written);
#include "integration/pytorch/cublas/lt_attributes.def"
#undef MATMUL
  }
  return unknown(__func__, (int)attribute);
}

/* ---- a matrix ---- */

API cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                              uint64_t rows, uint64_t columns, int64_t ld) {
  cublasLtMatrixLayout_t made = layout != NULL ? malloc(sizeof *made) : NULL;
  if (made == NULL)
    return layout == NULL ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_ALLOC_FAILED;
#define LAYOUT(attribute, type, member, initial) made->member = initial;
#include "integration/pytorch/cublas/lt_attributes.def"
#undef LAYOUT
  made->type = (uint32_t)type;
  made->rows = rows;
  made->columns = columns;
  made->ld = ld;
  *layout = made;
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  free(layout);
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                    cublasLtMatrixLayoutAttribute_t attribute,
                                                    const void *value, size_t bytes) {
  switch (attribute) {
#define LAYOUT(name, type, member, initial)                                                        \
  case name:                                                                                       \
    return set(__func__, &layout->member, sizeof(type), value, bytes);
#include "integration/pytorch/cublas/lt_attributes.def"
#undef LAYOUT
  }
  return unknown(__func__, (int)attribute);
}

API cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t layout,
                                                    cublasLtMatrixLayoutAttribute_t attribute,
                                                    void *value, size_t bytes, size_t *written) {
  switch (attribute) {
#define LAYOUT(name, type, member, initial)                                                        \
  case name:                                                                                       \
    return get(__func__, &layout->member, sizeof(type), value, bytes, written);
#include "integration/pytorch/cublas/lt_attributes.def"
#undef LAYOUT
  }
  return unknown(__func__, (int)attribute);
}

/* ---- preferences, which nothing here depends on ---- */

API cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
  cublasLtMatmulPreference_t made = preference != NULL ? malloc(sizeof *made) : NULL;
  if (made == NULL)
    return preference == NULL ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_ALLOC_FAILED;
#define PREFERENCE(attribute, type, member, initial) made->member = initial;
#include "integration/pytorch/cublas/lt_attributes.def"
#undef PREFERENCE
  *preference = made;
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  free(preference);
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
    const void *value, size_t bytes) {
  switch (attribute) {
#define PREFERENCE(name, type, member, initial)                                                    \
  case name:                                                                                       \
    return set(__func__, &preference->member, sizeof(type), value, bytes);
#include "integration/pytorch/cublas/lt_attributes.def"
#undef PREFERENCE
  }
  return unknown(__func__, (int)attribute);
}

API cublasStatus_t cublasLtMatmulPreferenceGetAttribute(
    cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
    void *value, size_t bytes, size_t *written) {
  switch (attribute) {
#define PREFERENCE(name, type, member, initial)                                                    \
  case name:                                                                                       \
    return get(__func__, &preference->member, sizeof(type), value, bytes, written);
#include "integration/pytorch/cublas/lt_attributes.def"
#undef PREFERENCE
  }
  return unknown(__func__, (int)attribute);
}
