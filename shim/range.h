/* Memory ranges: a device allocation as one reservation of addresses, backed piece by piece.

     base            base+bytes      base+mapped_bytes
      | piece 0 | piece 1 | piece 2 |        each piece: one handle, mapped whole, on the device or on the host
      `---------- reservation ------'

   A handle is the unit of moving, since the driver unmaps only whole mappings (cuda.h, cuMemUnmap). A tensor keeps its
   address wherever its pieces are. Piece state changes only under the enqueue lock; the table is read under its own
   read-write lock, never held across a driver call. */
#ifndef OFFLOAD_RANGE_H
#define OFFLOAD_RANGE_H
#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Frameworks round blocks to 512 bytes: coverage is kept at that grain, and padding counts as its tensor's. */
enum { COVERAGE_GRAIN = 512 };

enum piece_tier { PIECE_DEVICE, PIECE_HOST };

struct piece {
  CUmemGenericAllocationHandle handle;
  enum piece_tier tier;
  bool provisional;     /* began on the host because the device was full; confirmed or sent home by the next step */
  bool foreign_touched; /* something not ours used it since the last step; set without the lock, hence atomic in use */
  unsigned streak;      /* steps in a row that covered it whole */
  unsigned streak_needed; /* 1 to begin with, 2 once it was sent home */
  uint64_t *covered;    /* bit per COVERAGE_GRAIN named by the present step, NULL when none */
  uint32_t covered_count;
  uint32_t covered_last; /* covered_count at the end of the last step */
};

struct range {
  uintptr_t base;
  size_t bytes, mapped_bytes, piece_bytes;
  uint32_t piece_count;
  struct piece *pieces;
  CUcontext context;
  CUdevice device;
  uint64_t id;    /* answers CU_POINTER_ATTRIBUTE_BUFFER_ID */
  bool immovable; /* exported, retained, registered or captured */
  _Atomic uint32_t host_pieces;
};

/* The range that contains an address, or NULL. Lock-free for addresses outside every range (two comparisons). The pointer
   stays valid while the program doesn't free that allocation. */
struct range *range_find(uintptr_t address);

/* True when every byte of [address, address+bytes) lies on host pieces of one range. Under the enqueue lock. */
bool range_on_host(uintptr_t address, size_t bytes);

/* Whether any range has host pieces: the cheap question before a parameter scan. */
bool range_any_host(void);

/* Size of a piece on this device: the larger of the driver's granularities for device and host handles, or OFFLOAD_PIECE. */
size_t range_piece_bytes(CUdevice device);

/* Makes a range of `bytes` on the current device, every piece on `tier`. CUDA_SUCCESS, CUDA_ERROR_OUT_OF_MEMORY, or
   CUDA_ERROR_NOT_SUPPORTED when a native allocation should be made instead. */
CUresult range_create(CUdeviceptr *pointer, size_t bytes, enum piece_tier tier);

/* Frees a range after everything queued on it is done (as cuMemFree does). */
CUresult range_destroy(struct range *);

/* All ranges of a context whose memory the driver is about to take away. */
void range_forget_context(CUcontext context);
#endif
