/* The engine's queue, its blocks, and how a transfer's end is judged: the same for every rung of the ladder. The rungs
   (engine_uring.c, engine_threads.c) only carry blocks to the kernel and back. The rules are in engine_internal.h. */
#include "engine_internal.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A kernel that only ever says "again" is given up on after some seconds. */
enum { TRIES_AT_ONCE = 16, TRIES_MOST = 20000, RETRY_NS = 100000 };

const char *engine_rung_name(enum engine_rung rung) {
  static const char *const names[] = {"auto", "defer", "coop", "plain", "threads"};
  return (size_t)rung < sizeof names / sizeof *names ? names[rung] : "unknown";
}

static void sleep_ns(long ns) {
  const struct timespec pause = {ns / 1000000000, ns % 1000000000};
  nanosleep(&pause, NULL);
}

bool engine_take(struct engine *engine, struct engine_block *block) {
  struct engine_request *request = engine->head;
  if (!request || engine->in_flight >= engine->config.depth)
    return false;
  const size_t left = request->bytes - request->begun;
  *block = (struct engine_block){
      .request = request,
      .begin = request->begun,
      .bytes = left < engine->config.block_bytes ? left : engine->config.block_bytes,
  };
  request->begun += block->bytes;
  engine->in_flight++;
  if (request->begun == request->bytes)
    engine->head = request->next;
  return true;
}

/* What the fault layer does to this transfer: 0, or a negative errno. May make it shorter. */
static ssize_t strike(struct engine *engine, struct engine_block *block) {
  struct faults *faults = engine->config.faults;
  if (!faults)
    return 0;
  const bool write = block->request->write;
  if (faults->slow_us)
    sleep_ns((long)faults->slow_us * 1000);
  if (faults_strike(faults, FAULT_EINTR))
    return -EINTR;
  if (faults_strike(faults, FAULT_EAGAIN))
    return -EAGAIN;
  if (faults_strike(faults, write ? FAULT_WRITE_EIO : FAULT_READ_EIO))
    return -EIO;
  if (write && faults_strike(faults, FAULT_WRITE_ENOSPC))
    return -ENOSPC;
  if (faults_strike(faults, write ? FAULT_WRITE_SHORT : FAULT_READ_SHORT) &&
      block->asked > ENGINE_ALIGNMENT)
    block->asked = block->asked / 2 / ENGINE_ALIGNMENT * ENGINE_ALIGNMENT;
  return 0;
}

bool engine_prepare(struct engine *engine, struct engine_block *block, struct engine_over *over) {
  for (;;) {
    block->from = block->at / ENGINE_ALIGNMENT * ENGINE_ALIGNMENT;
    block->asked = block->bytes - block->from;
    const ssize_t result = block->bytes ? strike(engine, block) : 0;
    if (block->bytes && !result)
      return true;
    if (engine_settle(engine, block, result, over))
      return false;
  }
}

/* Of one block: its bytes are there up to `at`, and no more when there is an error. */
static void end_block(struct engine *engine, const struct engine_block *block, int error,
                      struct engine_over *over) {
  struct engine_request *request = block->request;
  pthread_mutex_lock(&engine->lock);
  if (error) {
    const uint64_t failed_at = request->offset + block->begin + block->at;
    if (!request->error || failed_at < request->failed_at) {
      request->error = error;
      request->failed_at = failed_at;
    }
    /* The rest is not begun: a request that has a rest is the queue's first. */
    if (request->begun < request->bytes) {
      request->ended += request->bytes - request->begun;
      request->begun = request->bytes;
      engine->head = request->next;
    }
  }
  request->ended += block->bytes;
  *(request->write ? &engine->written_bytes : &engine->read_bytes) += block->at;
  const bool last = request->ended == request->bytes;
  engine->in_flight--;
  if (engine->rung == ENGINE_THREADS)
    pthread_cond_signal(&engine->work);
  pthread_mutex_unlock(&engine->lock);
  if (!last)
    return;
  request->next = NULL;
  if (over->first)
    over->last->next = request;
  else
    over->first = request;
  over->last = request;
}

bool engine_tell(struct engine *engine, struct engine_over *over) {
  struct engine_request *request = over->first;
  if (!request)
    return false;
  over->first = request->next;
  request->done(request);
  pthread_mutex_lock(&engine->lock);
  engine->open_requests--;
  if (engine_finished(engine))
    pthread_cond_broadcast(&engine->work);
  pthread_mutex_unlock(&engine->lock);
  return true;
}

static void count(struct engine *engine, uint64_t *counter) {
  pthread_mutex_lock(&engine->lock);
  ++*counter;
  pthread_mutex_unlock(&engine->lock);
}

bool engine_settle(struct engine *engine, struct engine_block *block, ssize_t result,
                   struct engine_over *over) {
  struct engine_request *request = block->request;
  int error = 0;
  if (result == -EINTR || result == -EAGAIN) {
    count(engine, &engine->retried);
    if (++block->tries < TRIES_MOST) {
      if (block->tries > TRIES_AT_ONCE)
        sleep_ns(RETRY_NS);
      return false;
    }
  }
  if (result < 0) {
    error = (int)-result;
  } else if (block->bytes) {
    block->tries = 0;
    const size_t reached = block->from + (size_t)result;
    if (!request->write && result > 0 && faults_strike(engine->config.faults, FAULT_READ_FLIP))
      ((unsigned char *)request->buffer)[block->begin + block->from] ^= 1;
    if (reached < block->bytes && reached > block->at) {
      block->at = reached;
      count(engine, &engine->resubmitted);
      return false;
    }
    if (reached >= block->bytes)
      block->at = block->bytes;
    else /* no byte more than before */
      error = request->write ? EIO : ENODATA;
  }
  end_block(engine, block, error, over);
  return true;
}

bool engine_finished(const struct engine *engine) {
  return engine->closing && !engine->open_requests;
}

int engine_thread(pthread_t *thread, void *(*main)(void *), struct engine *engine) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(thread, NULL, main, engine);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return error;
}

static bool open_rung(struct engine *engine, enum engine_rung rung, char *why, size_t why_bytes) {
  engine->rung = rung;
  return rung == ENGINE_THREADS ? engine_threads_open(engine, why, why_bytes)
                                : engine_ring_open(engine, why, why_bytes);
}

static bool sensible(const struct engine_config *config, char *why, size_t why_bytes) {
  if (config->depth < 1 || config->depth > ENGINE_DEPTH_MOST) {
    snprintf(why, why_bytes, "a depth of %u blocks is not between 1 and %d", config->depth,
             ENGINE_DEPTH_MOST);
    return false;
  }
  if (config->block_bytes < ENGINE_ALIGNMENT || config->block_bytes > (size_t)1 << 30 ||
      (config->block_bytes & (config->block_bytes - 1))) {
    snprintf(why, why_bytes, "a block of %zu bytes is not a power of two between %d and 2^30",
             config->block_bytes, ENGINE_ALIGNMENT);
    return false;
  }
  return true;
}

struct engine *engine_open(const struct engine_config *config, char *why, size_t why_bytes) {
  if (!sensible(config, why, why_bytes))
    return NULL;
  struct engine *engine = calloc(1, sizeof *engine);
  if (!engine) {
    snprintf(why, why_bytes, "no memory for an engine");
    return NULL;
  }
  engine->config = *config;
  pthread_mutex_init(&engine->lock, NULL);
  pthread_cond_init(&engine->work, NULL);
  pthread_cond_init(&engine->state, NULL);
  enum engine_rung rung = config->rung == ENGINE_AUTO ? ENGINE_DEFER : config->rung;
  bool open = open_rung(engine, rung, why, why_bytes);
  while (!open && !config->only_this_rung && rung < ENGINE_THREADS)
    open = open_rung(engine, ++rung, why, why_bytes);
  if (open)
    return engine;
  pthread_cond_destroy(&engine->state);
  pthread_cond_destroy(&engine->work);
  pthread_mutex_destroy(&engine->lock);
  free(engine);
  return NULL;
}

void engine_submit(struct engine *engine, struct engine_request *request) {
  request->next = NULL;
  request->begun = request->ended = 0;
  request->error = 0;
  request->failed_at = 0;
  pthread_mutex_lock(&engine->lock);
  if (engine->head)
    engine->tail->next = request;
  else
    engine->head = request;
  engine->tail = request;
  engine->open_requests++;
  if (engine->rung == ENGINE_THREADS) {
    pthread_cond_broadcast(&engine->work);
  } else if (engine->dozing && engine->in_flight < engine->config.depth) {
    engine->dozing = false;
    engine_ring_wake(engine); /* under the lock: after it the engine may be done and gone */
  }
  pthread_mutex_unlock(&engine->lock);
}

void engine_close(struct engine *engine) {
  if (!engine)
    return;
  if (engine->rung == ENGINE_THREADS)
    engine_threads_close(engine);
  else
    engine_ring_close(engine);
  pthread_cond_destroy(&engine->state);
  pthread_cond_destroy(&engine->work);
  pthread_mutex_destroy(&engine->lock);
  free(engine);
}

void engine_forked(struct engine *engine) {
  if (engine && engine->rung != ENGINE_THREADS)
    engine_ring_forked(engine);
}

struct engine_stats engine_stats(struct engine *engine) {
  struct engine_stats stats = {.rung = engine->rung};
  if (engine->rung != ENGINE_THREADS)
    engine_ring_registered(engine, &stats.fixed_buffers, &stats.fixed_file);
  pthread_mutex_lock(&engine->lock);
  stats.depth = engine->config.depth;
  stats.block_bytes = engine->config.block_bytes;
  stats.read_bytes = engine->read_bytes;
  stats.written_bytes = engine->written_bytes;
  stats.resubmitted = engine->resubmitted;
  stats.retried = engine->retried;
  pthread_mutex_unlock(&engine->lock);
  return stats;
}
