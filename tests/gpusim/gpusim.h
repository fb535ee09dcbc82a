/* What test programs may call beside cuda.h. */
#ifndef GPUSIM_H
#define GPUSIM_H
#ifdef __cplusplus
extern "C" {
#endif
/* The simulator's own view of a device address, for tests that check that device memory is closed
 * to the CPU. */
void *gpusim_host_view(void *device_pointer);
/* A counter by its name in counters.def, while the program runs; all ones when there is none of
 * that name. */
unsigned long long gpusim_counter_by_name(const char *name);
#ifdef __cplusplus
}
#endif
#endif
