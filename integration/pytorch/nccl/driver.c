/* The driver's entry points. Written once under `once`, read by everybody afterwards. */
#include "integration/pytorch/nccl/driver.h"
#include "integration/pytorch/libraries/find_driver.h"
#include "integration/pytorch/nccl/error.h"
#include <pthread.h>
#include <string.h>

struct nccl_driver driver;
static const struct driver_entry entries[] = {
#define ENTRY(name, version) {#name, version, (void **)&driver.name},
#include "integration/pytorch/nccl/driver.def"
#undef ENTRY
};
static pthread_once_t once = PTHREAD_ONCE_INIT;
static ncclResult_t opened;

static ncclResult_t open_once(void) {
  char problem[256];
  if (!find_driver(entries, sizeof entries / sizeof entries[0], &driver.host_view, problem,
                   sizeof problem))
    return nccl_fail(ncclSystemError, "%s", problem);
  return CHECK_CUDA(cuInit(0));
}

static void open_driver(void) {
  opened = open_once();
}

ncclResult_t driver_open(void) {
  pthread_once(&once, open_driver);
  return opened;
}

ncclResult_t driver_check(CUresult result, const char *call) {
  const char *name = NULL;
  if (result == CUDA_SUCCESS)
    return ncclSuccess;
  driver.cuGetErrorName(result, &name);
  return nccl_fail(ncclUnhandledCudaError, "%.*s: %s", (int)strcspn(call, "("), call,
                   name != NULL ? name : "unknown CUDA error");
}
