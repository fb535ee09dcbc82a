/* build/nvme-store-bench: what the store reads from directories, with and without checksums by turns, and what checking costs,
   as a JSON object. Leaves nothing in them. */
#define _GNU_SOURCE
#include "clock.h"
#include "store.h"
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNIT_BYTES = 4 << 20, IN_FLIGHT = 8, UNITS_LEAST = IN_FLIGHT };

struct options {
  const char *directories, *rung;
  unsigned long long bytes;
  double seconds;
  unsigned long long pairs;
};

static int usage(void) {
  fputs("usage: nvme-store-bench --directories A[:B...] [--bytes B] [--seconds S] [--pairs N]\n"
        "         [--rung auto|defer|coop|plain|threads]\n"
        "Absolute paths, as in OFFLOAD_NVME. Bytes: of all files together, at least 32 MiB.\n",
        stderr);
  return 2;
}

static int fail(const char *why) {
  fprintf(stderr, "nvme-store-bench: %s\n", why);
  return 1;
}

/* All units one after the other, IN_FLIGHT of them at a time, until the time is over, but each once. `lock` protects the rest. */
struct pass {
  struct store *store;
  const uint32_t *units;
  unsigned count;
  bool write;
  uint64_t until_ns;
  pthread_mutex_t lock;
  pthread_cond_t over;
  uint64_t next, done;
  unsigned open;
  char why[200];
};

/* The request's next unit; false: there is none. With the lock held. */
static bool aim(struct pass *pass, struct store_request *request) {
  if (*pass->why ||
      (pass->next >= pass->count && (pass->write || clock_now_ns() >= pass->until_ns)))
    return false;
  request->unit = pass->units[pass->next++ % pass->count];
  return true;
}

static void submit(struct pass *pass, struct store_request *request) {
  if (pass->write)
    store_write(pass->store, request);
  else
    store_read(pass->store, request);
}

static void again(struct store_request *request) {
  struct pass *pass = request->context;
  pthread_mutex_lock(&pass->lock);
  if (request->outcome != STORE_OK)
    snprintf(pass->why, sizeof pass->why, "%s", *request->why ? request->why : "a drive failed");
  pass->done++;
  const bool more = aim(pass, request);
  if (!more && --pass->open == 0)
    pthread_cond_signal(&pass->over);
  pthread_mutex_unlock(&pass->lock);
  if (more)
    submit(pass, request);
}

/* Nanoseconds that it took. */
static uint64_t run(struct pass *pass, char *slab) {
  struct store_request requests[IN_FLIGHT];
  const uint64_t begun = clock_now_ns();
  pthread_mutex_init(&pass->lock, NULL);
  pthread_cond_init(&pass->over, NULL);
  for (unsigned i = 0; i < IN_FLIGHT; i++) {
    requests[i] = (struct store_request){
        .buffer = slab + (size_t)i * UNIT_BYTES, .done = again, .context = pass};
    pthread_mutex_lock(&pass->lock);
    const bool more = aim(pass, &requests[i]);
    pass->open += more;
    pthread_mutex_unlock(&pass->lock);
    if (more)
      submit(pass, &requests[i]);
  }
  pthread_mutex_lock(&pass->lock);
  while (pass->open)
    pthread_cond_wait(&pass->over, &pass->lock);
  pthread_mutex_unlock(&pass->lock);
  pthread_cond_destroy(&pass->over);
  pthread_mutex_destroy(&pass->lock);
  return clock_now_ns() - begun;
}

/* One store's life: all is written, then read for as long as was asked. */
static bool measure(const struct options *options, char *slab, bool checksums, bool last) {
  struct store_config config = {
      .directories = options->directories,
      .local_ranks = 1,
      .unit_bytes = UNIT_BYTES,
      .checksums = checksums,
      .slab = slab,
      .slab_bytes = (size_t)IN_FLIGHT * UNIT_BYTES,
      .rung = strcmp(options->rung, "auto") ? options->rung : "",
  };
  const unsigned count = (unsigned)(options->bytes / UNIT_BYTES);
  char why[512] = "";
  struct store *store = store_open(&config, why, sizeof why);
  uint32_t *units = calloc(count, sizeof *units);
  bool good = store && units;
  for (unsigned i = 0; good && i < count; i++)
    good = store_allocate(store, &units[i], why, sizeof why);
  if (good) {
    struct pass writing = {.store = store, .units = units, .count = count, .write = true};
    struct pass reading = {.store = store, .units = units, .count = count};
    run(&writing, slab);
    const struct store_stats before = store_stats(store);
    reading.until_ns = clock_now_ns() + (uint64_t)(options->seconds * 1e9);
    const uint64_t ns = run(&reading, slab);
    const struct store_stats after = store_stats(store);
    const uint64_t bytes = after.read_bytes - before.read_bytes;
    snprintf(why, sizeof why, "%s%s", writing.why, reading.why);
    good = !*why && bytes == reading.done * UNIT_BYTES;
    if (good)
      printf("{\"checksums\": %s, \"rung\": \"%s\", \"block\": %zu, \"depth\": %u, "
             "\"bytes\": %llu, \"seconds\": %.6f, \"checksum_seconds\": %.6f}%s\n",
             checksums ? "true" : "false", engine_rung_name(after.rung), after.block_bytes,
             after.depth, (unsigned long long)bytes, (double)ns / 1e9,
             (double)(after.checksum_ns - before.checksum_ns) / 1e9, last ? "" : ",");
  }
  free(units);
  store_close(store);
  return good || fail(*why ? why : "no memory, or bytes that were not counted") == 0;
}

static int parse(int count, char **words, struct options *options) {
  static const struct option known[] = {{"directories", 1, NULL, 'd'}, {"bytes", 1, NULL, 'b'},
                                        {"seconds", 1, NULL, 's'},     {"pairs", 1, NULL, 'p'},
                                        {"rung", 1, NULL, 'r'},        {NULL, 0, NULL, 0}};
  for (int word; (word = getopt_long(count, words, "", known, NULL)) != -1;) {
    if (word == 'd')
      options->directories = optarg;
    else if (word == 'r')
      options->rung = optarg;
    else if (word == 'b')
      options->bytes = strtoull(optarg, NULL, 10);
    else if (word == 'p')
      options->pairs = strtoull(optarg, NULL, 10);
    else if (word == 's')
      options->seconds = strtod(optarg, NULL);
    else
      return usage();
  }
  if (!options->directories || options->bytes < (unsigned long long)UNITS_LEAST * UNIT_BYTES ||
      options->bytes > 1ULL << 44 || options->pairs < 1 || options->pairs > 1000 ||
      !(options->seconds > 0 && options->seconds < 86400))
    return usage();
  return 0;
}

int main(int count, char **words) {
  struct options options = {.rung = "auto", .bytes = 512 << 20, .seconds = 1, .pairs = 5};
  const int status = parse(count, words, &options);
  if (status)
    return status;
  char *slab = engine_slab_map((size_t)IN_FLIGHT * UNIT_BYTES);
  if (!slab)
    return fail(strerror(errno));
  for (size_t i = 0; i < (size_t)IN_FLIGHT * UNIT_BYTES; i++)
    slab[i] = (char)(i * 131 + i / 4096);
  puts("[");
  bool good = true;
  /* Who goes first changes, so that neither always finds the drive as the other left it. */
  for (unsigned turn = 0; good && turn < 2 * options.pairs; turn++)
    good = measure(&options, slab, (turn + turn / 2) % 2, turn + 1 == 2 * options.pairs);
  if (good)
    puts("]");
  engine_slab_unmap(slab, (size_t)IN_FLIGHT * UNIT_BYTES);
  return !good;
}
