/* What test programs may call beside cuda.h. */
#ifndef GPUSIM_H
#define GPUSIM_H
#ifdef __cplusplus
extern "C" {
#endif
/* The simulator's own view of a device address, for tests that check that device memory is closed to the CPU. */
void *gpusim_host_view(void *device_pointer);
#ifdef __cplusplus
}
#endif
#endif
