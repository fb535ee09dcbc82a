/* The report's "node" object: the ranks that share this node's memory, cores and drives, as this one saw them at the end of its last
   step, and what it shares with them. Told by node.c; a copy is kept here under a lock. */
#ifndef OFFLOAD_REPORT_NODE_H
#define OFFLOAD_REPORT_NODE_H
#include "config.h"
#include "json.h"
#include "registry.h"

enum { REPORT_NODE_RANKS = 64 };

struct report_node {
  bool registered;
  char problem[384]; /* why not; "" */
  unsigned sharers;  /* this rank among them */
  unsigned missing;  /* that its launcher named and that aren't seen */
  uint64_t machine_bytes,
      group_bytes; /* host memory for the state of all of them; UINT64_MAX: no limit */
  uint64_t claimed_bytes, staging_bytes; /* by all of them; 0 where they don't know of each other */
  uint64_t
      replicated_bytes; /* of state that each of `replicas` ranks keeps; 0: they don't keep the same */
  unsigned threads, replicas;
  unsigned count;
  bool live[REPORT_NODE_RANKS];                   /* at the last look */
  struct registry_entry ranks[REPORT_NODE_RANKS]; /* this one first */
};
void report_node(const struct report_node *);
/* For report.c. */
void report_node_json(struct json *, const struct config *);
/* In a forked child the lock may have been taken by a thread that it doesn't have. */
void report_node_forget(void);

/* Whether a rank that steps moves nothing at all. */
bool report_node_declines(const struct registry_entry *);
#endif
