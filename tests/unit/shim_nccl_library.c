/* The NCCL of shim_nccl.c: four ranks, every call succeeds and is counted. */
#include "integration/pytorch/nccl/nccl.h"

static unsigned calls;
static const char *last_call = "";
unsigned nccl_library_calls(const char **last);

/* A number of the test's, as it was during the last call. */
static const int *watched;
static int watched_then;
void nccl_library_watch(const int *number);
int nccl_library_watched(void);

void nccl_library_watch(const int *number) {
  watched = number;
}
int nccl_library_watched(void) {
  return watched_then;
}

unsigned nccl_library_calls(const char **last) {
  *last = last_call;
  return calls;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int *count) {
  *count = 4;
  return comm ? ncclSuccess : ncclInvalidArgument;
}

#define CALL(name, ...)                                                                            \
  ncclResult_t name(__VA_ARGS__) {                                                                 \
    calls++;                                                                                       \
    last_call = #name;                                                                             \
    watched_then = watched ? *watched : 0;                                                         \
    return ncclSuccess;                                                                            \
  }
#pragma GCC diagnostic ignored "-Wunused-parameter"
/* NOLINTBEGIN(misc-unused-parameters): nothing looks at them */
CALL(ncclAllReduce, const void *a, void *b, size_t n, ncclDataType_t t, ncclRedOp_t o, ncclComm_t c,
     cudaStream_t s)
CALL(ncclReduce, const void *a, void *b, size_t n, ncclDataType_t t, ncclRedOp_t o, int r,
     ncclComm_t c, cudaStream_t s)
CALL(ncclReduceScatter, const void *a, void *b, size_t n, ncclDataType_t t, ncclRedOp_t o,
     ncclComm_t c, cudaStream_t s)
CALL(ncclAllGather, const void *a, void *b, size_t n, ncclDataType_t t, ncclComm_t c,
     cudaStream_t s)
CALL(ncclBroadcast, const void *a, void *b, size_t n, ncclDataType_t t, int r, ncclComm_t c,
     cudaStream_t s)
CALL(ncclBcast, void *b, size_t n, ncclDataType_t t, int r, ncclComm_t c, cudaStream_t s)
CALL(ncclAlltoAll, const void *a, void *b, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t s)
CALL(ncclGather, const void *a, void *b, size_t n, ncclDataType_t t, int r, ncclComm_t c,
     cudaStream_t s)
CALL(ncclScatter, const void *a, void *b, size_t n, ncclDataType_t t, int r, ncclComm_t c,
     cudaStream_t s)
CALL(ncclSend, const void *a, size_t n, ncclDataType_t t, int p, ncclComm_t c, cudaStream_t s)
CALL(ncclRecv, void *b, size_t n, ncclDataType_t t, int p, ncclComm_t c, cudaStream_t s)
CALL(ncclGroupEnd, void)
/* NOLINTEND(misc-unused-parameters) */
