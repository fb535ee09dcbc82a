/* What test programs may call beside cuda.h. */
#ifndef GPUSIM_H
#define GPUSIM_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
/* The simulator's own view of a device address, for tests that check that device memory is closed
 * to the CPU. */
void *gpusim_host_view(void *device_pointer);
/* A counter by its name in counters.def, while the program runs; all ones when there is none of
 * that name. */
unsigned long long gpusim_counter_by_name(const char *name);

/* ---- the machine; these don't initialise the driver ---- */

/* Devices of the machine, whatever CUDA_VISIBLE_DEVICES lets the process see. */
int gpusim_machine_devices(void);
struct gpusim_machine_device {
  unsigned char uuid[16];
  int compute_capability;                      /* 90 for 9.0 */
  unsigned long long memory_bytes, used_bytes; /* used by this process */
};
/* 0, or -1 when there is no device of that number. */
int gpusim_machine_device(int number, struct gpusim_machine_device *);
/* The number by a bus address such as 0000:01:00.0, or -1. */
int gpusim_machine_device_by_bus(const char *id);

/* ---- the clock; these do nothing without GPUSIM_PROFILE ---- */

/* Work that a host thread does, declared by itself. Amounts are of the real bytes: GPUSIM_SCALE
   applies to all but `ns`. It takes the longest of its parts.

   With `after` or `until` it is a worker's: it begins when the device has written after_value to
   the 32-bit word `after` (or a value cyclically greater; NULL: at once) and the same thread's
   earlier work is done, and ends by writing until_value to `until` (NULL: to no word). It may be
   declared at any time, also before the device gets there, in the order in which the thread does it.
   Without either the calling thread itself is busy: in a host function its stream, else the host. */
struct gpusim_host_work {
  const char *what; /* for the timeline; may be NULL */
  const void *after;
  uint32_t after_value;
  const void *until;
  uint32_t until_value;
  size_t dram_bytes, drive_read_bytes, drive_write_bytes;
  uint64_t ns;
};
void gpusim_clock_host_work(const struct gpusim_host_work *);

/* Marks where the calling thread has got to: GPUSIM_REPLAYS tells the time and what was used up to then. */
void gpusim_clock_mark(const char *name);

/* Replays what was submitted up to now, sets the counters clock_* and writes GPUSIM_TIMELINE.
   Returns the simulated nanoseconds. */
unsigned long long gpusim_clock_report(void);
#ifdef __cplusplus
}
#endif
#endif
