/* The report's "memory": where bytes lay in the course of the run, in a bounded list of samples. The recorder's thread adds them,
   the program's thread notes what only it can know. */
#ifndef OFFLOAD_REPORT_MEMORY_H
#define OFFLOAD_REPORT_MEMORY_H
#include "json.h"
#include <stdbool.h>
#include <stdint.h>

/* When there are so many, every second one goes and samples come half as often. */
enum { REPORT_MEMORY_SAMPLES = 512 };

/* Device memory as cuMemGetInfo told it, and bytes of state that the last whole step named. total 0: not known. Any thread. */
void report_memory_device(uint64_t used_bytes, uint64_t total_bytes);
void report_memory_state(uint64_t bytes);

/* The same, for whoever shows them; false when the device's are not known. */
bool report_memory_device_now(uint64_t *used_bytes, uint64_t *total_bytes);
uint64_t report_memory_state_now(void);

/* Begins the list, once: times count from now on, samples are so far apart at first. */
void report_memory_begin(uint64_t now_ns, uint64_t interval_ns);

/* Adds what is so now, when the last sample is an interval old or `last` asks for it. How long until the next is due. */
uint64_t report_memory_sample(uint64_t now_ns, bool last);

void report_memory_json(struct json *);
void report_memory_forget(void);
#endif
