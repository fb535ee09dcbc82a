/* What an engine and a drive do together: a steady load, and the probe that chooses block and depth by it. For the store, which
   probes each of its files, and for the engine's bench. */
#include "clock.h"
#include "engine_internal.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The requests of a load, each of one block, are submitted again by their own end. `lock` protects all but `load`. */
struct round {
  const struct engine_load *load;
  struct engine *engine;
  pthread_mutex_t lock;
  pthread_cond_t over;
  uint64_t next, blocks, begun_bytes, done_bytes, until_ns;
  unsigned open;
  int error;
};

/* Which way block number `n` goes in a mixture: by chance, as fio's, since strict turns would read only what is never written
   when the file has an even number of blocks. */
static bool writes(uint64_t n) {
  n = (n + 1) * 0x9e3779b97f4a7c15u;
  n = (n ^ n >> 32) * 0xd6e8feb86659fd93u;
  return n >> 63;
}

/* Whether the request is to go on; it is the round's next block then. The first always does, or a thread that has to wait for a CPU
   would find no rate. With the lock held. */
static bool aim(struct round *round, struct engine_request *request) {
  const struct engine_load *load = round->load;
  if (round->error || (round->next && clock_now_ns() >= round->until_ns) ||
      (load->most_bytes && round->begun_bytes >= load->most_bytes))
    return false;
  request->offset = round->next % round->blocks * load->block_bytes;
  request->write = load->mix == ENGINE_WRITE || (load->mix == ENGINE_HALF && writes(round->next));
  round->next++;
  round->begun_bytes += load->block_bytes;
  return true;
}

static void again(struct engine_request *request) {
  struct round *round = request->context;
  pthread_mutex_lock(&round->lock);
  if (request->error)
    round->error = request->error;
  else
    round->done_bytes += request->bytes;
  const bool more = aim(round, request);
  if (!more && --round->open == 0)
    pthread_cond_signal(&round->over);
  pthread_mutex_unlock(&round->lock);
  if (more)
    engine_submit(round->engine, request);
}

static void run(struct round *round, struct engine_request *requests) {
  const struct engine_load *load = round->load;
  const size_t places = load->buffer_bytes / load->block_bytes;
  bool more = true;
  for (unsigned i = 0; i < load->depth && more; i++) {
    requests[i] = (struct engine_request){
        .buffer = (char *)load->buffer + i % places * load->block_bytes,
        .bytes = load->block_bytes,
        .done = again,
        .context = round,
    };
    pthread_mutex_lock(&round->lock);
    more = aim(round, &requests[i]);
    round->open += more;
    pthread_mutex_unlock(&round->lock);
    if (more)
      engine_submit(round->engine, &requests[i]);
  }
  pthread_mutex_lock(&round->lock);
  while (round->open)
    pthread_cond_wait(&round->over, &round->lock);
  pthread_mutex_unlock(&round->lock);
}

double engine_load(struct engine *engine, const struct engine_load *load, uint64_t *bytes,
                   uint64_t *ns, int *error) {
  struct engine_request requests[ENGINE_DEPTH_MOST / 2];
  *bytes = *ns = 0;
  *error = EINVAL;
  if (load->depth < 1 || load->depth > sizeof requests / sizeof *requests ||
      load->buffer_bytes < load->block_bytes || load->file_bytes < load->block_bytes)
    return 0;
  pthread_mutex_lock(&engine->lock);
  engine->config.depth = load->depth;
  engine->config.block_bytes = load->block_bytes;
  pthread_mutex_unlock(&engine->lock);
  const uint64_t begun = clock_now_ns();
  struct round round = {
      .load = load,
      .engine = engine,
      .blocks = load->file_bytes / load->block_bytes,
      .until_ns = begun + load->limit_ns,
  };
  pthread_mutex_init(&round.lock, NULL);
  pthread_cond_init(&round.over, NULL);
  run(&round, requests);
  *ns = clock_now_ns() - begun;
  *bytes = round.done_bytes;
  *error = round.error;
  pthread_cond_destroy(&round.over);
  pthread_mutex_destroy(&round.lock);
  return *error || !*ns ? 0 : (double)*bytes * 1e9 / (double)*ns;
}

enum { BLOCKS = 4, DEPTHS = 4, LEAST_BLOCK = 1 << 20, LEAST_DEPTH = 4, PROBE_BUFFER = 32 << 20 };

/* Writes all of the file's part first, since what was never written is read without the drive. Then every choice that fits
   gets its share of the time, the one with least under way first. */
static int measure(struct engine *engine, struct engine_load load, uint64_t limit_ns,
                   double rates[BLOCKS][DEPTHS]) {
  uint64_t bytes, ns;
  int error;
  const uint64_t until = clock_now_ns() + limit_ns;
  load.mix = ENGINE_WRITE;
  load.block_bytes = LEAST_BLOCK;
  load.depth = 8;
  load.limit_ns = limit_ns / 3;
  load.most_bytes = load.file_bytes / LEAST_BLOCK * LEAST_BLOCK;
  double fastest = engine_load(engine, &load, &bytes, &ns, &error);
  if (error)
    return error;
  load.mix = ENGINE_HALF;
  load.most_bytes = 0;
  load.file_bytes = bytes;
  for (unsigned sum = 0; sum <= BLOCKS + DEPTHS - 2; sum++)
    for (unsigned block = 0; block < BLOCKS && block <= sum; block++) {
      const unsigned depth = sum - block;
      const uint64_t now = clock_now_ns();
      if (depth >= DEPTHS)
        continue;
      load.block_bytes = (size_t)LEAST_BLOCK << block;
      load.depth = (unsigned)LEAST_DEPTH << depth;
      load.limit_ns = limit_ns / (BLOCKS * DEPTHS + 8);
      /* What is under way must end in its share of the time, or it isn't a choice on so slow a drive. */
      const double under_way = (double)load.block_bytes * load.depth;
      if (sum && (under_way > (double)load.file_bytes || load.block_bytes > load.buffer_bytes ||
                  now + load.limit_ns > until || under_way * 1e9 > fastest * (double)load.limit_ns))
        continue;
      if (load.block_bytes > load.file_bytes)
        return ENOSPC;
      const double rate = engine_load(engine, &load, &bytes, &ns, &error);
      if (error)
        return error;
      rates[block][depth] = rate;
      if (rate > fastest)
        fastest = rate;
    }
  return 0;
}

/* The least under way that comes within 5 % of the fastest. */
static void choose(double rates[BLOCKS][DEPTHS], size_t *block_bytes, unsigned *depth) {
  double fastest = 0;
  for (unsigned b = 0; b < BLOCKS; b++)
    for (unsigned d = 0; d < DEPTHS; d++)
      if (rates[b][d] > fastest)
        fastest = rates[b][d];
  for (unsigned sum = 0; sum <= BLOCKS + DEPTHS - 2; sum++)
    for (unsigned b = 0; b < BLOCKS && b <= sum; b++) {
      const unsigned d = sum - b;
      if (d >= DEPTHS || rates[b][d] < 0.95 * fastest || rates[b][d] <= 0)
        continue;
      *block_bytes = (size_t)LEAST_BLOCK << b;
      *depth = (unsigned)LEAST_DEPTH << d;
      return;
    }
}

bool engine_probe(const struct engine_config *config, size_t bytes, uint64_t limit_ns,
                  size_t *block_bytes, unsigned *depth, char *why, size_t why_bytes) {
  double rates[BLOCKS][DEPTHS] = {{0}};
  struct engine_config wide = *config;
  wide.depth = LEAST_DEPTH << (DEPTHS - 1);
  wide.block_bytes = (size_t)LEAST_BLOCK << (BLOCKS - 1);
  if (bytes < (size_t)LEAST_BLOCK) {
    snprintf(why, why_bytes, "a probe of %zu bytes is less than a block of %d", bytes, LEAST_BLOCK);
    return false;
  }
  void *own = NULL;
  if (!config->slab || config->slab_bytes < (size_t)LEAST_BLOCK) {
    own = engine_slab_map(PROBE_BUFFER);
    if (!own) {
      snprintf(why, why_bytes, "no memory for a probe: %s", strerror(errno));
      return false;
    }
    wide.slab = own;
    wide.slab_bytes = PROBE_BUFFER;
  }
  if (wide.slab_bytes > (size_t)PROBE_BUFFER)
    wide.slab_bytes = PROBE_BUFFER; /* registering all of it would take longer than the probe */
  struct engine *engine = engine_open(&wide, why, why_bytes);
  int error = 0;
  if (engine) {
    const struct engine_load load = {
        .file_bytes = bytes,
        .buffer = wide.slab,
        .buffer_bytes = wide.slab_bytes,
    };
    error = measure(engine, load, limit_ns, rates);
    engine_close(engine);
    if (error)
      snprintf(why, why_bytes, "the probe's transfers failed: %s", strerror(error));
  }
  engine_slab_unmap(own, PROBE_BUFFER);
  if (!engine || error)
    return false;
  choose(rates, block_bytes, depth);
  return true;
}
