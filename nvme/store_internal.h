/* What the store's files share: directories, slots and units. For nvme/store*.c alone.

   A file is divided into *slots* of one stripe each. A slot is free, or holds one stripe of one unit; slots are added at the file's
   end by fallocate and never given back before the file is closed.

   `space` protects all that is allocated: a directory's slots, the units' numbers and places. It may be held across fallocate, so
   neither a request nor its end takes it. `table` protects the array of units and the engines of a store that may end, and is taken last. What a unit holds (checksums,
   written, kept) belongs to the one request that is under way on it. */
#ifndef OFFLOAD_NVME_STORE_INTERNAL_H
#define OFFLOAD_NVME_STORE_INTERNAL_H
#include "files.h"
#include "store.h"
#include <pthread.h>

struct store_directory {
  char *path; /* as it was given */
  uint64_t inode_device, inode;
  struct drive_file file;
  struct engine *engine;    /* NULL once the store has ended: under `table`, as is `ended` */
  struct faults *faults;    /* NULL: none */
  uint64_t share_bytes;     /* that this process may take here */
  uint64_t untouched_bytes; /* of the free space, left to others */
  unsigned sharing;         /* directories of ours on this file system */
  uint64_t slots;           /* of the file */
  uint32_t *unused;         /* a stack; has room for all slots */
  size_t unused_count, unused_most;
  bool refused; /* fallocate failed when so many bytes were free: again only when there are more */
  uint64_t refused_free_bytes;
  _Atomic bool failed, told;
  struct engine_stats ended; /* what the engine told last */
};

struct store_stripe {
  uint64_t checksum;
  uint32_t slot;
  uint8_t directory;
};

struct store_unit {
  bool allocated;
  bool written;
  void *kept; /* unit_bytes of anonymous memory: the only copy */
  struct store_stripe stripes[];
};

struct store {
  struct store_config config;
  struct store_directory directories[STORE_DIRECTORIES_MOST];
  unsigned count;
  struct faults faults;
  size_t stripe_bytes;
  unsigned stripes; /* of a unit */
  unsigned depth;
  pthread_mutex_t space, table;
  unsigned next; /* directory of the next stripe */
  struct store_unit **units;
  uint32_t unit_count, unit_most;
  uint32_t *numbers; /* of units that were released; has room for all */
  uint32_t number_count;
  _Atomic uint64_t resident_units, kept_bytes, checksum_ns;
};

/* nvme/store_space.c */
struct store_unit *store_unit(struct store *, uint32_t unit);
void store_space_close(struct store *);

/* nvme/store_kept.c: the only copy of a unit, in host memory. False without memory. */
bool store_keep(struct store *, struct store_unit *, const void *bytes);
void store_unkeep(struct store *, struct store_unit *);
#endif
