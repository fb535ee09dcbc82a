/* What this process's launcher says of the ranks on this node, in the environment (launchers.def). A pure function of the environment
   but for ranks_sharers, which knows the others too (node.h). */
#ifndef OFFLOAD_RANKS_H
#define OFFLOAD_RANKS_H
#include <stdbool.h>
#include <stdint.h>

enum { RANKS_MOST = 4096 };

struct ranks {
  const char *launcher; /* name in launchers.def; NULL: none said anything */
  unsigned local_ranks; /* 0: not said */
  int local_rank;       /* below local_ranks, where that was said; -1: not said */
  uint64_t job;         /* of its own variables; 0: it has none that tell */
};

/* Of several that speak (torchrun started by Slurm), the one with the most ranks: one started the others. What makes no sense (no
   number, a rank beyond the size) is not heard. Of a launcher that only numbers its ranks, the number is kept. */
struct ranks ranks_read(char **environment);

/* Ranks of this node that step at the same time and share its memory, cores and drives, this one among them: those that the launcher
   named, or as many as have registered where that is more or nothing was named. 1 or more; cheap (a look at the file, most times). */
unsigned ranks_sharers(void);
#endif
