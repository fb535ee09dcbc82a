/* The ranks of a node, whatever started them: a file of the user's in shared memory with a slot for each process that steps. A slot
   belongs to whoever holds the lock on its byte, which the kernel lets go of when that process ends, however it ends; so a dead rank's
   claims are nobody's, and the next that looks doesn't count them. Claims of host memory, staging, threads and drives are made
   here before anything is pinned; what a rank shows of itself (`offload top`, rank 0's report) is beside them.

   The file: /dev/shm/liboffload-UID/node, which all of a user's processes see, else XDG_RUNTIME_DIR/liboffload/node, else
   TMPDIR (/tmp)/liboffload-UID/node; directories 0700 and our own, or not used. Without any of them ranks know of each other only
   what their launcher said (ranks.h). It is never removed: it holds no more than locks and figures of the living. */
#ifndef OFFLOAD_REGISTRY_H
#define OFFLOAD_REGISTRY_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REGISTRY_SLOTS = 256, REGISTRY_TEXT = 128, REGISTRY_PRINTS = 4 };

/* What a rank claims of its node. */
struct registry_claim {
  uint64_t host_bytes; /* pinned for state, or about to be */
  uint64_t
      pinned_bytes; /* of all it claims, already taken from the machine: MemAvailable and the groups show them */
  uint64_t staging_bytes; /* pinned beside it: rings, drives' staging */
  uint64_t drive_bytes;
  uint32_t threads;
  uint32_t reserved;
};

/* Host memory that a rank found its node, and the control group that bounds it, to have for all ranks together: room, and what live
   ranks had pinned. 0: not known. */
struct registry_room {
  uint64_t machine_bytes, group_bytes;
};

/* What it shows of itself; written once a step at most. */
struct registry_state {
  uint64_t steps, moved_bytes, drive_bytes, state_bytes, parameter_bytes;
  uint64_t device_used_bytes, device_total_bytes, budget_bytes;
  uint64_t step_ns;                        /* the last whole step, launch to launch */
  uint64_t exposed_ns;                     /* of it, what offload adds, measured */
  uint64_t foretold_ns;                    /* the same, foretold */
  uint64_t link_down_bytes, link_up_bytes; /* of the last step */
  uint64_t parameters_key; /* hash of the sizes of the tensors that it steps, in order */
  /* Of values of its state on the host at some steps (replicas.h); 0: none taken, or only zeros met. */
  uint64_t prints[REGISTRY_PRINTS];
  uint64_t reduces; /* 1: its collectives hand gradients to all and put nothing together */
  char way[16];     /* "cpu", "stream", "direct", "cpu+stream", "none" */
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
  struct registry_room room;
  struct registry_claim claim;
  struct registry_state state;
};

/* In front of /dev/shm, which is then the only place that is tried; NULL: none. Before anything else. */
void registry_root(const char *root);

/* Takes a slot. Idempotent; false with a sentence when there is no registry to be had. Not before the first recognised launch, or
   the first host memory for state; never in a forked child of one that has it (registry_forked). */
bool registry_join(const struct registry_entry *, char *problem, size_t problem_bytes);
bool registry_joined(void);
/* In the child: lets go without touching the parent's slot. */
void registry_forked(void);
void registry_leave(void);

enum registry_outcome {
  REGISTRY_CLAIMED,
  REGISTRY_FULL, /* the claim stays what it was */
  REGISTRY_NONE  /* there is no registry, or whoever works on it doesn't answer (is stopped) */
};

/* Most that the claims of all live ranks may be together, of host memory for state and of that with staging: on the machine, and in this
   rank's memory_group (where it has one). UINT64_MAX: no bound. */
struct registry_bound {
  uint64_t state_bytes, all_bytes;
};
struct registry_bounds {
  struct registry_bound machine, group;
};

/* Sets what this rank claims, if what all live ranks claim then stays within the bounds, or if it claims no more than before. Full: says
   by how much more than it has it could. Atomic among ranks; waits for others only as long as they need for the same, and for a stopped
   one not longer than 0.2 s. */
enum registry_outcome registry_claim(const struct registry_claim *, const struct registry_bounds *,
                                     uint64_t *left_bytes);
/* What of its claim is taken from the machine by now. */
void registry_pinned(uint64_t bytes);
/* The room that it measured, and in which group, for the others. */
void registry_found(const struct registry_room *, uint64_t memory_group);
/* The device that it steps on, and its PCI bus id or "". */
void registry_device(int32_t device, const char *gpu);
void registry_show(const struct registry_state *);

/* What live ranks have together, this one included: on the machine, and those of its memory_group. */
struct registry_total {
  uint64_t state_bytes, all_bytes, pinned_bytes; /* claimed; of these, taken from the machine */
  uint64_t room_bytes; /* the least that any but this one found there; 0: none told */
};
struct registry_sums {
  unsigned live;                     /* 0: there is no registry */
  unsigned job_live, job_group_live; /* of this one's job; of these, in its memory_group */
  struct registry_total machine, group;
  struct registry_claim own;
  uint32_t threads;
};
void registry_sum(struct registry_sums *);

/* Copies what live ranks have, this process's first if it has a slot; returns how many. For anyone: `offload top` opens it without
   a slot. */
size_t registry_list(struct registry_entry *entries, size_t most);
/* Changes whenever a rank joins, leaves, or is found dead by another: cheap to ask (a look at the file). */
uint32_t registry_changes(void);
#endif
