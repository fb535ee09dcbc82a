/* The ladder's last rung: as many threads as blocks may be in flight, each of which calls pread and pwrite. Called by
   engine.c alone. */
#define _GNU_SOURCE
#include "engine_internal.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static ssize_t transfer(const struct engine *engine, const struct engine_block *block) {
  const struct engine_request *request = block->request;
  const size_t within = block->begin + block->from;
  char *buffer = (char *)request->buffer + within;
  const off_t offset = (off_t)(request->offset + within);
  const ssize_t result = request->write ? pwrite(engine->config.file, buffer, block->asked, offset)
                                        : pread(engine->config.file, buffer, block->asked, offset);
  return result < 0 ? -errno : result;
}

static void *serve(void *argument) {
  struct engine *engine = argument;
  pthread_setname_np(pthread_self(), "offload-nvme");
  pthread_mutex_lock(&engine->lock);
  while (!engine_finished(engine)) {
    struct engine_block block;
    if (!engine_take(engine, &block)) {
      pthread_cond_wait(&engine->work, &engine->lock);
      continue;
    }
    pthread_mutex_unlock(&engine->lock);
    struct engine_over over = {NULL, NULL};
    while (engine_prepare(engine, &block, &over) &&
           !engine_settle(engine, &block, transfer(engine, &block), &over)) {
    }
    (void)engine_tell(engine, &over); /* one block, one request at most */
    pthread_mutex_lock(&engine->lock);
  }
  pthread_mutex_unlock(&engine->lock);
  return NULL;
}

bool engine_threads_open(struct engine *engine, char *why, size_t why_bytes) {
  int error = 0;
  while (!error && engine->thread_count < engine->config.depth) {
    error = engine_thread(&engine->threads[engine->thread_count], serve, engine);
    if (!error)
      engine->thread_count++;
  }
  /* Fewer threads are slower, not wrong. */
  if (!engine->thread_count)
    snprintf(why, why_bytes, "threads: none can be started: %s", strerror(error));
  return engine->thread_count > 0;
}

void engine_threads_close(struct engine *engine) {
  pthread_mutex_lock(&engine->lock);
  engine->closing = true;
  pthread_cond_broadcast(&engine->work);
  pthread_mutex_unlock(&engine->lock);
  for (unsigned i = 0; i < engine->thread_count; i++)
    pthread_join(engine->threads[i], NULL);
}
