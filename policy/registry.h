/* The ranks of a node, whatever started them: a file of the user's in shared memory with a slot for each process that steps. A slot
   belongs to whoever holds the lock on its bytes, which the kernel lets go of when that process ends, however it ends; so a dead rank's
   claims are nobody's, and the next that looks takes them off. Claims of host memory, staging, threads and drives are made
   here before anything is pinned; what a rank shows of itself (`offload top`, rank 0's report) is beside them.

   The file: XDG_RUNTIME_DIR/liboffload/node, else /dev/shm/liboffload-UID/node, else TMPDIR (/tmp)/liboffload-UID/node; directories
   0700 and our own, or not used. Without any of them ranks know of each other only what their launcher said (ranks.h). */
#ifndef OFFLOAD_REGISTRY_H
#define OFFLOAD_REGISTRY_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REGISTRY_SLOTS = 256, REGISTRY_TEXT = 128 };

/* What a rank claims of its node. */
struct registry_claim {
  uint64_t host_bytes; /* pinned for state, or about to be */
  uint64_t
      pinned_bytes; /* of these, already taken from the machine: MemAvailable and the groups show them */
  uint64_t staging_bytes; /* pinned beside it: rings, drives' staging */
  uint64_t drive_bytes;
  uint32_t threads;
  uint32_t reserved;
};

/* What it shows of itself; written once a step at most. */
struct registry_state {
  uint64_t steps, moved_bytes, drive_bytes, state_bytes, parameter_bytes;
  uint64_t device_used_bytes, device_total_bytes, budget_bytes;
  uint64_t step_ns;                        /* the last whole step, launch to launch */
  uint64_t exposed_ns;                     /* of it, what offload adds, measured */
  uint64_t foretold_ns;                    /* the same, foretold */
  uint64_t link_down_bytes, link_up_bytes; /* of the last step */
  uint64_t
      parameters_key; /* equal on ranks that step the same parameters (DDP): hash of tensor sizes */
  char way[16];       /* "cpu", "stream", "direct", "cpu+stream", "none" */
  char mode[16];
  char note[REGISTRY_TEXT]; /* why nothing or not all moves; "" */
};

struct registry_entry {
  int32_t pid, device;
  uint32_t local_rank, local_ranks; /* as its launcher said; ranks 0: it said nothing */
  uint64_t started_ns, updated_ns;  /* CLOCK_BOOTTIME */
  uint64_t job; /* equal for processes of one launcher: of its own variables, else the session id */
  char gpu[64]; /* PCI bus id */
  char program[64];
  uint64_t memory_group; /* of the control group that bounds memory: device and inode; 0: none */
  struct registry_claim claim;
  struct registry_state state;
};

/* Takes a slot. Idempotent; false with a sentence when there is no registry to be had. Not before the first recognised launch; never
   in a forked child of one that has it (registry_forked). */
bool registry_join(const struct registry_entry *, char *problem, size_t problem_bytes);
/* In the child: lets go without touching the parent's slot. */
void registry_forked(void);
void registry_leave(void);

/* Sets what this rank claims, if what all live ranks claim then stays within `node_bytes` (host_bytes + staging_bytes of those whose
   memory_group is the same or whose limit is the machine's); else leaves it and says what is left. Atomic among ranks; waits for
   others only as long as they need for the same. */
bool registry_claim(const struct registry_claim *, uint64_t node_bytes, uint64_t *left_bytes);
void registry_show(const struct registry_state *);

/* Copies what live ranks have; returns how many. For anyone: `offload top` opens it without a slot. */
size_t registry_list(struct registry_entry *entries, size_t most);
#endif
