/* What the rooms of a launch share: ptx_run.c (launch, blocks, barriers), ptx_team.c (states of
   teams), ptx_schedule.c (which lanes run next). */
#ifndef GPUSIM_PTX_RUN_H
#define GPUSIM_PTX_RUN_H
#include "ptx.h"

#define PTX_BARRIERS 16u

struct ptx_worker {
  struct ptx_block block;
  struct ptx_team **teams, **spare; /* of the block at hand; unused states, `spare_count` of them */
  uint32_t team_count, spare_count, state_count;
  uint32_t arrived[PTX_BARRIERS]; /* threads that passed bar.arrive */
};

void ptx_thread_index(const struct ptx_block *, uint32_t thread, uint32_t index[3]);
/* Team `index` of the block at hand, its lanes ready at the entry's first instruction; false
   when memory is short. */
bool ptx_team_start(struct ptx_worker *, uint32_t index);
/* Runs a team until all its lanes wait, have exited, or were set aside for jumping back too
   often. */
void ptx_team_run(struct ptx_worker *, struct ptx_team *);
#endif
