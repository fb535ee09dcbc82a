/* What the engine's files share: the queue of requests, the blocks they are cut into, and the one place that judges how a
   transfer ended. For nvme/engine*.c and the engine's bench alone.

   A block is owned by the thread that took it until engine_settle says that it ended. `lock` protects the queue, every
   request's begun, ended, error and failed_at, and the counters; `done` is called without it, and late: what it does (a checksum)
   takes as long as a transfer, and the drive is to have its next one before. */
#ifndef OFFLOAD_NVME_ENGINE_INTERNAL_H
#define OFFLOAD_NVME_ENGINE_INTERNAL_H
#include "engine.h"
#include <pthread.h>
#include <sys/types.h>

/* Short transfers go on at a multiple of this from the block's beginning: what O_DIRECT asks for at most. */
enum { ENGINE_ALIGNMENT = 4096 };

struct engine_block {
  struct engine_request *request;
  size_t begin, bytes; /* within the request */
  size_t at;           /* of the block's bytes are there */
  size_t from, asked;  /* of the present transfer, within the block */
  unsigned tries;      /* EINTR and EAGAIN in a row */
};

/* Requests whose last block has ended and whose `done` was not called yet, the oldest first: the thread's own. */
struct engine_over {
  struct engine_request *first, *last;
};

struct engine_ring;

struct engine {
  struct engine_config config;
  enum engine_rung rung;
  pthread_mutex_t lock;
  pthread_cond_t work;  /* for threads that wait for blocks */
  pthread_cond_t state; /* for engine_open, which waits for the ring */
  struct engine_request *head, *tail;
  unsigned in_flight;     /* blocks */
  unsigned open_requests; /* submitted, `done` not returned */
  bool closing;
  bool dozing; /* the ring's thread waits, and found no request */
  uint64_t read_bytes, written_bytes, resubmitted, retried;
  struct engine_ring *ring;
  pthread_t threads[ENGINE_DEPTH_MOST];
  unsigned thread_count;
};

/* The next block, if one may be in flight more. With the lock held. */
bool engine_take(struct engine *, struct engine_block *);
/* Sets from and asked. False when the block has ended already: nothing is to be transferred. */
bool engine_prepare(struct engine *, struct engine_block *, struct engine_over *);
/* How the transfer ended: bytes, or a negative errno. True when the block has ended and is no longer the caller's; false:
   engine_prepare it again. With its last block a request is over. */
bool engine_settle(struct engine *, struct engine_block *, ssize_t result, struct engine_over *);
/* Calls the oldest one's `done`. False when there is none. */
bool engine_tell(struct engine *, struct engine_over *);
/* Whether the threads are to end. With the lock held. */
bool engine_finished(const struct engine *);
/* A thread with every signal blocked. 0 or an errno. */
int engine_thread(pthread_t *, void *(*main)(void *), struct engine *);

/* nvme/engine_uring.c. False with a sentence; nothing is left then. */
bool engine_ring_open(struct engine *, char *why, size_t why_bytes);
void engine_ring_wake(struct engine *);
void engine_ring_close(struct engine *);
void engine_ring_forked(struct engine *);
void engine_ring_registered(const struct engine *, bool *fixed_buffers, bool *fixed_file);

/* nvme/engine_threads.c. The same. */
bool engine_threads_open(struct engine *, char *why, size_t why_bytes);
void engine_threads_close(struct engine *);

enum engine_mix { ENGINE_READ, ENGINE_WRITE, ENGINE_HALF };
/* Keeps `depth` blocks under way, one after the other over `file_bytes`, reads and writes by chance for ENGINE_HALF, until
   `limit_ns` are over or, if it isn't 0, `most_bytes` are done; one block at least. The rate in bytes per second; 0 and an errno when
   a transfer failed. Nothing else may use the engine meanwhile; sets its depth and block. Blocks share the buffer when it is smaller
   than all of them. */
struct engine_load {
  enum engine_mix mix;
  size_t file_bytes, block_bytes;
  unsigned depth;
  void *buffer;
  size_t buffer_bytes;
  uint64_t limit_ns;
  uint64_t most_bytes;
};
double engine_load(struct engine *, const struct engine_load *, uint64_t *bytes, uint64_t *ns,
                   int *error);
#endif
