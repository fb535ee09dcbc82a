/* NCCL's calls meet the wrappers of shim/nccl.c, which tell what is read and written and then call the library. The rooms are this
   file's: it notes what they are told. NCCL is a library of its own that no scope but the caller's has. */
#define _GNU_SOURCE
#include "integration/pytorch/nccl/nccl.h"
#include "shim/facts.h"
#include "shim/process.h"
#include "shim/state.h"
#include "tests/lib/tap.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
  uintptr_t address;
  size_t bytes;
  bool writes;
} told[8];
static unsigned told_count;
static CUresult answer;

CUresult state_foreign_access(uintptr_t address, size_t bytes, CUstream stream, bool writes) {
  (void)stream;
  told[told_count].address = address;
  told[told_count].bytes = bytes;
  told[told_count++].writes = writes;
  return answer;
}
static int told_depth;
void facts_reduced(size_t bytes) {
  (void)bytes;
}
void facts_divided(size_t bytes) {
  (void)bytes;
}
void state_told(bool begins) {
  told_depth += begins ? 1 : -1;
}
bool process_active(void) {
  return true;
}

static bool was(unsigned i, uintptr_t address, size_t bytes, bool writes) {
  return i < told_count && told[i].address == address && told[i].bytes == bytes &&
         told[i].writes == writes;
}

/* tests/unit/shim_nccl_user.c, loaded RTLD_LOCAL: it alone needs the NCCL of shim_nccl_library.c. */
static int (*user)(const char *call, const void *send, void *receive, size_t count, int type);
static unsigned (*calls)(const char **last);
static void (*watch)(const int *);
static int (*watched)(void);

static bool told_of(const char *call, size_t send_bytes, size_t receive_bytes, int type) {
  char send[8], receive[8];
  const char *last = "";
  told_count = 0;
  const unsigned before = calls(&last);
  const int result = user(call, send, receive, 10, type);
  unsigned i = 0;
  bool right = result == 0 && calls(&last) == before + 1 && !strcmp(last, call);
  right &=
      watched() == 1 &&
      told_depth == 0; /* kernels were told while the library was in its call, and not longer */
  if (send_bytes)
    right &= was(i++, (uintptr_t)send, send_bytes, false);
  if (receive_bytes)
    right &= was(i++, (uintptr_t)receive, receive_bytes, true);
  return right && told_count == i;
}

int main(void) {
  char path[4096];
  const char *build = getenv("OFFLOAD_TEST_BUILD");
  snprintf(path, sizeof path, "%s/tests/unit/libshim_nccl_user.so", build ? build : "build");
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library) {
    *(void **)&user = dlsym(library, "nccl_user");
    *(void **)&calls = dlsym(library, "nccl_calls");
    *(void **)&watch = dlsym(library, "nccl_watch");
    *(void **)&watched = dlsym(library, "nccl_watched");
  }
  if (!tap_ok(library && user && calls && watch && watched,
              "a library that needs NCCL is loaded for itself alone"))
    return tap_done();
  watch(&told_depth);
  tap_ok(told_of("ncclAllReduce", 40, 40, ncclFloat32),
         "an all-reduce reads and writes as many elements");
  tap_ok(told_of("ncclReduce", 20, 20, ncclBfloat16), "a reduce reads and writes as many elements");
  tap_ok(told_of("ncclReduceScatter", 320, 80, ncclFloat64),
         "a reduce-scatter reads for every rank");
  tap_ok(told_of("ncclAllGather", 10, 40, ncclUint8), "an all-gather writes for every rank");
  tap_ok(told_of("ncclBroadcast", 20, 20, ncclFloat16), "a broadcast reads and writes");
  tap_ok(told_of("ncclBcast", 0, 40, ncclInt32), "a broadcast in place writes");
  tap_ok(told_of("ncclAlltoAll", 320, 320, ncclInt64),
         "an all-to-all reads and writes for every rank");
  tap_ok(told_of("ncclGather", 40, 160, ncclFloat32), "a gather writes for every rank");
  tap_ok(told_of("ncclScatter", 160, 40, ncclFloat32), "a scatter reads for every rank");
  tap_ok(told_of("ncclSend", 10, 0, ncclFloat8e4m3), "a send reads");
  tap_ok(told_of("ncclRecv", 0, 40, ncclFloat32), "a receive writes");
  tap_ok(told_of("ncclGroupEnd", 0, 0, ncclFloat32),
         "the end of a group launches what was told before");
  tap_ok(told_of("ncclAllReduce", 80, 80, 99), "an unknown type counts as the largest");

  const char *last;
  const unsigned before = calls(&last);
  answer = CUDA_ERROR_OUT_OF_MEMORY;
  tap_ok(user("ncclAllReduce", "", (void *)path, 1, ncclFloat32) == ncclUnhandledCudaError &&
             calls(&last) == before,
         "a call whose memory can't be brought in fails and isn't made");
  return tap_done();
}
