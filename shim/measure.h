/* The machine's rates for this process: told by OFFLOAD_RATES, kept from an earlier run (policy/rates_cache.h), or measured by the
   program offload-probe beside this library, which is started when the first allocation becomes a range and nothing else is known.
   The program meets nothing of it: no descriptor, no output, no signal, no child that its wait() could find (measure_run.h). */
#ifndef OFFLOAD_MEASURE_H
#define OFFLOAD_MEASURE_H
#include "../policy/rates.h"
#include <cuda.h>

/* The first range of a device was made. Reads files; starts measuring. A load after the first time. No lock may be held. */
void measure_begin(CUdevice device);

/* What is known now, never waiting: told, else kept, else measured, else assumed. */
void measure_rates(CUdevice device, struct rates *);

/* Counts up whenever measure_rates' answer for any device has changed: rates that came late. */
unsigned measure_generation(void);

/* Steps disagree with the rates: they are measured again, once in a process for each device; not where they were told or where nothing
   can be measured. Returns at once. */
void measure_refresh(CUdevice device);
#endif
