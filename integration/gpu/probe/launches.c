/* P12: what the program's thread pays for a launch that nobody waits for. check.sh runs it alone and
   under the preload; the library must not be noticed. */
#include "probe.h"
#include <stdlib.h>
#include <string.h>

enum { BATCH = 200, BATCHES = 100 }; /* short of what a queue holds */

void probe_launches(void) {
  static double us[BATCHES];
  const char *preload = getenv("LD_PRELOAD");
  start();
  fact_bool("preloaded", preload != NULL && strstr(preload, "liboffload") != NULL);
  CUfunction function = kernel("probe_shape");
  uint32_t number = 1, list[10] = {0};
  uint16_t small = 1;
  void *parameters[] = {&machine.errors, &number, list, &small};
  int batches = machine.simulated ? 10 : BATCHES;
  step("launching");
  for (int batch = -1; batch < batches; batch++) { /* the first one loads the kernel */
    double begin = now_us();
    for (int i = 0; i < BATCH; i++)
      must_succeed(launch(function, 1, 1, machine.stream, parameters), "cuLaunchKernel", __FILE__,
                   __LINE__);
    double end = now_us();
    MUST(cuStreamSynchronize, machine.stream);
    if (batch >= 0)
      us[batch] = (end - begin) / BATCH;
  }
  fact_count("launches", (uint64_t)batches * BATCH);
  fact_number("launch_median_ns", 1e3 * median(us, (size_t)batches));
  fact_number("launch_fastest_ns", 1e3 * us[0]);
}
