/* Storage for units of one size on drives: a file in each directory (O_TMPFILE, or unlinked at once; 0600; O_DIRECT), units
   striped over them, space taken with fallocate as it is needed, a checksum for each stripe. Nothing is left behind by a process
   that is killed. Knows nothing of CUDA and of what units hold. All functions but store_open, store_end and store_close may be
   called from any thread.

   A write never loses what it was given: when a drive fails, the unit is *kept*: its bytes are copied to host memory, from which
   later reads are served, and no more units are allocated there. */
#ifndef OFFLOAD_NVME_STORE_H
#define OFFLOAD_NVME_STORE_H
#include "engine.h"

enum { STORE_DIRECTORIES_MOST = 16 };

struct store_config {
  const char *directories; /* "/mnt/a:/mnt/b" */
  uint64_t limit_bytes;    /* of this process on all drives; 0: none */
  unsigned local_ranks;    /* that share the drives' free space fairly, each with its own files */
  size_t unit_bytes;       /* a power of two, at least the alignment */
  bool checksums;
  void *slab; /* the memory that units are read to and written from; registered */
  size_t slab_bytes;
  const char *rung; /* "" or a name of engine_rung_name, where the ladder begins and ends (tests) */
  const char *fault; /* "" or OFFLOAD_TEST_NVME (tests) */
};

struct store;

/* Checks the directories, makes and probes the files (a real write, read and compare). NULL with a sentence that names the
   directory, what is wrong and the remedy. Nothing is left then. Takes files, threads and rings, and up to a second. */
struct store *store_open(const struct store_config *, char *why, size_t why_bytes);
/* Waits for what is under way. */
void store_close(struct store *);
/* With no unit allocated and nothing under way: files and rings are closed, the slab is the caller's again. What is told of the store, and
   closing it, go on being possible. */
void store_end(struct store *);
/* In a forked child: closes the descriptors, so that a child that lives on holds no space. Async-signal-safe. */
void store_forked(struct store *);

/* Units that could still be allocated now: limit, fair share of the free space (one in 20 of it is left free), drives that
   failed. */
uint64_t store_room(struct store *);
/* False with a sentence when there is no room (ENOSPC included). */
bool store_allocate(struct store *, uint32_t *unit, char *why, size_t why_bytes);
/* Nothing may be under way on the unit. */
void store_release(struct store *, uint32_t unit);

enum store_outcome {
  STORE_OK,
  STORE_KEPT, /* a write: the drive failed, the bytes are safe in host memory. `why` tells once a drive, else "" */
  STORE_FAILED /* a read: the bytes are lost or wrong, `why` has path, offset and error. A write: the drive failed, and there was
                  no memory to keep the bytes in: they are only in the caller's buffer */
};

/* Owned by the caller, who may not touch it, or the buffer, between the call and `done`. */
struct store_request {
  uint32_t unit;
  void *buffer; /* unit_bytes, page-aligned */
  void (*done)(
      struct store_request
          *); /* on a thread of the store, or of the caller before the call returns; must not block */
  void *context;
  enum store_outcome outcome;
  char why[200];
  /* the store's own */
  struct store *store;
  struct store_part *parts;
  _Atomic unsigned open_parts;
};

/* Reads a unit that was written before, or writes one. Requests on one unit must follow each other; on several they run side by
   side. Never block but for memory. */
void store_read(struct store *, struct store_request *);
void store_write(struct store *, struct store_request *);

struct store_stats {
  unsigned directories;
  enum engine_rung rung; /* of the first directory */
  size_t block_bytes;    /* of a stripe */
  unsigned depth;
  uint64_t read_bytes, written_bytes; /* asked of the drives */
  uint64_t kept_bytes;                /* in host memory now, because a drive failed */
  uint64_t resident_bytes;            /* of allocated units */
  uint64_t checksum_ns;
  unsigned failed_directories;
};
struct store_stats store_stats(struct store *);

/* Path of directory number `i` as it was given, and the device number of its file (for endurance.h); NULL past the last. */
const char *store_directory(struct store *, unsigned i, uint64_t *device);
/* Bytes asked of it to write, and whether a write or a read there failed. */
uint64_t store_directory_written(struct store *, unsigned i);
bool store_directory_failed(struct store *, unsigned i);
#endif
