/* This rank's share of the node's host memory: what it may pin for state and for staging, so that all ranks together stay within the
   node's (registry.h), whatever started them. Called by the shim (tier.c, holdings.c, frames_life.c) from any thread; takes locks of its
   own, reads files, and may wait for a stopped rank once (registry.h), so no driver call waits for it. */
#ifndef OFFLOAD_SHARE_H
#define OFFLOAD_SHARE_H
#include "config.h"

/* Bytes that may still be pinned for state, as things are. */
uint64_t share_room(const struct config *);
/* The same with what is pinned already: this rank's whole share. */
uint64_t share_limit(const struct config *);

/* Takes so much of it, before it is pinned. False: no room. `news`: a sentence's end that says by what, the first time, else NULL.
   `beyond`: for state that has nowhere else to go; it counts all the same. */
bool share_take(const struct config *, uint64_t bytes, bool beyond, const char **news);
/* Gives it back, once it is no longer pinned. */
void share_give(uint64_t bytes);

/* For what is pinned beside state: within all of the node's room, of which state leaves a part. False with why. */
bool share_stage(const struct config *, uint64_t bytes, char *why, size_t why_bytes);
void share_unstage(uint64_t bytes);
/* How much of that could be had. */
uint64_t share_staging_room(const struct config *);

/* Threads of the CPU step that this process has, and bytes that it has on drives: for the others to see. */
void share_threads(unsigned threads);
void share_drives(uint64_t bytes);

/* What was claimed in advance and isn't used goes back to the others: at the end of a step. */
void share_settle(void);

struct share_figures {
  bool measured;
  uint64_t state_bytes, staging_bytes; /* of this rank */
  uint64_t limit_bytes;                /* for its state */
  uint64_t machine_bytes, group_bytes; /* of all ranks, for state; UINT64_MAX: no limit */
  unsigned threads;
};
void share_figures(struct share_figures *);
void share_forked(void);
#endif
