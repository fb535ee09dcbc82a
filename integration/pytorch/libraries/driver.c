/* The driver's entry points. Written once under `once`, read by everybody afterwards. */
#include "integration/pytorch/libraries/driver.h"
#include "integration/pytorch/libraries/find_driver.h"
#include <pthread.h>

struct library_driver driver;
static const struct driver_entry entries[] = {
#define ENTRY(name, version) {#name, version, (void **)&driver.name},
#include "integration/pytorch/libraries/driver.def"
#undef ENTRY
};
static pthread_once_t once = PTHREAD_ONCE_INIT;
static CUresult opened = CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;

static void open_driver(void) {
  char problem[256];
  if (find_driver(entries, sizeof entries / sizeof entries[0], &driver.host_view, problem,
                  sizeof problem))
    opened = CUDA_SUCCESS;
  else
    fprintf(stderr, "%s\n", problem);
}

CUresult driver_open(void) {
  pthread_once(&once, open_driver);
  return opened;
}
