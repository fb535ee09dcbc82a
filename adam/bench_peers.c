/* What bench_peers.py calls of ours, by plain types: a team of the companion, whole steps over
   arrays, and the triad that gives the machine's bandwidth. A shared object for Python's ctypes;
   nothing else uses it. */
#define _GNU_SOURCE
#include "adam.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define PUBLIC __attribute__((visibility("default")))

struct peer {
  const struct adam_api *api;
  struct adam_team *team;
  struct adam_job
      *jobs; /* room for a step's list, kept: new memory at every step would be measured, too */
  size_t room;
};

/* NULL with a sentence in `why`. */
PUBLIC struct peer *peer_open(const char *companion, int isa, int threads, char *why,
                              size_t why_bytes);
/* A step over `elements`: in tensors of `tensor` elements each that begin `stride` elements apart, all
   handed over in one call; or with `slots`, jobs of at most `tensor` elements one by one, whose
   gradient and update lie in so many slots in turn, as the step's staging has them. 0: refused. */
PUBLIC int peer_step(struct peer *, int generation, int gradient_type, int state_type,
                     const void *gradient, void *exp_avg, void *exp_avg_sq, void *update,
                     uint64_t elements, uint64_t tensor, uint64_t stride, unsigned slots);
PUBLIC const char *peer_isa(struct peer *);
PUBLIC void peer_triad(float *to, const float *left, const float *right, uint64_t elements,
                       int threads);

struct peer *peer_open(const char *companion, int isa, int threads, char *why, size_t why_bytes) {
  void *library = dlopen(companion, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  offload_adam_function *entry = NULL;
  if (library)
    *(void **)&entry = dlsym(library, "offload_adam");
  const struct adam_api *api = entry ? entry() : NULL;
  struct peer *peer = malloc(sizeof *peer);
  if (!api || api->abi != OFFLOAD_ADAM_ABI || !peer) {
    const char *error = dlerror();
    snprintf(why, why_bytes, "%s", error ? error : "another version of the companion");
    free(peer);
    return NULL;
  }
  *peer = (struct peer){.api = api};
  peer->team = api->team_create(threads, (enum adam_isa)isa, why, why_bytes);
  if (!peer->team) {
    free(peer);
    return NULL;
  }
  return peer;
}

const char *peer_isa(struct peer *peer) {
  return peer->api->isa_name(peer->api->team_isa(peer->team));
}

static bool all_at_once(struct peer *peer, const struct adam_job *jobs, size_t count) {
  return peer->api->step_many(peer->team, jobs, count);
}

static bool one_by_one(struct peer *peer, const struct adam_job *jobs, size_t count) {
  bool done = true;
  for (size_t i = 0; i < count && done; i++)
    done = peer->api->step(peer->team, &jobs[i]);
  return done;
}

int peer_step(struct peer *peer, int generation, int gradient_type, int state_type,
              const void *gradient, void *exp_avg, void *exp_avg_sq, void *update,
              uint64_t elements, uint64_t tensor, uint64_t stride, unsigned slots) {
  const struct adam_hyper hyper = {1e-3, 0.9, 0.999, 0.01, 1e-8, false};
  struct adam_job job = {.generation = (enum adam_generation)generation,
                         .gradient_type = (enum adam_type)gradient_type,
                         .state_type = (enum adam_type)state_type,
                         .beta1 = hyper.beta1,
                         .beta2 = hyper.beta2,
                         .eps = hyper.eps};
  peer->api->scalars(job.generation, &hyper, 10, 0, 0, &job.scalars);
  const size_t gradient_bytes = adam_type_bytes(job.gradient_type);
  const size_t state_bytes = adam_type_bytes(job.state_type);
  const size_t update_bytes = adam_type_bytes(adam_type_opmath(job.state_type));
  const size_t count = (size_t)((elements + tensor - 1) / tensor);
  if (count > peer->room) {
    free(peer->jobs);
    peer->jobs = malloc(count * sizeof *peer->jobs);
    peer->room = peer->jobs ? count : 0;
  }
  if (count > peer->room)
    return 0;
  struct adam_job *jobs = peer->jobs;
  for (size_t i = 0; i < count; i++) {
    const uint64_t first = i * stride, place = slots ? i % slots * tensor : first;
    job.gradient = (const char *)gradient + place * gradient_bytes;
    job.update = (char *)update + place * update_bytes;
    job.exp_avg = (char *)exp_avg + first * state_bytes;
    job.exp_avg_sq = (char *)exp_avg_sq + first * state_bytes;
    job.elements = elements - i * tensor < tensor ? elements - i * tensor : tensor;
    jobs[i] = job;
  }
  return slots ? one_by_one(peer, jobs, count) : all_at_once(peer, jobs, count);
}

void peer_triad(float *to, const float *left, const float *right, uint64_t elements, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (uint64_t i = 0; i < elements; i++)
    to[i] = left[i] + 3.0f * right[i];
}
