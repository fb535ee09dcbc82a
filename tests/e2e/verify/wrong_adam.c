/* A companion whose step is wrong where neither calibration nor the proof looks: one element of one list,
   of jobs longer than those of calibration, from some job on. Everything else is adam/api.c's.

   WRONG_ADAM="LIST ELEMENT FROM BIT": LIST m, v, x (the maximum) or u (the update); ELEMENT of the job, 4100
   or above, in jobs that have it; FROM the first such job to be wrong, counted from 0; BIT of the stored
   number that is turned over. Unset: right. */
#define offload_adam right_adam
#include "adam/api.c"
#undef offload_adam
#include <stdio.h>
#include <stdlib.h>

static bool (*right_step)(struct adam_team *, const struct adam_job *);

static void turn_over(const struct adam_job *job, char list, uint64_t element, unsigned bit) {
  unsigned char *at = list == 'm'   ? job->exp_avg
                      : list == 'v' ? job->exp_avg_sq
                      : list == 'x' ? job->max_exp_avg_sq
                                    : job->update;
  const enum adam_type type = list == 'u' ? adam_type_opmath(job->state_type) : job->state_type;
  at += element * adam_type_bytes(type) + bit / 8;
  *at = (unsigned char)(*at ^ 1u << bit % 8);
}

static bool wrong_step(struct adam_team *team, const struct adam_job *job) {
  static unsigned jobs;
  const char *how = getenv("WRONG_ADAM");
  char list;
  unsigned long long element;
  unsigned from, bit;
  const bool done = right_step(team, job);
  if (how && sscanf(how, "%c %llu %u %u", &list, &element, &from, &bit) == 4 && element >= 4100 &&
      job->elements > element && jobs++ >= from)
    turn_over(job, list, element, bit);
  return done;
}

__attribute__((visibility("default"))) const struct adam_api *offload_adam(void) {
  static struct adam_api wrong;
  wrong = *right_adam();
  right_step = wrong.step;
  wrong.step = wrong_step;
  return &wrong;
}
