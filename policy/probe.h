/* What the parts of the program offload-probe share. Each measures for a bounded time what it can, leaves alone what it can't, and
   says why in a line on stderr with --verbose. One thread calls them, in this order: host, gpu, drives. */
#ifndef OFFLOAD_PROBE_H
#define OFFLOAD_PROBE_H
#include "rates_cache.h"

struct probe {
  struct rates rates;
  const char *root; /* in front of /proc and /sys; "" is the real ones */
  unsigned threads; /* that the ranks' CPU steps may use */
  int node;         /* of the GPU; -1: not known */
  const char *drives;
  bool verbose;
};

/* A line on stderr, if asked for. */
void probe_say(const struct probe *, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The GPU (probe_gpu.c). Opening gives its bus id and name and the driver's version, makes no context; NULL with a sentence. */
struct probe_gpu;
struct probe_gpu *probe_gpu_open(const char *which, struct rates_key *key, int *version,
                                 char *problem, size_t problem_bytes);
/* Link, kernels on host pages, device memory, starts, and what the host pages were charged to. */
bool probe_gpu_measure(struct probe_gpu *, struct probe *, char *problem, size_t problem_bytes);

/* Host memory by one thread and by all of them (probe_host.c), on the GPU's node. */
void probe_host_memory(struct probe *);
/* The node that a PCI device belongs to, or -1; and its distance from the nearest node of whose CPUs this process may use one: 0 when
   that isn't known. */
int probe_node_of(const char *root, const char *bus);
double probe_distance(const char *root, int node);
/* The CPU step's arithmetic, of the companion object beside this program (probe_host.c). */
void probe_elements(struct probe *);

/* What is used now: of this process's control groups, of the machine, and locked by this process (probe_charge.c). Unknown: 0. */
struct probe_usage {
  uint64_t group_bytes, available_bytes, locked_bytes;
  bool group_known, available_known, locked_known;
};
struct probe_usage probe_usage_now(const char *root);
/* What `bytes` that were made between the two are charged to. */
void probe_charged(struct rates *, const struct probe_usage *before,
                   const struct probe_usage *after, uint64_t bytes);

/* The named drives together (probe_drives.c); nothing is left there. */
void probe_drives(struct probe *);
#endif
