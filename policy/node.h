/* This process as one of its node's ranks: when it is registered, with how many others it shares, what it shows of itself. Called by
   the shim under the enqueue lock; ranks_sharers (ranks.h) from any thread. */
#ifndef OFFLOAD_NODE_H
#define OFFLOAD_NODE_H
#include "config.h"
#include "registry.h"

/* Takes a slot, at the first recognised launch or the first host memory for state; does nothing later. Without a registry, which is
   said once, it is as alone as its launcher says. */
void node_join(const struct config *);
bool node_asked(void); /* whether it was called */

/* A step that is over, as the next one begins; `bytes` of state and parameters that it named. */
struct node_step {
  uint64_t state_bytes, parameter_bytes;
  uint64_t parameters_key; /* hash of its tensors' sizes, in order */
  uint64_t prints[REGISTRY_PRINTS];
  bool reduces;     /* both as in struct registry_state */
  unsigned threads; /* of all workers */
};
/* Shows it to the others, and looks at them: at the first steps, then ten times a second at most. True when it looked. */
bool node_step(const struct config *, const struct node_step *);
/* The signal has brought all state home: the others see that nothing of it is away any more, and why. */
void node_switched(const struct config *);
/* Once more, for the last report. */
void node_finish(const struct config *);

/* Whether the ranks of this job on this node keep the same state each (DDP; replicas.h): how many, and how much each. 1: they don't, or
   it isn't known. */
unsigned node_replicas(uint64_t *bytes);

/* Threads of the CPU step of one of so many workers of this process: its rank's share of the CPUs that the calling thread may use
   (cpus.h), parted among all that are known to share them, and among the workers. */
unsigned node_threads(const struct config *, unsigned workers);

/* In a forked child, and at the end. */
void node_forked(void);
void node_leave(void);
#endif
