/* P11: bias corrections of the device's powf and pow, compared with the C library's: how often they
   differ, by how many units in the last place, and where first. The library searches that
   neighbourhood, so it must be small. */
#include "gpu/powers_ptx.h"
#include "probe.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NEIGHBOURHOOD = 8 };
static const double betas[] = {0.9, 0.95, 0.98, 0.99, 0.999, 0.9999};
static CUmodule module;
static CUdeviceptr device;
static unsigned steps;
static void *host;

static int64_t bits_of_float(float x) {
  int32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits < 0 ? INT32_MIN - (int64_t)bits : bits;
}

static int64_t bits_of_double(double x) {
  int64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits < 0 ? INT64_MIN - bits : bits;
}

static void compute(const char *name, void *beta, size_t element_bytes) {
  CUfunction function = NULL;
  MUST(cuModuleGetFunction, &function, module, name);
  void *parameters[] = {beta, &steps, &device};
  must_succeed(launch(function, blocks_for(steps), THREADS, machine.stream, parameters), name,
               __FILE__, __LINE__);
  MUST(cuStreamSynchronize, machine.stream);
  MUST(cuMemcpyDtoH_v2, host, device, steps * element_bytes);
}

/* By how many units in the last place the device's result at step i differs from the C library's. */
static int64_t distance(bool wide, bool correction, double beta, unsigned i) {
  float step = (float)(i + 1);
  if (wide) {
    double ours = pow(beta, (double)step);
    return llabs(bits_of_double(((double *)host)[i]) -
                 bits_of_double(correction ? 1.0 - ours : ours));
  }
  float ours = powf((float)beta, step);
  return llabs(bits_of_float(((float *)host)[i]) - bits_of_float(correction ? 1.0f - ours : ours));
}

static void compare(bool wide, bool correction, double beta) {
  uint64_t different = 0;
  int64_t farthest = 0;
  unsigned first = 0;
  float narrow = (float)beta;
  const char *name = named("%s%s", wide ? "pow" : "powf", correction ? "_correction" : "");
  const char *prefix = named("%s_%g", name, beta);
  step(named("computing %s", prefix));
  compute(named("probe_%s", name), wide ? (void *)&beta : (void *)&narrow,
          wide ? sizeof(double) : sizeof(float));
  for (unsigned i = 0; i < steps; i++) {
    int64_t units = distance(wide, correction, beta, i);
    different += units != 0;
    first = units != 0 && first == 0 ? i + 1 : first;
    farthest = units > farthest ? units : farthest;
  }
  fact_count(named("%s_different", prefix), different);
  fact_signed(named("%s_most_units", prefix), farthest);
  fact_count(named("%s_first_step", prefix), first);
  /* a correction near 0 has finer units than the power that it comes from */
  expect(correction || farthest <= NEIGHBOURHOOD,
         "%s: at most %d units from the C library's, not %lld", prefix, NEIGHBOURHOOD,
         (long long)farthest);
}

void probe_powers(void) {
  start();
  step("loading powf and pow");
  MUST(cuModuleLoadData, &module, probe_powers_ptx);
  steps = machine.simulated ? 3000 : 200000;
  fact_count("steps", steps);
  MUST(cuMemAlloc_v2, &device, steps * sizeof(double));
  host = malloc(steps * sizeof(double));
  if (host == NULL)
    give_up("no memory for %u results", steps);
  for (int kind = 0; kind < 4; kind++)
    for (size_t i = 0; i < sizeof betas / sizeof *betas; i++)
      compare(kind >= 2, kind % 2 != 0, betas[i]);
  free(host);
}
