/* nvme/store when a drive fails: a write never loses what it was given, a read never gives other bytes than were written, and
   whatever a kernel may answer on the way is borne. Faults are those of nvme/fault.h, wrong bytes are also written under the
   store's feet. Runs in the checkout. */
#define _GNU_SOURCE
#include "nvme/clock.h"
#include "nvme_store.h"

enum { LARGE = 4 << 20 };

static _Atomic bool no_memory;
void *__real_mmap(void *, size_t, int, int, int, off_t);
void *__wrap_mmap(void *, size_t, int, int, int, off_t);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset) {
  if (!no_memory)
    return __real_mmap(at, bytes, protection, flags, file, offset);
  errno = ENOMEM;
  return MAP_FAILED;
}

/* "byte N " of a stripe, as sentences have it. */
static const char *place(struct store *store, uint32_t unit, unsigned stripe) {
  static char text[64];
  snprintf(text, sizeof text, "byte %llu of the file",
           (unsigned long long)store_unit(store, unit)->stripes[stripe].slot * store->stripe_bytes);
  return text;
}

/* The third of five writes fails once. */
static void kept(const char *fault, const char *error) {
  struct store *store = open_small(1, fault);
  uint32_t units[5];
  enum store_outcome outcomes[5];
  char why[200] = "";
  unsigned sentences = 0;
  for (unsigned i = 0; i < 5; i++) {
    units[i] = allocate(store);
    if (i == 2)
      break;
    outcomes[i] = put(store, units[i], 10 + i).outcome;
  }
  struct store_request request = put(store, units[2], 12);
  outcomes[2] = request.outcome;
  snprintf(why, sizeof why, "%s", request.why);
  tap_ok(outcomes[0] == STORE_OK && outcomes[1] == STORE_OK && outcomes[2] == STORE_KEPT &&
             strstr(why, "OFFLOAD_NVME: write at ") == why && strstr(why, directories[0]) &&
             strstr(why, place(store, units[2], 0)) && strstr(why, error) &&
             strstr(why, "kept in host memory"),
         "%s: the write is kept, and its path, place and error are told: %s", fault, why);
  const struct store_stats stats = store_stats(store);
  tap_ok(holds(store, units[0], 10) && holds(store, units[1], 11) && holds(store, units[2], 12) &&
             stats.kept_bytes == SMALL && stats.failed_directories == 1,
         "%s: all values are read, those that were kept too", fault);
  request = put(store, units[2], 99);
  sentences += *request.why != 0;
  tap_ok(request.outcome == STORE_KEPT && !sentences && holds(store, units[2], 99) &&
             store_stats(store).kept_bytes == SMALL &&
             store_stats(store).written_bytes == stats.written_bytes,
         "%s: what is kept is written again in memory, without a word", fault);
  uint32_t more;
  tap_ok(store_room(store) == 0 && !store_allocate(store, &more, why, sizeof why) &&
             strstr(why, "drives of all 1 directories failed"),
         "%s: nothing more is allocated there: %s", fault, why);
  store_release(store, units[2]);
  tap_ok(store_stats(store).kept_bytes == 0, "%s: released, it leaves the memory", fault);
  store_close(store);
}

/* Many writes side by side while every write fails: nothing is lost, and one sentence a drive is said. */
static void all_fail(void) {
  enum { COUNT = 6 };
  struct store_config config = config_of(first(2), LARGE, "write_eio=3+");
  struct store *store = open_store(&config);
  struct store_request requests[COUNT];
  uint32_t units[COUNT];
  unsigned kept_units = 0, told = 0;
  bool good = true;
  WAITED(waited);
  for (unsigned i = 0; i < COUNT; i++)
    units[i] = allocate(store);
  for (unsigned i = 0; i < COUNT; i++) {
    fill(slab + (size_t)i * LARGE, LARGE, 70 + i);
    start(store, &requests[i], &waited, true, units[i], slab + (size_t)i * LARGE);
  }
  wait_all(&waited);
  memset(slab, 0xee, slab_bytes);
  for (unsigned i = 0; i < COUNT; i++) {
    good = good && requests[i].outcome != STORE_FAILED;
    kept_units += requests[i].outcome == STORE_KEPT;
    told += *requests[i].why != 0;
  }
  tap_ok(good && kept_units >= COUNT - 1 && told >= 1 && told <= 2 &&
             store_stats(store).failed_directories >= told &&
             store_stats(store).kept_bytes == (uint64_t)kept_units * LARGE,
         "writes in flight when drives fail are all kept, and each drive is told once");
  for (unsigned i = 0; i < COUNT; i++)
    good = good && holds(store, units[i], 70 + i);
  tap_ok(good, "what was kept of many writes side by side is what is read");
  store_close(store);
}

static void others_live(void) {
  struct store *store = open_small(2, "write_eio=1,directory=0");
  uint32_t units[8];
  unsigned kept_units = 0;
  bool apart = true, good = true;
  for (unsigned i = 0; i < 8; i++) {
    units[i] = allocate(store);
    const unsigned directory = store_unit(store, units[i])->stripes[0].directory;
    apart = apart && (i < 2 || directory == 1);
    const enum store_outcome outcome = put(store, units[i], 20 + i).outcome;
    kept_units += outcome == STORE_KEPT;
    good = good && outcome == (directory == 0 ? STORE_KEPT : STORE_OK);
  }
  tap_ok(good && apart && kept_units == 1,
         "new units avoid a directory whose drive failed while another lives");
  for (unsigned i = 0; i < 8; i++)
    good = good && holds(store, units[i], 20 + i);
  tap_ok(good && store_stats(store).failed_directories == 1,
         "units of both directories are read after one's drive failed");
  store_close(store);
}

/* Reads and writes of several threads while one of two drives fails and the kernel answers this and that. */
static void fails_under_threads(void) {
  struct store *store =
      open_small(2, "write_eio=9+,write_short=4+,read_short=2+,eintr=3,eagain=7,directory=0");
  const bool good = work_side_by_side(store);
  const struct store_stats stats = store_stats(store);
  tap_ok(good && stats.failed_directories == 1 && !stats.kept_bytes && !stats.resident_bytes &&
             stats.written_bytes > (uint64_t)WORKERS * TURNS * SMALL / 2,
         "several threads lose nothing when one of two drives fails under them");
  store_close(store);
}

static void no_memory_to_keep(void) {
  struct store_config config = config_of(first(1), SMALL, "write_eio=2");
  config.limit_bytes = SMALL_UNITS * SMALL;
  config.checksums = false; /* they would notice as well */
  struct store *store = open_store(&config);
  const uint32_t unit = allocate(store);
  const bool before = put(store, unit, 4).outcome == STORE_OK;
  fill(slab, SMALL, 5);
  no_memory = true;
  const struct store_request request = once(store, true, unit);
  no_memory = false;
  tap_ok(before && request.outcome == STORE_FAILED &&
             strstr(request.why, "65536 bytes of host memory") && filled(slab, SMALL, 5),
         "without memory to keep a write in, it fails and its buffer has the values: %s",
         request.why);
  tap_ok(once(store, false, unit).outcome == STORE_FAILED,
         "what was lost can't be read, nor what was there before");
  store_close(store);
}

static void read_fails(void) {
  struct store *store = open_small(2, "read_eio=2");
  const uint32_t units[2] = {allocate(store), allocate(store)};
  bool good = put(store, units[0], 1).outcome == STORE_OK;
  good = good && put(store, units[1], 2).outcome == STORE_OK && holds(store, units[0], 1);
  const struct store_request request = once(store, false, units[1]);
  const unsigned directory = store_unit(store, units[1])->stripes[0].directory;
  tap_ok(good && request.outcome == STORE_FAILED && strstr(request.why, "OFFLOAD_NVME: read at ") &&
             strstr(request.why, place(store, units[1], 0)) &&
             strstr(request.why, directories[directory]) &&
             strstr(request.why, "Input/output error") &&
             store_stats(store).failed_directories == 1,
         "a failed read tells path, place and error: %s", request.why);
  store_close(store);
}

/* Borne without a word: all values come back. */
static void borne(const char *fault) {
  struct store *store = open_small(2, fault);
  uint32_t units[4];
  bool good = true;
  for (unsigned i = 0; i < 4; i++) {
    units[i] = allocate(store);
    const struct store_request request = put(store, units[i], 30 + i);
    good = good && request.outcome == STORE_OK && !*request.why;
  }
  for (unsigned i = 0; i < 4; i++)
    good = good && holds(store, units[i], 30 + i);
  uint64_t counted = 0, again = 0;
  for (int kind = 0; kind < FAULT_KINDS; kind++)
    if (store->faults.kinds[kind].at &&
        store->faults.kinds[kind].count >= store->faults.kinds[kind].at)
      counted++;
  for (unsigned i = 0; i < 2; i++) {
    const struct engine_stats stats = engine_stats(store->directories[i].engine);
    again += stats.resubmitted + stats.retried;
  }
  tap_ok(good && counted && again >= counted, "%s: borne without a word, and no byte is lost",
         fault);
  store_close(store);
}

static void flipped(bool checksums) {
  struct store_config config = config_of(first(2), SMALL, "read_flip=2");
  config.limit_bytes = SMALL_UNITS * SMALL;
  config.checksums = checksums;
  struct store *store = open_store(&config);
  const uint32_t units[2] = {allocate(store), allocate(store)};
  put(store, units[0], 1);
  put(store, units[1], 2);
  const bool first_good = holds(store, units[0], 1);
  const struct store_request request = once(store, false, units[1]);
  const unsigned directory = store_unit(store, units[1])->stripes[0].directory;
  if (checksums)
    tap_ok(first_good && request.outcome == STORE_FAILED &&
               strstr(request.why, directories[directory]) &&
               strstr(request.why, place(store, units[1], 0)) &&
               strstr(request.why, "not what was written") && store_stats(store).checksum_ns > 0 &&
               store_directory_failed(store, directory),
           "a flipped bit is noticed by its checksum: %s", request.why);
  else
    tap_ok(first_good && request.outcome == STORE_OK && !filled(slab, SMALL, 2) &&
               store_stats(store).checksum_ns == 0,
           "without checksums, a flipped bit passes, and no time is spent");
  store_close(store);
}

/* Each stripe of a large unit in its turn. */
static void overwritten(void) {
  struct store_config config = config_of(first(2), LARGE, "");
  struct store *store = open_store(&config);
  const uint32_t unit = allocate(store);
  bool good = put(store, unit, 8).outcome == STORE_OK && store->stripes > 1;
  for (unsigned s = 0; s < store->stripes; s++) {
    const struct store_stripe *stripe = &store_unit(store, unit)->stripes[s];
    const int file = store->directories[stripe->directory].file.file;
    const off_t at = (off_t)(stripe->slot * (uint64_t)store->stripe_bytes);
    unsigned char *block = slab + slab_bytes - 4096;
    good = good && pread(file, block, 4096, at) == 4096;
    block[17] ^= 0x40;
    good = good && pwrite(file, block, 4096, at) == 4096;
    const struct store_request request = once(store, false, unit);
    good = good && request.outcome == STORE_FAILED && strstr(request.why, place(store, unit, s)) &&
           strstr(request.why, directories[stripe->directory]);
    block[17] ^= 0x40;
    good = good && pwrite(file, block, 4096, at) == 4096 && holds(store, unit, 8);
  }
  tap_ok(good, "a bit that changed in the file is noticed in whichever stripe it is");
  store_close(store);
}

static void no_space(void) {
  char why[300] = "";
  uint32_t units[4];
  struct store *store = open_small(1, "allocate_enospc=1+");
  tap_ok(!store_allocate(store, &units[0], why, sizeof why) &&
             strstr(why, "OFFLOAD_NVME: ") == why && strstr(why, directories[0]) &&
             strstr(why, "No space left") && strstr(why, "free some") && store_room(store) == 0 &&
             store_stats(store).resident_bytes == 0,
         "no space at the start: nothing is allocated: %s", why);
  store_close(store);
  store = open_small(1, "allocate_enospc=4+");
  bool good = true;
  for (unsigned i = 0; i < 3; i++) {
    units[i] = allocate(store);
    good = good && put(store, units[i], i).outcome == STORE_OK;
  }
  good = good && !store_allocate(store, &units[3], why, sizeof why) &&
         strstr(why, "No space left") && store_room(store) == 0;
  for (unsigned i = 0; i < 3; i++)
    good = good && holds(store, units[i], i);
  store_release(store, units[1]);
  good = good && store_room(store) == 1 && store_allocate(store, &units[1], why, sizeof why) &&
         put(store, units[1], 40).outcome == STORE_OK && holds(store, units[1], 40);
  tap_ok(good && !store_stats(store).failed_directories,
         "no space in the middle: what is there stays, is read, and is used again");
  store_close(store);
  store = open_small(2, "allocate_enospc=2+,directory=0");
  unsigned of[2] = {0};
  for (unsigned i = 0; i < SMALL_UNITS; i++)
    of[store_unit(store, allocate(store))->stripes[0].directory]++;
  tap_ok(of[0] == 1 && of[1] == SMALL_UNITS - 1,
         "no space in one directory: the other takes what comes");
  store_close(store);
}

static void slow(void) {
  enum { COUNT = 8, US = 20000 };
  struct store *store = open_small(1, "slow_us=20000");
  struct store_request requests[COUNT];
  WAITED(waited);
  bool good = true;
  uint32_t units[COUNT];
  for (unsigned i = 0; i < COUNT; i++) {
    units[i] = allocate(store);
    fill(slab + (size_t)i * SMALL, SMALL, 60 + i);
  }
  const uint64_t begun = clock_now_ns();
  for (unsigned i = 0; i < COUNT; i++)
    start(store, &requests[i], &waited, true, units[i], slab + (size_t)i * SMALL);
  const uint64_t asked = clock_now_ns() - begun;
  wait_all(&waited);
  const uint64_t taken = clock_now_ns() - begun;
  for (unsigned i = 0; i < COUNT; i++)
    good = good && requests[i].outcome == STORE_OK && holds(store, units[i], 60 + i);
  /* One after the other on a ring's thread; of threads, that may do all side by side, at least one sleeps. */
  const uint64_t least =
      store_stats(store).rung == ENGINE_THREADS ? US * 1000ull : COUNT * US * 1000ull;
  tap_ok(good && taken >= least && asked < taken, "a slow drive is waited for, not by who asks");
  store_close(store);
}

int main(void) {
  if (!make_directories("nvme-faults", (size_t)6 * LARGE)) {
    tap_skip("units are stored in files of the build's folder",
             "the build's folder is on a file system that can't hold state");
    return tap_done();
  }
  kept("write_eio=3", "Input/output error");
  kept("write_enospc=3", "No space left");
  all_fail();
  others_live();
  fails_under_threads();
  no_memory_to_keep();
  read_fails();
  static const char *const harmless[] = {"read_short=2",     "write_short=2",
                                         "eintr=1",          "eagain=3",
                                         "eintr=2,eagain=5", "read_short=1,write_short=1"};
  for (unsigned i = 0; i < sizeof harmless / sizeof *harmless; i++)
    borne(harmless[i]);
  flipped(true);
  flipped(false);
  overwritten();
  no_space();
  slow();
  return tap_done();
}
