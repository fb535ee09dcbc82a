/* See rank.h. Steps of all contexts are counted as one another's: what is shown is the process's. */
#include "rank.h"
#include "../policy/node.h"
#include "../policy/ranks.h"
#include "../policy/replicas.h"
#include "cancel.h"
#include "facts.h"
#include "process.h"
#include "range.h"
#include "ring.h"
#include <string.h>
#include <unistd.h>

static struct node_step present; /* the step at hand; under the enqueue lock */
static uint64_t begun;           /* state_step() of it */
static uint64_t steps;           /* how many, it included */
static struct {
  bool taken; /* at this step */
  bool any;   /* something but zeros */
  unsigned index;
  uint64_t hash;
  size_t read_bytes,
      all_bytes;         /* of the first moments: those of which something was read, and all */
} print;                 /* of its state as the last step left it */
static unsigned sharers; /* among whom cores were parted last */

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

/* What a tensor's first moment has in its middle, where the CPU can read it. A copy of it may be on its way: what is read then is no
   state of any step. Zeros, as before the first step and where no gradient came, tell nothing. */
static void add_to_print(const struct state_tensor *tensor) {
  enum { WORDS = 8 };
  uint64_t words[WORDS], any = 0;
  const uintptr_t middle = tensor->states[0] + tensor->bytes / 2 / sizeof words * sizeof words;
  print.all_bytes += tensor->bytes;
  if (tensor->bytes < 2 * sizeof words || !range_on_host(middle, sizeof words))
    return;
  memcpy(words, (const void *)middle, sizeof words);
  print.read_bytes += tensor->bytes;
  for (unsigned i = 0; i < WORDS; i++)
    any |= words[i];
  for (unsigned i = 0; i < WORDS && any; i++)
    print.hash = (print.hash ^ words[i]) * hash_prime;
  print.any |= any != 0;
}

static void begin_print(void) {
  unsigned index = 0;
  print.taken = replicas_print_at(++steps, &index) && ranks_sharers() > 1;
  print.any = false;
  print.read_bytes = print.all_bytes = 0;
  print.index = index;
  print.hash = hash_begin;
  if (print.taken && !index)
    memset(present.prints, 0, sizeof present.prints);
}

/* Tensors that shards do have in common, as norms and biases are, are small: their values alone are made this process's own. */
static void end_print(void) {
  enum { LEAST_SHARE = 64 };
  if (print.read_bytes < print.all_bytes / LEAST_SHARE)
    print.hash = (print.hash ^ (uint64_t)getpid()) * hash_prime;
  if (print.taken)
    present.prints[print.index] = print.any ? print.hash : 0;
  present.reduces = facts_reduces();
}

static void end_step(void) {
  const int cancel = cancel_hold(); /* it reads files, and prints */
  part_cores();
  present.threads = 0;
  ring_each(count_threads, &present.threads);
  end_print();
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
    begin_print();
  }
  present.state_bytes += state_bytes;
  present.parameter_bytes += parameter_bytes;
  for (size_t i = 0; i < count; i++)
    present.parameters_key = (present.parameters_key ^ tensors[i].bytes) * hash_prime;
  for (size_t i = 0; i < count && print.taken; i++)
    add_to_print(&tensors[i]);
}
