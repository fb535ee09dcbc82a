/* The host tier: which kind of host memory handles of this device can be, and how much of it may be
   pinned. A ladder, tried once per device with one piece: HOST_NUMA handles on the GPU's node, HOST
   handles (CUDA 13), none. Callers: range.c and move.c; thread-safe; no lock is held across driver
   calls. */
#ifndef OFFLOAD_TIER_H
#define OFFLOAD_TIER_H
#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

/* Where host handles of this device live; false when there can be none, which was reported with
 * what would allow it. */
bool tier_location(CUdevice device, size_t piece_bytes, CUmemLocation *location);

/* Whether any device was refused host handles, whether that was forbidden (a container's seccomp profile), and by which driver
   (cuDriverGetVersion). Any thread. */
struct tier_refusal {
  bool refused, forbidden;
  int driver;
};
struct tier_refusal tier_refused(void);

/* Bytes that may still be pinned for state of this device. */
size_t tier_room(CUdevice device);

/* A launch of an optimizer was seen on it; its state had its turn to move: what is kept for it is free for others. */
void tier_stepping(CUdevice device);
void tier_served(CUdevice device);

/* A host handle, its bytes taken from the budget; CUDA_ERROR_OUT_OF_MEMORY when the budget or the
   driver has no more (said once), CUDA_ERROR_NOT_SUPPORTED when this device has no host tier. */
CUresult tier_create(CUdevice device, size_t piece_bytes, CUmemGenericAllocationHandle *handle);

/* The same beyond the budget: for state that must come back from drives and has no room elsewhere. */
CUresult tier_create_beyond(CUdevice device, size_t piece_bytes,
                            CUmemGenericAllocationHandle *handle);

/* The handle goes, and its bytes return to the budget. */
void tier_release(CUdevice device, CUmemGenericAllocationHandle handle, size_t piece_bytes);

/* Properties and access descriptors. */
CUmemAllocationProp tier_properties(CUmemLocation location);
CUmemLocation tier_device(CUdevice device);

/* Opens a mapped piece to its device, and to the CPU when it is of host memory (`host` its
 * location, else NULL). */
CUresult tier_open(CUdeviceptr address, size_t bytes, CUdevice device, const CUmemLocation *host);
#endif
