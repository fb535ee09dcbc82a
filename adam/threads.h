/* How many threads the OpenMP runtime may be asked for. Called by team.c. */
#ifndef OFFLOAD_ADAM_THREADS_H
#define OFFLOAD_ADAM_THREADS_H
#ifndef _GNU_SOURCE
#error "cpu_set_t needs _GNU_SOURCE"
#endif
#include <sched.h>
#include <stddef.h>

/* `wanted`, or fewer with a sentence in `why`. `allowed`: the CPUs of the calling thread. */
int threads_to_be_had(int wanted, const cpu_set_t *allowed, size_t allowed_bytes, char *why,
                      size_t why_bytes);
#endif
