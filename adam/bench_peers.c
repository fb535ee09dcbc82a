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
};

/* NULL with a sentence in `why`. */
PUBLIC struct peer *peer_open(const char *companion, int isa, int threads, char *why,
                              size_t why_bytes);
/* A step over `elements`: jobs of `tensor` elements each, or with `staged`, of at most that many on the
   same gradient and update again and again, as the step's staging has them. 0: refused. */
PUBLIC int peer_step(struct peer *, int generation, int gradient_type, int state_type,
                     const void *gradient, void *exp_avg, void *exp_avg_sq, void *update,
                     uint64_t elements, uint64_t tensor, int staged);
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
  peer->api = api;
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

int peer_step(struct peer *peer, int generation, int gradient_type, int state_type,
              const void *gradient, void *exp_avg, void *exp_avg_sq, void *update,
              uint64_t elements, uint64_t tensor, int staged) {
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
  for (uint64_t first = 0; first < elements; first += tensor) {
    const uint64_t place = staged ? 0 : first;
    job.gradient = (const char *)gradient + place * gradient_bytes;
    job.update = (char *)update + place * update_bytes;
    job.exp_avg = (char *)exp_avg + first * state_bytes;
    job.exp_avg_sq = (char *)exp_avg_sq + first * state_bytes;
    job.elements = elements - first < tensor ? elements - first : tensor;
    if (!peer->api->step(peer->team, &job))
      return 0;
  }
  return 1;
}

void peer_triad(float *to, const float *left, const float *right, uint64_t elements, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (uint64_t i = 0; i < elements; i++)
    to[i] = left[i] + 3.0f * right[i];
}
