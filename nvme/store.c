/* The store's beginning and end (store.h): the list of directories, each one's file, share of free space and probe, and the engines.
   Units and their places are in store_space.c, requests in store_io.c. */
#define _GNU_SOURCE
#include "store_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum {
  PROBE_BYTES = 64 << 20, /* of a file */
  PROBE_NS = 400000000,   /* of all files together */
  STRIPE_LEAST = 1 << 20, /* unless units are smaller */
  DEPTH_UNPROBED = 8,
  /* An engine's thread that waits for a CPU leaves the drive with what is under way. */
  DEPTH_LEAST = 8,
  DEPTH_MOST = 32,
};

/* What a file may grow to (ulimit -f): writing beyond it would kill the process. */
static uint64_t file_limit_bytes(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY)
    return UINT64_MAX;
  return limit.rlim_cur;
}

static bool config_ok(const struct store_config *config, char *why, size_t why_bytes) {
  const size_t unit = config->unit_bytes;
  if (unit < 4096 || (unit & (unit - 1))) {
    snprintf(why, why_bytes, "a unit of %zu bytes is no power of two of at least 4096", unit);
    return false;
  }
  if (config->limit_bytes && config->limit_bytes < unit) {
    snprintf(why, why_bytes,
             "OFFLOAD_NVME_LIMIT: %llu bytes hold not one piece of %zu; raise it, or leave it out",
             (unsigned long long)config->limit_bytes, unit);
    return false;
  }
  if (file_limit_bytes() < PROBE_BYTES) {
    snprintf(why, why_bytes,
             "OFFLOAD_NVME: files may only be %llu bytes long here; raise it with ulimit -f",
             (unsigned long long)file_limit_bytes());
    return false;
  }
  return true;
}

static bool rung_of(const char *name, enum engine_rung *rung, char *why, size_t why_bytes) {
  *rung = ENGINE_AUTO;
  if (!name || !*name)
    return true;
  for (int i = ENGINE_AUTO; i <= ENGINE_THREADS; i++)
    if (!strcmp(name, engine_rung_name((enum engine_rung)i))) {
      *rung = (enum engine_rung)i;
      return true;
    }
  snprintf(why, why_bytes,
           "OFFLOAD_TEST_NVME_RUNG: \"%.40s\" is none of auto, defer, coop, plain, threads", name);
  return false;
}

/* The list's parts, before any of them is touched. */
static bool list_directories(struct store *store, char *why, size_t why_bytes) {
  const char *list = store->config.directories;
  if (!list || !*list) {
    snprintf(why, why_bytes, "OFFLOAD_NVME: it is empty; name a directory, e.g. /mnt/nvme0");
    return false;
  }
  for (const char *at = list;; at++) {
    const size_t length = strcspn(at, ":");
    if (!length) {
      snprintf(why, why_bytes,
               "OFFLOAD_NVME: \"%s\" has an empty part; separate directories by one colon", list);
      return false;
    }
    if (*at != '/') {
      snprintf(why, why_bytes, "OFFLOAD_NVME: \"%.*s\" is not an absolute path; begin it with /",
               (int)length, at);
      return false;
    }
    if (store->count == STORE_DIRECTORIES_MOST) {
      snprintf(why, why_bytes, "OFFLOAD_NVME: it names more than %d directories; name fewer",
               STORE_DIRECTORIES_MOST);
      return false;
    }
    struct store_directory *directory = &store->directories[store->count++];
    directory->file.file = -1;
    directory->path = strndup(at, length);
    if (!directory->path) {
      snprintf(why, why_bytes, "OFFLOAD_NVME: no memory");
      return false;
    }
    at += length;
    if (!*at)
      return true;
  }
}

/* Each directory's file, and that none is named twice. */
static bool open_directories(struct store *store, char *why, size_t why_bytes) {
  for (unsigned i = 0; i < store->count; i++) {
    struct store_directory *directory = &store->directories[i];
    struct statx at;
    if (!drive_file_open(directory->path, &directory->file, why, why_bytes))
      return false;
    if (statx(AT_FDCWD, directory->path, 0, STATX_INO, &at)) {
      snprintf(why, why_bytes, "OFFLOAD_NVME: %s: %s; create the directory or name another",
               directory->path, strerror(errno));
      return false;
    }
    directory->inode_device = makedev(at.stx_dev_major, at.stx_dev_minor);
    directory->inode = at.stx_ino;
    for (unsigned j = 0; j < i; j++) {
      const struct store_directory *other = &store->directories[j];
      if (other->inode != directory->inode || other->inode_device != directory->inode_device)
        continue;
      snprintf(why, why_bytes,
               "OFFLOAD_NVME: %s and %s are one directory; name each once, one for each drive",
               other->path, directory->path);
      return false;
    }
  }
  return true;
}

/* Of the free space one in 20 is left to others, the rest divided by the processes of this machine and by the directories of ours
   that share it. */
static void share(struct store *store) {
  const unsigned ranks = store->config.local_ranks ? store->config.local_ranks : 1;
  const uint64_t most = file_limit_bytes();
  for (unsigned i = 0; i < store->count; i++) {
    struct store_directory *directory = &store->directories[i];
    const uint64_t free_bytes = drive_file_free_bytes(directory->file.file);
    for (unsigned other = 0; other < store->count; other++)
      directory->sharing += store->directories[other].file.device == directory->file.device;
    directory->untouched_bytes = free_bytes / 20;
    directory->share_bytes = (free_bytes - directory->untouched_bytes) / ranks / directory->sharing;
    if (directory->share_bytes > most)
      directory->share_bytes = most;
  }
}

static struct engine_config engine_config_of(const struct store *store, unsigned i,
                                             enum engine_rung rung) {
  return (struct engine_config){
      .file = store->directories[i].file.file,
      .rung = rung,
      .only_this_rung = rung != ENGINE_AUTO,
      .depth = store->depth,
      .block_bytes = store->stripe_bytes,
      .slab = store->config.slab,
      .slab_bytes = store->config.slab_bytes,
      .faults = store->directories[i].faults,
  };
}

/* The stripe and the depth that serve all directories: the greatest stripe and the most bytes under way that a probe chose. A
   unit's stripes then go to as many directories as they can. */
static bool probe(struct store *store, enum engine_rung rung, char *why, size_t why_bytes) {
  const size_t unit = store->config.unit_bytes;
  size_t under_way = 0;
  store->stripe_bytes = STRIPE_LEAST;
  for (unsigned i = 0; i < store->count; i++) {
    const struct store_directory *directory = &store->directories[i];
    uint64_t bytes = directory->share_bytes;
    if (store->config.limit_bytes && bytes > store->config.limit_bytes)
      bytes = store->config.limit_bytes;
    bytes = bytes < PROBE_BYTES ? bytes : PROBE_BYTES;
    if (bytes < STRIPE_LEAST)
      continue;
    struct engine_config config = engine_config_of(store, i, rung);
    config.faults = NULL;
    size_t block;
    unsigned depth;
    char reason[200];
    const bool good = engine_probe(&config, bytes, PROBE_NS / store->count, &block, &depth, reason,
                                   sizeof reason);
    if (!good || ftruncate(directory->file.file, 0)) {
      snprintf(why, why_bytes, "OFFLOAD_NVME: %s: %s; name a directory of a drive that works",
               directory->path, good ? strerror(errno) : reason);
      return false;
    }
    store->stripe_bytes = block > store->stripe_bytes ? block : store->stripe_bytes;
    under_way = block * depth > under_way ? block * depth : under_way;
  }
  while (store->stripe_bytes > STRIPE_LEAST && store->stripe_bytes * store->count > unit)
    store->stripe_bytes /= 2;
  if (store->stripe_bytes > unit)
    store->stripe_bytes = unit;
  store->stripes = (unsigned)(unit / store->stripe_bytes);
  /* As many bytes as the probe found, in stripes that may be smaller than its blocks. */
  const size_t depth = under_way ? under_way / store->stripe_bytes : DEPTH_UNPROBED;
  store->depth = depth < DEPTH_LEAST  ? DEPTH_LEAST
                 : depth > DEPTH_MOST ? DEPTH_MOST
                                      : (unsigned)depth;
  for (unsigned i = 0; i < store->count; i++)
    if (store->directories[i].file.alignment > store->stripe_bytes) {
      snprintf(why, why_bytes, "OFFLOAD_NVME: %s asks for transfers of %zu bytes; pieces have %zu",
               store->directories[i].path, store->directories[i].file.alignment, unit);
      return false;
    }
  return true;
}

static bool open_engines(struct store *store, enum engine_rung rung, char *why, size_t why_bytes) {
  for (unsigned i = 0; i < store->count; i++) {
    struct store_directory *directory = &store->directories[i];
    char reason[200];
    if (store->faults.directory < 0 || store->faults.directory == (int)i)
      directory->faults = &store->faults;
    const struct engine_config config = engine_config_of(store, i, rung);
    directory->engine = engine_open(&config, reason, sizeof reason);
    if (!directory->engine) {
      snprintf(why, why_bytes, "OFFLOAD_NVME: %s: %s", directory->path, reason);
      return false;
    }
  }
  return true;
}

static bool open_all(struct store *store, char *why, size_t why_bytes) {
  enum engine_rung rung;
  if (!config_ok(&store->config, why, why_bytes) ||
      !rung_of(store->config.rung, &rung, why, why_bytes) ||
      !faults_parse(store->config.fault, &store->faults, why, why_bytes) ||
      !list_directories(store, why, why_bytes))
    return false;
  if (store->faults.directory >= (int)store->count) {
    snprintf(why, why_bytes,
             "OFFLOAD_TEST_NVME: directory=%d is not one of the %u of OFFLOAD_NVME; count from 0",
             store->faults.directory, store->count);
    return false;
  }
  if (!open_directories(store, why, why_bytes))
    return false;
  share(store);
  return probe(store, rung, why, why_bytes) && open_engines(store, rung, why, why_bytes);
}

struct store *store_open(const struct store_config *config, char *why, size_t why_bytes) {
  struct store *store = calloc(1, sizeof *store);
  if (!store) {
    snprintf(why, why_bytes, "OFFLOAD_NVME: no memory");
    return NULL;
  }
  store->config = *config;
  pthread_mutex_init(&store->space, NULL);
  pthread_mutex_init(&store->table, NULL);
  if (open_all(store, why, why_bytes)) {
    /* The strings are the caller's. */
    store->config.directories = store->config.rung = store->config.fault = NULL;
    return store;
  }
  store_close(store);
  return NULL;
}

void store_close(struct store *store) {
  if (!store)
    return;
  for (unsigned i = 0; i < store->count; i++)
    engine_close(store->directories[i].engine);
  store_space_close(store);
  for (unsigned i = 0; i < store->count; i++) {
    if (store->directories[i].file.file >= 0)
      close(store->directories[i].file.file);
    free(store->directories[i].path);
  }
  pthread_mutex_destroy(&store->table);
  pthread_mutex_destroy(&store->space);
  free(store);
}

void store_end(struct store *store) {
  for (unsigned i = 0; i < store->count; i++) {
    struct store_directory *directory = &store->directories[i];
    struct engine *engine = directory->engine;
    if (!engine)
      continue;
    pthread_mutex_lock(&store->table);
    directory->ended = engine_stats(engine);
    directory->engine = NULL;
    pthread_mutex_unlock(&store->table);
    engine_close(engine);
    close(directory->file.file);
    directory->file.file = -1;
  }
}

void store_forked(struct store *store) {
  for (unsigned i = 0; store && i < store->count; i++) {
    if (store->directories[i].file.file >= 0)
      close(store->directories[i].file.file);
    engine_forked(store->directories[i].engine);
  }
}

static struct engine_stats stats_of(struct store *store, unsigned i) {
  const struct store_directory *directory = &store->directories[i];
  pthread_mutex_lock(&store->table);
  const struct engine_stats stats =
      directory->engine ? engine_stats(directory->engine) : directory->ended;
  pthread_mutex_unlock(&store->table);
  return stats;
}

struct store_stats store_stats(struct store *store) {
  struct store_stats stats = {
      .directories = store->count,
      .block_bytes = store->stripe_bytes,
      .depth = store->depth,
      .kept_bytes = atomic_load_explicit(&store->kept_bytes, memory_order_relaxed),
      .resident_bytes = atomic_load_explicit(&store->resident_units, memory_order_relaxed) *
                        store->config.unit_bytes,
      .checksum_ns = atomic_load_explicit(&store->checksum_ns, memory_order_relaxed),
  };
  for (unsigned i = 0; i < store->count; i++) {
    const struct engine_stats engine = stats_of(store, i);
    if (!i)
      stats.rung = engine.rung;
    stats.read_bytes += engine.read_bytes;
    stats.written_bytes += engine.written_bytes;
    stats.failed_directories +=
        atomic_load_explicit(&store->directories[i].failed, memory_order_relaxed);
  }
  return stats;
}

uint64_t store_directory_written(struct store *store, unsigned i) {
  return i < store->count ? stats_of(store, i).written_bytes : 0;
}

bool store_directory_failed(struct store *store, unsigned i) {
  return i < store->count &&
         atomic_load_explicit(&store->directories[i].failed, memory_order_relaxed);
}

const char *store_directory(struct store *store, unsigned i, uint64_t *device) {
  if (i >= store->count)
    return NULL;
  if (device)
    *device = store->directories[i].file.device;
  return store->directories[i].path;
}
