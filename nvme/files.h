/* The file of one directory: made so that nothing of it outlives its descriptors, and tried before it is trusted. For store.c. */
#ifndef OFFLOAD_NVME_FILES_H
#define OFFLOAD_NVME_FILES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct drive_file {
  int file; /* O_DIRECT, 0600, without a name, closed by exec */
  uint64_t device;
  size_t alignment; /* of offsets, lengths and memory; at least 4,096 */
};

/* Makes the file, writes, reads back, compares. False with a sentence that names the directory, what is wrong and the remedy;
   then nothing is left open. */
bool drive_file_open(const char *directory, struct drive_file *, char *why, size_t why_bytes);

/* Of the file system under `file`: what an unprivileged user may still take. 0 when it can't be told. */
uint64_t drive_file_free_bytes(int file);

/* NULL: files of a file system with this magic may hold state; else its name. */
const char *drive_file_refused(uint64_t magic);
#endif
