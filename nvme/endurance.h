/* How much of a drive's life is used, and how long the rest lasts at this rate. Sources: sysfs (model, size, sectors written),
   the NVMe SMART log (page 02h) by the admin ioctl where permitted, else smartctl's JSON where that program is. What can't be read
   is unknown, never guessed. Knows nothing of CUDA. */
#ifndef OFFLOAD_NVME_ENDURANCE_H
#define OFFLOAD_NVME_ENDURANCE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct drive_health {
  char name[32];  /* "nvme0n1"; "" when the file system has no block device */
  char model[64]; /* "" unknown */
  uint64_t capacity_bytes;
  bool consumer;      /* by a table of model names; says so only when it is sure */
  bool percent_known; /* of the rated endurance; may be above 100 */
  unsigned percent_used;
  bool written_known; /* by everybody, in the drive's life */
  uint64_t written_bytes;
  bool boot_known; /* the same since the system started, by the kernel's count */
  uint64_t boot_written_bytes;
  bool rated_known; /* TBW, by a table of model names and capacity */
  uint64_t rated_bytes;
  char source[32]; /* "nvme log", "smartctl", "sysfs", "" */
};

/* The drive under a device number (st_dev), partitions, device mapper, md and loop devices looked through; of several the one that is
   used up most. `root` is prefixed to paths in /sys (recorded trees in tests, with which no drive is asked; NULL: the real ones).
   Never fails: unknown stays unknown. Reads files, may run smartctl (bounded by 2 s). */
struct drive_health drive_health(uint64_t device, const char *root);

/* What is left, at `bytes_per_step` and `seconds_per_step`: by bytes and by percent, the smaller. Unknown rates or lives: false. */
bool drive_life(const struct drive_health *, uint64_t bytes_per_step, double seconds_per_step,
                double *steps, double *days);

/* OFFLOAD_NVME_WEAR_LIMIT: "20TB" written by this process in all, or "90%" of the rated endurance used. Whether it is reached. */
struct wear_limit {
  bool set;
  uint64_t bytes;   /* 0: not by bytes */
  unsigned percent; /* 0: not by percent */
};
bool wear_reached(const struct wear_limit *, const struct drive_health *, uint64_t written_bytes);
#endif
