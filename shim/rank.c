/* See rank.h. Steps of all contexts are counted as one another's: what is shown is the process's. */
#include "rank.h"
#include "../policy/node.h"
#include "../policy/ranks.h"
#include "cancel.h"
#include "process.h"
#include "ring.h"

static struct node_step present; /* the step at hand; under the enqueue lock */
static uint64_t begun;           /* state_step() of it */
static unsigned sharers;         /* among whom cores were parted last */

static const uint64_t hash_begin = 0xcbf29ce484222325u, hash_prime = 0x100000001b3u;

static void count_worker(struct ring *ring, void *workers) {
  *(unsigned *)workers += ring->worker != NULL;
}
static void part_worker(struct ring *ring, void *workers) {
  if (ring->worker)
    worker_part(ring->worker, *(unsigned *)workers);
}
static void count_threads(struct ring *ring, void *threads) {
  *(unsigned *)threads += ring->worker ? worker_threads(ring->worker) : 0;
}

/* Ranks that came or went have their part of the cores, or leave it. */
static void part_cores(void) {
  unsigned workers = 0;
  const unsigned now = ranks_sharers();
  ring_each(count_worker, &workers);
  if (now == sharers || !workers)
    return;
  sharers = now;
  ring_each(part_worker, &workers);
}

static void end_step(void) {
  const int cancel = cancel_hold(); /* it reads files, and prints */
  part_cores();
  present.threads = 0;
  ring_each(count_threads, &present.threads);
  (void)node_step(process_config(), &present);
  cancel_allow(cancel);
}

void rank_launch(const struct state_tensor *tensors, size_t count, size_t state_bytes,
                 size_t parameter_bytes) {
  const uint64_t step = state_step();
  if (step != begun) {
    if (begun) {
      end_step();
    } else {
      const int cancel = cancel_hold();
      node_join(process_config());
      cancel_allow(cancel);
    }
    begun = step;
    present.state_bytes = present.parameter_bytes = 0;
    present.parameters_key = hash_begin;
  }
  present.state_bytes += state_bytes;
  present.parameter_bytes += parameter_bytes;
  for (size_t i = 0; i < count; i++)
    present.parameters_key = (present.parameters_key ^ tensors[i].bytes) * hash_prime;
}
