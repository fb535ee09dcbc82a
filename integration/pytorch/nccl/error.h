/* Errors: a result and a line of text for ncclGetLastError. */
#ifndef OFFLOAD_NCCL_ERROR_H
#define OFFLOAD_NCCL_ERROR_H
#include "integration/pytorch/nccl/nccl.h"

/* Marks what programs may call; everything else is hidden. */
#define NCCL_EXPORT __attribute__((visibility("default")))

/* Keeps the text as the process's last error, writes it to stderr when NCCL_DEBUG is set to anything
   but VERSION, and returns `result`. Any thread, also a host function's. */
ncclResult_t nccl_fail(ncclResult_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* A copy that stays as it is until the calling thread asks again. */
const char *nccl_last_error(void);
#endif
