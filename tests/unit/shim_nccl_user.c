/* The program's part of shim_nccl.c: calls NCCL as a framework's library does, bound by the loader. */
#include "integration/pytorch/nccl/nccl.h"
#include <string.h>

unsigned nccl_library_calls(const char **last);

void nccl_library_watch(const int *number);
int nccl_library_watched(void);

void nccl_watch(const int *number) {
  nccl_library_watch(number);
}
int nccl_watched(void) {
  return nccl_library_watched();
}

unsigned nccl_calls(const char **last) {
  return nccl_library_calls(last);
}

#define CALL(name, ...)                                                                            \
  if (!strcmp(call, #name)) {                                                                      \
    return (int)name(__VA_ARGS__); /* with few arguments by a jump */                              \
  }

int nccl_user(const char *call, const void *send, void *receive, size_t count, int type) {
  const ncclDataType_t t = (ncclDataType_t)type;
  ncclComm_t c = (ncclComm_t)&nccl_user;
  CALL(ncclAllReduce, send, receive, count, t, ncclSum, c, NULL)
  CALL(ncclReduce, send, receive, count, t, ncclSum, 0, c, NULL)
  CALL(ncclReduceScatter, send, receive, count, t, ncclSum, c, NULL)
  CALL(ncclAllGather, send, receive, count, t, c, NULL)
  CALL(ncclBroadcast, send, receive, count, t, 0, c, NULL)
  CALL(ncclBcast, receive, count, t, 0, c, NULL)
  CALL(ncclAlltoAll, send, receive, count, t, c, NULL)
  CALL(ncclGather, send, receive, count, t, 0, c, NULL)
  CALL(ncclScatter, send, receive, count, t, 0, c, NULL)
  CALL(ncclSend, send, count, t, 0, c, NULL)
  CALL(ncclRecv, receive, count, t, 0, c, NULL)
  CALL(ncclGroupEnd)
  return -1;
}
