/* Memory of frames: see frames_memory.h. Pages come to be when the driver pins them, so a size that the system can't give is refused there
   or where it is mapped, and both are answered by trying half. */
#include "frames_memory.h"
#include "../nvme/engine.h"
#include "../policy/report.h"
#include "driver.h"
#include "process.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Drivers that refuse a long registration take so much at once. */
static const size_t part_bytes_least = (size_t)16 << 20;

static void unregister(unsigned char *base, size_t bytes, size_t part_bytes) {
  for (size_t at = 0; at < bytes; at += part_bytes)
    (void)driver.cuMemHostUnregister(base + at); /* of a context that may be lost, and ends */
}

/* All of it, or nothing. */
static CUresult register_parts(struct frames_memory *memory, size_t part_bytes) {
  for (size_t at = 0; at < memory->bytes; at += part_bytes) {
    const size_t left = memory->bytes - at;
    const CUresult result = process_note(
        driver.cuMemHostRegister_v2(memory->base + at, left < part_bytes ? left : part_bytes,
                                    CU_MEMHOSTREGISTER_PORTABLE),
        "cuMemHostRegister");
    if (result != CUDA_SUCCESS) {
      unregister(memory->base, at, part_bytes);
      return result;
    }
  }
  memory->part_bytes = part_bytes;
  return CUDA_SUCCESS;
}

bool frames_memory_register(struct frames_memory *memory, size_t piece_bytes, char *why,
                            size_t why_bytes) {
  if (!driver.cuMemHostRegister_v2 || !driver.cuMemHostUnregister) {
    snprintf(why, why_bytes, "the driver has no cuMemHostRegister");
    return false;
  }
  /* No copy crosses a border of parts: pieces don't. */
  const size_t part = piece_bytes > part_bytes_least ? piece_bytes : part_bytes_least;
  CUresult result = register_parts(memory, memory->bytes);
  if (result != CUDA_SUCCESS && part < memory->bytes && process_active())
    result = register_parts(memory, part / piece_bytes * piece_bytes);
  if (result == CUDA_SUCCESS)
    return true;
  char size[REPORT_SIZE_BYTES];
  const char *name = NULL;
  if (!driver.cuGetErrorName || driver.cuGetErrorName(result, &name) || !name)
    name = "an unknown error";
  snprintf(why, why_bytes,
           "the driver can't pin %s of staging for drives (cuMemHostRegister: %s); raise "
           "ulimit -l, or lower OFFLOAD_NVME_STAGING or OFFLOAD_PIECE",
           report_size_text(memory->bytes, size), name);
  return false;
}

static bool map(struct frames_memory *memory, size_t bytes, char *why, size_t why_bytes) {
  void *base = engine_slab_map(bytes);
  if (!base) {
    const int error = errno;
    char size[REPORT_SIZE_BYTES];
    snprintf(why, why_bytes,
             "there is no memory for %s of staging for drives (%s); lower "
             "OFFLOAD_NVME_STAGING",
             report_size_text(bytes, size), strerror(error));
    return false;
  }
  *memory = (struct frames_memory){.base = base, .bytes = bytes};
  return true;
}

bool frames_memory_make(struct frames_memory *memory, size_t bytes, size_t least,
                        size_t piece_bytes, char *why, size_t why_bytes) {
  for (;;) {
    if (map(memory, bytes, why, why_bytes)) {
      if (frames_memory_register(memory, piece_bytes, why, why_bytes))
        return true;
      frames_memory_free(memory);
    }
    if (bytes == least || !process_active())
      return false;
    bytes = bytes / 2 / piece_bytes * piece_bytes;
    if (bytes < least)
      bytes = least;
  }
}

void frames_memory_unregister(struct frames_memory *memory) {
  unregister(memory->base, memory->bytes, memory->part_bytes);
}

void frames_memory_free(struct frames_memory *memory) {
  engine_slab_unmap(memory->base, memory->bytes);
  memory->base = NULL;
}
