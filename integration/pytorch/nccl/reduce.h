/* The arithmetic of collectives: the ranks' elements folded in the order of the ranks, so that a result
   depends on neither time nor place. Half and 8-bit types are folded in float and rounded once. */
#ifndef OFFLOAD_NCCL_REDUCE_H
#define OFFLOAD_NCCL_REDUCE_H
#include "integration/pytorch/nccl/nccl.h"
#include <stdint.h>

/* ncclSum to ncclAvg, and the sum of elements each multiplied by its rank's scalar. */
enum { REDUCE_SCALED_SUM = ncclNumOps };

size_t reduce_element_bytes(ncclDataType_t type);
const char *reduce_type_name(ncclDataType_t type);

/* output[i] = inputs[0][i] op inputs[1][i] …; the output may be one of the inputs. scalars: one of the
   type for each rank, at the low end of the word; only for REDUCE_SCALED_SUM. */
void reduce_elements(ncclDataType_t type, int op, int ranks, const void *const *inputs,
                     const uint64_t *scalars, void *output, size_t elements);
#endif
