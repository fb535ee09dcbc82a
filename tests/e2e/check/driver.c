/* A libcuda.so.1 that knows its version and then crashes or hangs in cuInit, as FAKE_DRIVER says. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cuInit(unsigned flags);
int cuDriverGetVersion(int *version);
int cuDeviceGetCount(int *count);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDeviceTotalMem_v2(size_t *bytes, int device);

int cuInit(unsigned flags) {
  const char *how = getenv("FAKE_DRIVER");
  if (how && !strcmp(how, "crash"))
    abort();
  if (how && !strcmp(how, "hang"))
    sleep(60);
  return how ? atoi(how) : (int)flags;
}
int cuDriverGetVersion(int *version) {
  *version = 13000;
  return 0;
}
int cuDeviceGetCount(int *count) {
  *count = 0;
  return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
  *context = NULL;
  return device;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  *bytes = 0;
  return device;
}
