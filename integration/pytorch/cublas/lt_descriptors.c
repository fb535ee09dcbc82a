/* Making cuBLASLt's descriptors, and setting and reading what they hold. Attributes that aren't
   listed, which are of types and scalings that nothing here computes with, are refused. */
#include "integration/pytorch/cublas/lt.h"
#include "integration/pytorch/cublas/work.h"
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct attribute {
  int name;
  size_t offset, bytes;
};

/* A kind's attributes. */
struct attributes {
  const struct attribute *list;
  size_t count;
};

/* NULL if the descriptor doesn't have it. */
static const struct attribute *find(struct attributes all, int name) {
  const struct attribute *end = all.list + all.count;
  for (const struct attribute *a = all.list; a < end; a++)
    if (a->name == name)
      return a;
  return NULL;
}

static cublasStatus_t unknown(const char *call, int name) {
  return work_refuse(CUBLAS_STATUS_NOT_SUPPORTED, call, "attribute %d", name);
}

static cublasStatus_t check_value(const char *call, const struct attribute *found,
                                  const void *value, size_t bytes) {
  if (value != NULL && bytes == found->bytes)
    return CUBLAS_STATUS_SUCCESS;
  return work_refuse(CUBLAS_STATUS_INVALID_VALUE, call, "%zu bytes for an attribute of %zu", bytes,
                     found->bytes);
}

static cublasStatus_t set(const char *call, void *descriptor, struct attributes all, int name,
                          const void *value, size_t bytes) {
  const struct attribute *found = find(all, name);
  if (found == NULL)
    return unknown(call, name);
  cublasStatus_t status = check_value(call, found, value, bytes);
  if (status == CUBLAS_STATUS_SUCCESS)
    memcpy((char *)descriptor + found->offset, value, bytes);
  return status;
}

/* Asked with no bytes, it tells how many there are. */
static cublasStatus_t get(const char *call, const void *descriptor, struct attributes all, int name,
                          void *value, size_t bytes, size_t *written) {
  const struct attribute *found = find(all, name);
  if (found == NULL)
    return unknown(call, name);
  if (written != NULL)
    *written = found->bytes;
  if (bytes == 0 && written != NULL)
    return CUBLAS_STATUS_SUCCESS;
  cublasStatus_t status = check_value(call, found, value, bytes);
  if (status == CUBLAS_STATUS_SUCCESS)
    memcpy(value, (const char *)descriptor + found->offset, bytes);
  return status;
}

#define DESCRIPTOR(kind, attribute_type, list)                                                     \
  API cublasStatus_t cublasLt##kind##Destroy(cublasLt##kind##_t descriptor) {                      \
    free(descriptor);                                                                              \
    return CUBLAS_STATUS_SUCCESS;                                                                  \
  }                                                                                                \
  API cublasStatus_t cublasLt##kind##SetAttribute(                                                 \
      cublasLt##kind##_t descriptor, attribute_type attribute, const void *value, size_t bytes) {  \
    return set(__func__, descriptor, (struct attributes){list, sizeof list / sizeof list[0]},      \
               (int)attribute, value, bytes);                                                      \
  }                                                                                                \
  API cublasStatus_t cublasLt##kind##GetAttribute(cublasLt##kind##_t descriptor,                   \
                                                  attribute_type attribute, void *value,           \
                                                  size_t bytes, size_t *written) {                 \
    return get(__func__, descriptor, (struct attributes){list, sizeof list / sizeof list[0]},      \
               (int)attribute, value, bytes, written);                                             \
  }

/* ---- the operation ---- */

static const struct attribute matmul_attributes[] = {
#define MATMUL(attribute, type, member, initial)                                                   \
  {attribute, offsetof(struct cublasLtMatmulDescOpaque, member), sizeof(type)},
#include "integration/pytorch/cublas/lt_attributes.def"
#undef MATMUL
};
DESCRIPTOR(MatmulDesc, cublasLtMatmulDescAttributes_t, matmul_attributes)

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

/* ---- a matrix ---- */

static const struct attribute layout_attributes[] = {
#define LAYOUT(attribute, type, member, initial)                                                   \
  {attribute, offsetof(struct cublasLtMatrixLayoutOpaque, member), sizeof(type)},
#include "integration/pytorch/cublas/lt_attributes.def"
#undef LAYOUT
};
DESCRIPTOR(MatrixLayout, cublasLtMatrixLayoutAttribute_t, layout_attributes)

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

/* ---- preferences, which nothing here depends on ---- */

static const struct attribute preference_attributes[] = {
#define PREFERENCE(attribute, type, member, initial)                                               \
  {attribute, offsetof(struct cublasLtMatmulPreferenceOpaque, member), sizeof(type)},
#include "integration/pytorch/cublas/lt_attributes.def"
#undef PREFERENCE
};
DESCRIPTOR(MatmulPreference, cublasLtMatmulPreferenceAttributes_t, preference_attributes)

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
#undef DESCRIPTOR
