/* nvme/store: units come back as they were written, each stripe has a place of its own, space is taken as asked and no more, and
   nothing is left behind. What it does when a drive fails is in nvme_store_faults.c. Runs in the checkout. */
#define _GNU_SOURCE
#include "nvme_store.h"
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { UNIT = 4 << 20, UNITS = 12 };

static bool even(const unsigned *of, unsigned count) {
  unsigned least = UINT32_MAX, most = 0;
  for (unsigned i = 0; i < count; i++) {
    least = of[i] < least ? of[i] : least;
    most = of[i] > most ? of[i] : most;
  }
  return most - least <= 1;
}

/* Whether no two stripes of the units share a slot, all lie in what was allocated, and each directory has its even part of every
   unit and of all. */
static bool places_apart(struct store *store, const uint32_t *units, unsigned count) {
  static bool seen[DIRECTORIES][4096];
  unsigned of[DIRECTORIES] = {0};
  memset(seen, 0, sizeof seen);
  for (unsigned i = 0; i < count; i++) {
    unsigned of_unit[DIRECTORIES] = {0};
    for (unsigned s = 0; s < store->stripes; s++) {
      const struct store_stripe stripe = store_unit(store, units[i])->stripes[s];
      struct stat at;
      if (stripe.directory >= store->count || stripe.slot >= 4096 ||
          seen[stripe.directory][stripe.slot] ||
          fstat(store->directories[stripe.directory].file.file, &at) ||
          (uint64_t)at.st_size < (stripe.slot + 1ull) * store->stripe_bytes)
        return false;
      seen[stripe.directory][stripe.slot] = true;
      of[stripe.directory]++;
      of_unit[stripe.directory]++;
    }
    if (!even(of_unit, store->count))
      return false;
  }
  return even(of, store->count);
}

/* Whether the files hold the unit's values where the store says. */
static bool files_hold(struct store *store, uint32_t unit, uint64_t seed) {
  for (unsigned s = 0; s < store->stripes; s++) {
    const struct store_stripe stripe = store_unit(store, unit)->stripes[s];
    if (pread(store->directories[stripe.directory].file.file, slab + s * store->stripe_bytes,
              store->stripe_bytes,
              (off_t)(stripe.slot * (uint64_t)store->stripe_bytes)) != (ssize_t)store->stripe_bytes)
      return false;
  }
  return filled(slab, store->config.unit_bytes, seed);
}

/* All units at once; `seed` + number is what each holds. Writes if `write`, else reads and compares. */
static bool all(struct store *store, const uint32_t *units, bool write, uint64_t seed) {
  WAITED(waited);
  struct store_request requests[UNITS];
  bool good = true;
  for (unsigned i = 0; i < UNITS; i++) {
    if (write)
      fill(slab + (size_t)i * UNIT, UNIT, seed + i);
    else
      memset(slab + (size_t)i * UNIT, 0xee, UNIT);
    start(store, &requests[i], &waited, write, units[i], slab + (size_t)i * UNIT);
  }
  wait_all(&waited);
  for (unsigned i = 0; i < UNITS; i++)
    good = good && requests[i].outcome == STORE_OK && !*requests[i].why &&
           (write || filled(slab + (size_t)i * UNIT, UNIT, seed + i));
  return good;
}

static void round_trip(unsigned count) {
  struct store_config config = config_of(first(count), UNIT, "");
  struct store *store = open_store(&config);
  uint32_t units[UNITS];
  const uint64_t room = store_room(store);
  for (unsigned i = 0; i < UNITS; i++)
    units[i] = allocate(store);
  const bool good = all(store, units, true, 100) && all(store, units, false, 100);
  const struct store_stats stats = store_stats(store);
  tap_ok(good && stats.directories == count && room > UNITS,
         "%u directories: what is read is what was written, many units in flight", count);
  tap_ok(stats.written_bytes == (uint64_t)UNITS * UNIT && stats.read_bytes == stats.written_bytes &&
             stats.resident_bytes == stats.written_bytes && !stats.kept_bytes &&
             !stats.failed_directories && stats.checksum_ns > 0 &&
             stats.block_bytes * store->stripes == UNIT,
         "%u directories: the bytes that are told are those of the units", count);
  bool held = true;
  for (unsigned i = 0; i < UNITS; i++)
    held = held && files_hold(store, units[i], 100 + i);
  tap_ok(held && places_apart(store, units, UNITS),
         "%u directories: each stripe has a place of its own, evenly in each file, and is there",
         count);
  tap_ok(all(store, units, true, 500) && all(store, units, false, 500),
         "%u directories: what is written again is what is read then", count);
  uint64_t device = 0;
  struct stat at;
  bool named = !store_directory(store, count, &device);
  for (unsigned i = 0; i < count; i++)
    named = named && !strcmp(store_directory(store, i, &device), directories[i]) &&
            !stat(directories[i], &at) && at.st_dev == device && names_in(directories[i]) == 0;
  tap_ok(named, "%u directories: each is told with its drive, and no name is in it", count);
  store_close(store);
}

/* Its slab may go, and its files' space is free; what it did is still told. */
static void ended(void) {
  struct store *store = open_small(2, "");
  const uint32_t unit = allocate(store);
  bool good = put(store, unit, 3).outcome == STORE_OK && holds(store, unit, 3);
  const int file = store->directories[0].file.file;
  const uint64_t written = store_directory_written(store, 0);
  store_release(store, unit);
  const struct store_stats before = store_stats(store);
  good = good && fcntl(file, F_GETFD) >= 0 && before.written_bytes == SMALL && written;
  store_end(store);
  const struct store_stats after = store_stats(store);
  tap_ok(good && fcntl(file, F_GETFD) < 0 && !store->directories[0].engine &&
             !store->directories[1].engine,
         "a store that ends closes its files and engines");
  tap_ok(good && after.written_bytes == before.written_bytes &&
             after.read_bytes == before.read_bytes && after.rung == before.rung &&
             store_directory_written(store, 0) == written && store_directory(store, 1, NULL),
         "and still tells what it did");
  store_end(store);
  store_close(store);
}

static void threads(void) {
  struct store *store = open_small(2, "");
  const bool good = work_side_by_side(store);
  const struct store_stats stats = store_stats(store);
  tap_ok(good && stats.written_bytes == (uint64_t)WORKERS * TURNS * SMALL &&
             !stats.resident_bytes && !stats.failed_directories,
         "several threads allocate, write, read and release units side by side");
  store_close(store);
}

static void limit(void) {
  struct store *store = open_small(2, "");
  uint32_t units[SMALL_UNITS], more;
  char why[300] = "";
  bool good = true;
  for (unsigned i = 0; i < SMALL_UNITS; i++) {
    good = good && store_room(store) == SMALL_UNITS - i;
    units[i] = allocate(store);
    good = good && put(store, units[i], i).outcome == STORE_OK;
  }
  tap_ok(good && store_room(store) == 0 && !store_allocate(store, &more, why, sizeof why) &&
             strstr(why, "OFFLOAD_NVME_LIMIT") && strstr(why, "983040") && strstr(why, "raise it"),
         "the limit ends allocation, with a sentence that names it: %s", why);
  const uint64_t slots = store->directories[0].slots + store->directories[1].slots;
  for (unsigned i = 0; i < SMALL_UNITS; i += 2)
    store_release(store, units[i]);
  good = store_room(store) == (SMALL_UNITS + 1) / 2 &&
         store_stats(store).resident_bytes == (uint64_t)(SMALL_UNITS / 2) * SMALL;
  for (unsigned i = 0; i < SMALL_UNITS; i += 2) {
    units[i] = allocate(store);
    const struct store_request request = once(store, false, units[i]);
    good = good && request.outcome == STORE_FAILED && strstr(request.why, "nothing");
    good = good && put(store, units[i], 50 + i).outcome == STORE_OK;
  }
  for (unsigned i = 0; i < SMALL_UNITS; i++)
    good = good && holds(store, units[i], i % 2 ? i : 50 + i);
  tap_ok(good && store->directories[0].slots + store->directories[1].slots == slots &&
             slots == SMALL_UNITS && places_apart(store, units, SMALL_UNITS),
         "what is released is used again, holds nothing of before, and no file grows");
  store_release(store, units[0]);
  const struct store_request request = once(store, false, units[0]);
  tap_ok(request.outcome == STORE_FAILED && strstr(request.why, "not allocated"),
         "a unit that was released can't be read");
  store_close(store);
}

/* Stripes of a unit that the limit would still hold. */
static void limit_inside_unit(void) {
  struct store_config config = config_of(first(2), UNIT, "");
  config.limit_bytes = 2 * UNIT + UNIT / 2;
  struct store *store = open_store(&config);
  char why[300] = "";
  uint32_t more;
  const bool good = store->stripes > 1 && store_room(store) == 2;
  allocate(store);
  allocate(store);
  tap_ok(good && store_room(store) == 0 && !store_allocate(store, &more, why, sizeof why) &&
             strstr(why, "OFFLOAD_NVME_LIMIT") && strstr(why, "10485760"),
         "a limit that ends within a unit is named as well: %s", why);
  store_close(store);
}

/* Room for one unit and a part of the next. */
static void limit_within_a_unit(void) {
  struct store_config config = config_of(first(2), UNIT, "");
  config.limit_bytes = UNIT + UNIT / 2;
  struct store *store = open_store(&config);
  char why[300] = "";
  uint32_t more;
  const bool good = store->stripes > 1 && store_room(store) == 1 &&
                    put(store, allocate(store), 1).outcome == STORE_OK &&
                    !store_allocate(store, &more, why, sizeof why);
  const uint64_t slots = store->directories[0].slots + store->directories[1].slots;
  tap_ok(good && slots == store->stripes && store_room(store) == 0 &&
             store_stats(store).resident_bytes == UNIT,
         "a unit that the limit has room for in part takes nothing");
  store_close(store);
}

static void share(void) {
  struct store_config config = config_of(first(2), UNIT, "");
  uint64_t rooms[2];
  struct statfs system;
  statfs(directories[0], &system);
  const uint64_t free_units = (uint64_t)system.f_bavail * (uint64_t)system.f_bsize / UNIT;
  for (unsigned i = 0; i < 2; i++) {
    config.local_ranks = i ? 4 : 1;
    struct store *store = open_store(&config);
    rooms[i] = store_room(store);
    store_close(store);
  }
  /* Others use the file system meanwhile. */
  tap_ok(rooms[0] > free_units * 85 / 100 && rooms[0] < free_units * 97 / 100 &&
             rooms[1] > rooms[0] / 5 && rooms[1] < rooms[0] * 3 / 10,
         "one in 20 of the free space is left, the rest shared by the ranks of the machine");
  const struct rlimit few = {128 << 20, RLIM_INFINITY}, none = {RLIM_INFINITY, RLIM_INFINITY};
  setrlimit(RLIMIT_FSIZE, &few);
  config.local_ranks = 1;
  struct store *store = open_store(&config);
  setrlimit(RLIMIT_FSIZE, &none);
  tap_ok(store_room(store) == 2 * (128 << 20) / UNIT, "no file outgrows what ulimit -f allows");
  store_close(store);
}

static void forked(void) {
  const unsigned before = descriptors();
  struct store *store = open_small(2, "");
  const uint32_t unit = allocate(store);
  const bool good = put(store, unit, 7).outcome == STORE_OK && descriptors() > before + 1;
  const pid_t child = fork();
  if (!child) {
    store_forked(store);
    _exit(descriptors() == before ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  tap_ok(good && status == 0 && holds(store, unit, 7),
         "a forked child holds none of the store's descriptors, and its parent goes on");
  store_close(store);
  tap_ok(descriptors() == before, "a store that is closed leaves no descriptor");
}

static void vanished(void) {
  struct store *store = open_small(2, "");
  const uint32_t unit = allocate(store);
  bool good = put(store, unit, 3).outcome == STORE_OK;
  good = good && rmdir(directories[0]) == 0 && rmdir(directories[1]) == 0;
  const uint32_t more = allocate(store);
  good = good && put(store, more, 4).outcome == STORE_OK && holds(store, unit, 3) &&
         holds(store, more, 4) && store_stats(store).written_bytes == 2 * SMALL;
  tap_ok(good, "a store goes on when its directories vanish");
  store_close(store);
  for (unsigned i = 0; i < 2; i++)
    if (mkdir(directories[i], 0700))
      perror(directories[i]);
}

/* One sentence of store_open: it must hold all three parts. */
static void refused(struct store_config config, const char *variable, const char *value,
                    const char *remedy, const char *sentence) {
  char why[1024] = "";
  const unsigned before = descriptors();
  struct store *store = store_open(&config, why, sizeof why);
  tap_ok(!store && strstr(why, variable) == why && strstr(why, value) && strstr(why, remedy) &&
             descriptors() == before,
         "%s: %s", sentence, why);
  store_close(store);
}

static void refusals(void) {
  char list[3 * 4096 + 64];
  struct store_config config = config_of(list, SMALL, "");
  *list = 0;
  refused(config, "OFFLOAD_NVME:", "empty", "name a directory", "an empty list is refused");
  config.directories = NULL;
  refused(config, "OFFLOAD_NVME:", "empty", "name a directory", "no list is refused");
  config.directories = list;
  snprintf(list, sizeof list, "%s:", directories[0]);
  refused(config, "OFFLOAD_NVME:", list, "one colon", "an empty part at the end is refused");
  snprintf(list, sizeof list, "%s::%s", directories[0], directories[1]);
  refused(config, "OFFLOAD_NVME:", list, "one colon", "an empty part is refused");
  snprintf(list, sizeof list, "%s:build", directories[0]);
  refused(config, "OFFLOAD_NVME:", "\"build\"", "begin it with /", "a relative path is refused");
  snprintf(list, sizeof list, "%s:%s/missing", directories[0], directories[1]);
  refused(config, "OFFLOAD_NVME:", list + strlen(directories[0]) + 1, "create the directory",
          "a missing directory is refused");
  snprintf(list, sizeof list, "/proc/self/exe");
  refused(config, "OFFLOAD_NVME:", list, "name a directory", "a file is refused");
  snprintf(list, sizeof list, "%s:%s/../%s", directories[0], directories[0],
           strrchr(directories[0], '/') + 1);
  refused(config, "OFFLOAD_NVME:", directories[0], "name each once",
          "one directory by two names is refused");
  for (unsigned i = 0, at = 0; i <= STORE_DIRECTORIES_MOST; i++)
    at += (unsigned)snprintf(list + at, sizeof list - at, "%s/%u", i ? ":" : "", i);
  refused(config, "OFFLOAD_NVME:", "more than 16", "name fewer", "a 17th directory is refused");
  config.directories = first(1);
  config.rung = "fast";
  refused(config, "OFFLOAD_TEST_NVME_RUNG:", "\"fast\"", "threads", "an unknown rung is refused");
  config.rung = "";
  config.fault = "read_eio=1,directory=1";
  refused(config, "OFFLOAD_TEST_NVME:", "directory=1", "count from 0",
          "faults of a directory that is not there are refused");
  config.fault = "read_eoi=1";
  refused(config, "OFFLOAD_TEST_NVME:", "\"read_eoi=1\"", "use e.g.", "unknown faults are refused");
  config.fault = "";
  config.limit_bytes = SMALL - 1;
  refused(config, "OFFLOAD_NVME_LIMIT:", "65535", "raise it",
          "a limit that holds no piece is refused");
  config.limit_bytes = 0;
  const struct rlimit few = {1 << 20, RLIM_INFINITY}, none = {RLIM_INFINITY, RLIM_INFINITY};
  setrlimit(RLIMIT_FSIZE, &few);
  refused(config, "OFFLOAD_NVME:", "1048576", "ulimit -f", "files that may not grow are refused");
  setrlimit(RLIMIT_FSIZE, &none);
}

/* As somebody who may not write there. */
static void not_permitted(void) {
  static const char sentence[] = "a directory without permission is refused";
  const uid_t user = geteuid();
  chmod(directories[0], 0500);
  if (!user && seteuid(65534)) {
    tap_skip(sentence, "no other user may be taken on here");
    return;
  }
  struct store_config config = config_of(first(1), SMALL, "");
  char why[1024] = "";
  struct store *store = store_open(&config, why, sizeof why);
  if (!user && seteuid(user))
    exit(1);
  chmod(directories[0], 0700);
  tap_ok(!store && strstr(why, "OFFLOAD_NVME: ") == why && strstr(why, directories[0]) &&
             strstr(why, "Permission denied"),
         "%s: %s", sentence, why);
  store_close(store);
}

static void rungs(void) {
  static const char *const names[] = {"defer", "coop", "plain", "threads"};
  for (unsigned i = 0; i < 4; i++) {
    struct store_config config = config_of(first(2), SMALL, "");
    char why[512] = "", sentence[96];
    snprintf(sentence, sizeof sentence, "%s: the rung that was asked for serves the store",
             names[i]);
    config.limit_bytes = SMALL_UNITS * SMALL;
    config.rung = names[i];
    struct store *store = store_open(&config, why, sizeof why);
    if (!store && i < 3) {
      tap_skip(sentence, "this kernel, or its rules, has no such ring");
      continue;
    }
    const uint32_t unit = store ? allocate(store) : 0;
    tap_ok(store && put(store, unit, 9).outcome == STORE_OK && holds(store, unit, 9) &&
               !strcmp(engine_rung_name(store_stats(store).rung), names[i]),
           "%s", sentence);
    store_close(store);
  }
}

int main(void) {
  if (!make_directories("nvme-store", (size_t)UNITS * UNIT)) {
    tap_skip("units are stored in files of the build's folder",
             "the build's folder is on a file system that can't hold state");
    return tap_done();
  }
  for (unsigned count = 1; count <= DIRECTORIES; count++)
    round_trip(count);
  ended();
  threads();
  limit();
  limit_inside_unit();
  limit_within_a_unit();
  share();
  forked();
  vanished();
  refusals();
  not_permitted();
  rungs();
  return tap_done();
}
