/* Reads and writes of one file on one drive, asynchronous: a thread and, where the kernel allows it, an
   io_uring of its own. A ladder is climbed down until a rung holds: a ring with deferred task work, a ring
   with cooperative task work, a plain ring, threads that call pread and pwrite. Knows nothing of CUDA, of
   state and of what the bytes mean.

   A request is cut into blocks, of which at most `depth` are in flight. Every completion is looked at:
   short transfers are submitted again from where they ended, EINTR and EAGAIN are tried again, everything
   else ends the request with its errno. */
#ifndef OFFLOAD_NVME_ENGINE_H
#define OFFLOAD_NVME_ENGINE_H
#include "fault.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum engine_rung { ENGINE_AUTO, ENGINE_DEFER, ENGINE_COOP, ENGINE_PLAIN, ENGINE_THREADS };
const char *engine_rung_name(enum engine_rung);

enum { ENGINE_DEPTH_MOST = 64 };

struct engine_config {
  int file; /* open for reading and writing, O_DIRECT where that is possible; stays the caller's */
  enum engine_rung rung; /* where the ladder begins; ENGINE_AUTO: at its top */
  bool only_this_rung;   /* fail rather than climb down (tests) */
  unsigned depth;        /* blocks in flight, 1 to ENGINE_DEPTH_MOST */
  size_t block_bytes;    /* most of one transfer; a power of two */
  void *slab;            /* page-aligned memory to be registered with the ring; NULL: none */
  size_t slab_bytes;
  struct faults *faults; /* NULL: none. Must outlive the engine */
};

/* Owned by the caller, who may not touch it between engine_submit and `done`. */
struct engine_request {
  bool write;
  uint64_t
      offset; /* of the file, bytes; this, `buffer` and `bytes` are multiples of the alignment that O_DIRECT asks for */
  void *buffer;
  size_t bytes;
  void (*done)(struct engine_request *); /* on a thread of the engine, which it must not block */
  void *context;                         /* the caller's */

  int error;          /* set before `done`: 0, or an errno; ENODATA: the file ends before */
  uint64_t failed_at; /* offset of the file of the first byte that is not there */

  /* the engine's own */
  struct engine_request *next;
  size_t begun, ended; /* bytes */
};

struct engine;

/* NULL with a sentence. `stats` may be asked of any thread. */
struct engine *engine_open(const struct engine_config *, char *why, size_t why_bytes);
void engine_submit(struct engine *, struct engine_request *);
/* Waits for all that was submitted, ends the threads, frees. */
void engine_close(struct engine *);
/* In a forked child, which has none of the engine's threads: gives the ring's descriptor back, calls nothing else. */
void engine_forked(struct engine *);

struct engine_stats {
  enum engine_rung rung;
  bool fixed_buffers, fixed_file;
  unsigned depth;
  size_t block_bytes;
  uint64_t read_bytes, written_bytes, resubmitted, retried;
};
struct engine_stats engine_stats(struct engine *);

/* Memory for a slab, not inherited by forks, of huge pages where the kernel gives them: from and to scattered small pages drives are
   half as fast (slab.c). Written to first by the caller, who pins it after that or leaves it to the ring. NULL without memory. */
void *engine_slab_map(size_t bytes);
void engine_slab_unmap(void *slab, size_t bytes); /* of the same bytes; NULL is nothing */

/* What serves this file best: writes and reads half and half over `bytes` of it, for at most `limit_ns`; the least block of
   1 to 8 MiB and the least depth of 4 to 32 that come within 5 % of the fastest. The file's contents and the
   slab's are lost. Counts faults. False with a sentence. */
bool engine_probe(const struct engine_config *, size_t bytes, uint64_t limit_ns,
                  size_t *block_bytes, unsigned *depth, char *why, size_t why_bytes);
#endif
