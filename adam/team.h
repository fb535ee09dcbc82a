/* The team of threads behind adam_api: see adam.h. Called by api.c and by tests. */
#ifndef OFFLOAD_ADAM_TEAM_H
#define OFFLOAD_ADAM_TEAM_H
#include "adam.h"

struct adam_team *team_create(int threads, enum adam_isa isa, char *error, size_t error_bytes);
void team_destroy(struct adam_team *);
enum adam_isa team_isa(const struct adam_team *);
int team_threads(const struct adam_team *);
bool team_step(struct adam_team *, const struct adam_job *);
bool team_step_many(struct adam_team *, const struct adam_job *, size_t count);
#endif
