/* Device and pinned memory that carrying out steps takes in a context: staging, slots, proofs, scratch. Whoever makes some, makes it here, so that
   all of it can be given back at once while the program runs on (switch.c), older and smaller blocks too, which are otherwise kept until
   their context ends because steps in flight may use them. Callers: ring.c, staging.c, verify.c, step_drive.c, under the enqueue lock. */
#ifndef OFFLOAD_HOLDINGS_H
#define OFFLOAD_HOLDINGS_H
#include <cuda.h>
#include <stddef.h>

/* Device memory of the current context. The driver's answer. */
CUresult holding_allocate(CUdeviceptr *, size_t bytes);
CUresult holding_free(CUdeviceptr);
/* Pinned memory, zeroed, that forked children don't share. */
CUresult holding_pin(void **memory, size_t bytes);
void holding_unpin(void *memory);

/* Gives all of the current context back to the driver, which waits until the device doesn't use it; the bytes are added. */
void holdings_release(CUcontext, size_t *device_bytes, size_t *pinned_bytes);
/* A context is going, and takes everything along. */
void holdings_forget(CUcontext);
#endif
