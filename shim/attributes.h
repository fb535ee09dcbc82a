/* What a pointer into a range answers: as memory of cuMemAlloc would, wherever its pieces are. */
#ifndef OFFLOAD_ATTRIBUTES_H
#define OFFLOAD_ATTRIBUTES_H
#include "range.h"

/* Writes the attribute. False when the driver is to answer (it knows better, or the attribute is
   newer than us). CUDA_ERROR_INVALID_VALUE in *result for what device memory doesn't have. */
bool attribute_answer(const struct range *, CUpointer_attribute, CUdeviceptr, void *value,
                      CUresult *result);

/* Questions that only somebody asks who is about to use the physical pages behind the driver's back
   (RDMA, IPC, registration caches). */
bool attribute_pins(CUpointer_attribute);
#endif
