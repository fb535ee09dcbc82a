/* What the tests of the store share: directories in the build's folder, values, and requests that are waited for. Sees the store's
   insides, to look where units really lie. */
#ifndef NVME_STORE_TEST_H
#define NVME_STORE_TEST_H
#include "nvme/store_internal.h"
#include "nvme_support.h"
#include "tests/lib/tap.h"
#include <string.h>
#include <sys/mman.h>

enum { DIRECTORIES = 3, WAIT_S = 60 };

static char directories[DIRECTORIES][4096];
static char all_directories[DIRECTORIES * 4096]; /* "first:second:third" */
static unsigned char *slab;
static size_t slab_bytes;

/* The list of the first `count` directories. */
__attribute__((unused)) static const char *first(unsigned count) {
  size_t length = 0;
  for (unsigned i = 0; i < count; i++)
    length += (size_t)snprintf(all_directories + length, sizeof all_directories - length, "%s%s",
                               i ? ":" : "", directories[i]);
  return all_directories;
}

static void remove_directories(void) {
  for (unsigned i = 0; i < DIRECTORIES; i++)
    rmdir(directories[i]);
}

/* They go when the program ends. False when the build's folder can't hold a drive's files. */
static bool make_directories(const char *name, size_t bytes) {
  char here[2048];
  if (!getcwd(here, sizeof here)) {
    perror("build");
    exit(1);
  }
  if (!holds_state("build"))
    return false;
  for (unsigned i = 0; i < DIRECTORIES; i++) {
    snprintf(directories[i], sizeof directories[i], "%s/build/%s-XXXXXX", here, name);
    if (!mkdtemp(directories[i])) {
      perror(directories[i]);
      exit(1);
    }
  }
  atexit(remove_directories);
  slab_bytes = bytes;
  slab = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return slab != MAP_FAILED;
}

static void fill(unsigned char *bytes, size_t count, uint64_t seed) {
  for (size_t i = 0; i + 8 <= count; i += 8) {
    const uint64_t value = (seed << 40 | i) * 0x9e3779b97f4a7c15u;
    memcpy(bytes + i, &value, 8);
  }
}

static bool filled(const unsigned char *bytes, size_t count, uint64_t seed) {
  for (size_t i = 0; i + 8 <= count; i += 8) {
    const uint64_t value = (seed << 40 | i) * 0x9e3779b97f4a7c15u;
    if (memcmp(bytes + i, &value, 8) != 0)
      return false;
  }
  return true;
}

struct waited {
  pthread_mutex_t lock;
  pthread_cond_t over;
  unsigned open;
};

static void done(struct store_request *request) {
  struct waited *waited = request->context;
  /* Whoever is told that a write is done may use its buffer for something else at once. */
  pthread_mutex_lock(&waited->lock);
  waited->open--;
  pthread_cond_signal(&waited->over);
  pthread_mutex_unlock(&waited->lock);
}

static void start(struct store *store, struct store_request *request, struct waited *waited,
                  bool write, uint32_t unit, void *buffer) {
  *request = (struct store_request){.unit = unit,
                                    .buffer = buffer,
                                    .done = done,
                                    .context = waited,
                                    .outcome = (enum store_outcome)99};
  pthread_mutex_lock(&waited->lock);
  waited->open++;
  pthread_mutex_unlock(&waited->lock);
  if (write)
    store_write(store, request);
  else
    store_read(store, request);
}

static void wait_all(struct waited *waited) {
  alarm(WAIT_S);
  pthread_mutex_lock(&waited->lock);
  while (waited->open)
    pthread_cond_wait(&waited->over, &waited->lock);
  pthread_mutex_unlock(&waited->lock);
  alarm(0);
}

#define WAITED(name)                                                                               \
  struct waited name = {.lock = PTHREAD_MUTEX_INITIALIZER, .over = PTHREAD_COND_INITIALIZER}

/* One request from its beginning to its end, by the slab's first bytes. */
static struct store_request once(struct store *store, bool write, uint32_t unit) {
  WAITED(waited);
  struct store_request request;
  start(store, &request, &waited, write, unit, slab);
  wait_all(&waited);
  return request;
}

/* Writes values made of `seed`, then spoils the buffer. */
static struct store_request put(struct store *store, uint32_t unit, uint64_t seed) {
  const size_t bytes = store->config.unit_bytes;
  fill(slab, bytes, seed);
  struct store_request request = once(store, true, unit);
  memset(slab, 0xee, bytes);
  return request;
}

/* Whether the unit is read without a word and holds the values of `seed`. */
static bool holds(struct store *store, uint32_t unit, uint64_t seed) {
  const struct store_request request = once(store, false, unit);
  return request.outcome == STORE_OK && !*request.why &&
         filled(slab, store->config.unit_bytes, seed);
}

static struct store_config config_of(const char *list, size_t unit_bytes, const char *fault) {
  return (struct store_config){
      .directories = list,
      .local_ranks = 1,
      .unit_bytes = unit_bytes,
      .checksums = true,
      .slab = slab,
      .slab_bytes = slab_bytes,
      .rung = "",
      .fault = fault,
  };
}

static struct store *open_store(const struct store_config *config) {
  char why[512] = "";
  struct store *store = store_open(config, why, sizeof why);
  if (!store) {
    printf("Bail out! %s\n", why);
    exit(1);
  }
  return store;
}

/* Small units and a limit of 15 of them: too little to be probed, so that a store opens at once. */
enum { SMALL = 1 << 16, SMALL_UNITS = 15 };
__attribute__((unused)) static struct store *open_small(unsigned count, const char *fault) {
  struct store_config config = config_of(first(count), SMALL, fault);
  config.limit_bytes = SMALL_UNITS * SMALL;
  return open_store(&config);
}

__attribute__((unused)) static uint32_t allocate(struct store *store) {
  char why[300] = "";
  uint32_t unit;
  if (!store_allocate(store, &unit, why, sizeof why)) {
    printf("Bail out! %s\n", why);
    exit(1);
  }
  return unit;
}

enum { WORKERS = 3, TURNS = 40 };
struct worker {
  struct store *store;
  unsigned char *buffer;
  uint64_t seed;
  bool good;
};

/* Allocates, writes, reads and releases units of its own. */
static void *work(void *argument) {
  struct worker *worker = argument;
  worker->good = true;
  for (unsigned turn = 0; turn < TURNS && worker->good; turn++) {
    WAITED(waited);
    struct store_request request;
    char why[300];
    uint32_t unit;
    const uint64_t seed = worker->seed + turn;
    worker->good =
        store_room(worker->store) > 0 && store_allocate(worker->store, &unit, why, sizeof why);
    if (!worker->good)
      break;
    fill(worker->buffer, SMALL, seed);
    start(worker->store, &request, &waited, true, unit, worker->buffer);
    wait_all(&waited);
    worker->good = request.outcome != STORE_FAILED;
    memset(worker->buffer, 0xee, SMALL);
    start(worker->store, &request, &waited, false, unit, worker->buffer);
    wait_all(&waited);
    worker->good =
        worker->good && request.outcome == STORE_OK && filled(worker->buffer, SMALL, seed);
    store_release(worker->store, unit);
  }
  return NULL;
}

/* Whether each of WORKERS threads, at the same time, found in its units what it had written, TURNS times. */
__attribute__((unused)) static bool work_side_by_side(struct store *store) {
  struct worker workers[WORKERS];
  pthread_t made[WORKERS];
  bool good = true;
  for (unsigned i = 0; i < WORKERS; i++) {
    workers[i] = (struct worker){
        .store = store, .buffer = slab + (size_t)i * SMALL, .seed = 1000u * (i + 1)};
    if (pthread_create(&made[i], NULL, work, &workers[i]))
      exit(1);
  }
  for (unsigned i = 0; i < WORKERS; i++) {
    pthread_join(made[i], NULL);
    good = good && workers[i].good;
  }
  return good;
}
#endif
