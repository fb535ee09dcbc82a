/* What gpusim_fake_driver.c records; read by gpusim_runtime_calls.c. */
#ifndef GPUSIM_FAKE_DRIVER_H
#define GPUSIM_FAKE_DRIVER_H
#include <cuda.h>
#include <stdbool.h>

enum { FAKE_DRIVER_LOOKUPS = 1000, FAKE_DRIVER_FRAMES = 32 };

struct fake_driver_lookup {
  const char *name;
  int version;
  unsigned flags;
  bool status_wanted;
};

struct fake_driver_log {
  struct fake_driver_lookup lookups[FAKE_DRIVER_LOOKUPS];
  int lookup_count;
  int lookups_before_init;          /* set by cuInit */
  void *frames[FAKE_DRIVER_FRAMES]; /* the callers of cuMemAlloc */
  int frame_count;
  int legacy_calls, per_thread_calls; /* of cuStreamSynchronize */
};
#endif
