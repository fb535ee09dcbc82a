/* How many threads the CPU step has where OFFLOAD_THREADS doesn't say: of the CPUs this thread may use
   (affinity, and what the control groups' quotas leave), a fair share for each rank of the node, less
   two that stay for the program; at least one. OpenMP's variables have no say. */
#ifndef OFFLOAD_CPUS_H
#define OFFLOAD_CPUS_H

/* For the calling thread, now. Ranks share where each may use the CPUs of all; where the launcher gave
   each its own (so few that they fit beside each other) they are not parted again. A quota is the
   whole group's. `root` is prefixed to /proc and /sys (NULL: the real ones). */
unsigned cpus_threads(unsigned local_ranks, const char *root);

/* The rule by itself. `allowed`: in the thread's affinity; `present`: in the node, or its container's
   set; `quota`: whole CPUs, 0 for none. */
unsigned cpus_threads_of(unsigned allowed, unsigned present, unsigned quota, unsigned local_ranks);
#endif
