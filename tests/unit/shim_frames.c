/* shim/frames: pieces come to frames, are used and written behind, and never lose a value. Each case runs in a child, on the simulated
   driver and on a store of the test's (frames_fake.h) or the real one in the build's folder. */
#define _GNU_SOURCE
#include "frames_fake.h"
#include "memory_support.h"
#include "nvme/files.h"
#include "shim/frames_set.h"
#include "shim/worker.h"
#include "tests/lib/tap.h"
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>

enum { FRAMES = 16, UNITS = 48, PART = 3, SOON = 5 };
static const uint64_t soon_ns = SOON * (uint64_t)1000000000;

static char directory[4096];
static CUcontext context;
static struct frames *frames;

static void nap_ms(long ms) {
  nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* So many frames of the context that is current. */
static bool begin(unsigned count) {
  char why[320] = "";
  config.nvme = directory;
  config.nvme_staging = (struct config_size){.bytes = (size_t)count * PIECE, .set = true};
  config.nvme_checksum = true;
  config.local_ranks = 1;
  (void)driver.cuCtxGetCurrent(&context);
  frames = frames_of(context, PIECE, why, sizeof why);
  if (!frames)
    printf("# %s\n", why);
  return frames && frames_count(frames) == count && frames_find(context) == frames;
}

static void mark(void *frame, uint32_t unit, uint32_t version) {
  uint32_t *words = frame;
  for (uint32_t i = 0; i < PIECE / 4; i++)
    words[i] = (unit * 2654435761u) ^ (version * 40503u) ^ (i << 3);
}

static bool marked(const void *frame, uint32_t unit, uint32_t version) {
  const uint32_t *words = frame;
  uint32_t i = 0;
  while (i < PIECE / 4 && words[i] == ((unit * 2654435761u) ^ (version * 40503u) ^ (i << 3)))
    i++;
  return i == PIECE / 4;
}

static bool allocate(uint32_t *unit) {
  char why[320] = "";
  const bool good = __wrap_store_allocate(frames_store(), unit, why, sizeof why);
  if (!good)
    printf("# %s\n", why);
  return good;
}

/* A ticket for so many units, under way. */
static struct ticket *ask(enum ticket_kind kind, const uint32_t *units, unsigned count, void **at) {
  struct ticket *ticket = ticket_make(frames, kind);
  for (unsigned i = 0; i < count; i++)
    if (!(at[i] = ticket_add(ticket, units[i], false)))
      return NULL;
  ticket_go(ticket);
  return ticket;
}

/* The same for one, and waits for it. */
static struct ticket *have(uint32_t unit, void **at) {
  struct ticket *ticket = ask(TICKET_STEP, &unit, 1, at);
  return ticket && ticket_wait(ticket, soon_ns, NULL) == TICKET_READY ? ticket : NULL;
}

/* Brings a new unit, as version 1 of it. */
static bool bring(uint32_t *unit) {
  if (!allocate(unit))
    return false;
  struct ticket *ticket = ticket_make(frames, TICKET_ALONE);
  void *at = ticket_add(ticket, *unit, true);
  ticket_go(ticket);
  if (!at || ticket_wait(ticket, soon_ns, NULL) != TICKET_READY)
    return false;
  mark(at, *unit, 1);
  ticket_release(ticket, true);
  return true;
}

static bool bring_all(uint32_t *units, unsigned count) {
  for (unsigned i = 0; i < count; i++)
    if (!bring(&units[i]))
      return false;
  return true;
}

/* Until no ticket is open, and the store has nothing to do. */
static bool quiet(void) {
  const uint64_t end = frames_end_ns(soon_ns);
  pthread_mutex_lock(&frames->lock);
  while ((frames->open || frames->under_way) && frames_now_ns() < end)
    frames_doze(frames, end);
  const bool good = !frames->open && !frames->under_way;
  pthread_mutex_unlock(&frames->lock);
  return good;
}

#define TOTAL(name) atomic_load(&report.totals.name)

/* ---- what it is for ---- */

/* Every unit's piece goes round a few times. */
static const char *round_trips(void) {
  uint32_t units[UNITS];
  CHECK(begin(FRAMES) && bring_all(units, UNITS));
  for (uint32_t version = 1; version < 5; version++)
    for (unsigned i = 0; i < UNITS; i += PART) {
      void *at[PART];
      struct ticket *ticket = ask(TICKET_STEP, units + i, PART, at);
      CHECK(ticket && ticket_wait(ticket, soon_ns, NULL) == TICKET_READY);
      for (unsigned k = 0; k < PART; k++) {
        CHECK(marked(at[k], units[i + k], version));
        mark(at[k], units[i + k], version + 1);
      }
      ticket_release(ticket, true);
    }
  CHECK(quiet());
  const uint64_t pieces = 4 * UNITS;
  CHECK(TOTAL(drive_read_bytes) >= (pieces - pieces / 2) * PIECE);
  CHECK(TOTAL(drive_read_bytes) + TOTAL(drive_hit_bytes) == pieces * PIECE);
  while (TOTAL(drive_written_bytes) < (pieces + UNITS) * PIECE)
    nap_ms(1);
  CHECK(TOTAL(drive_written_bytes) == (pieces + UNITS) * PIECE);
  CHECK(TOTAL(drive_write_failures) == 0 && !*frames_lost());
  CHECK(!fake_store || (fake.reads * PIECE == TOTAL(drive_read_bytes) && !fake.broken));
  return NULL;
}

/* More tickets than frames, made before the first piece is there. */
static const char *chain(void) {
  enum { TICKETS = UNITS / PART };
  uint32_t units[UNITS];
  void *at[TICKETS][PART];
  struct ticket *tickets[TICKETS];
  CHECK(begin(FRAMES) && bring_all(units, UNITS) && quiet());
  fake.hold = true;
  const unsigned reads = fake.reads;
  unsigned shared = 0;
  for (unsigned i = 0; i < TICKETS; i++) {
    CHECK((tickets[i] = ask(TICKET_STEP, units + i * PART, PART, at[i])));
    for (unsigned k = 0; k < i * PART; k++)
      shared += at[i][0] == at[k / PART][k % PART];
  }
  CHECK(shared >= TICKETS - FRAMES / PART && fake.reads == reads);
  CHECK(ticket_state(tickets[TICKETS - 1]) == TICKET_WAITING);
  fake_go();
  for (unsigned i = 0; i < TICKETS; i++) {
    CHECK(ticket_wait(tickets[i], soon_ns, NULL) == TICKET_READY);
    for (unsigned k = 0; k < PART; k++) {
      CHECK(marked(at[i][k], units[i * PART + k], 1));
      mark(at[i][k], units[i * PART + k], 2);
    }
    ticket_release(tickets[i], true);
  }
  CHECK(quiet() && !fake.broken);
  for (unsigned i = 0; i < UNITS; i++) {
    struct ticket *ticket = have(units[i], at[0]);
    CHECK(ticket && marked(at[0][0], units[i], 2));
    ticket_release(ticket, false);
  }
  return NULL;
}

static const char *still_there(void) {
  uint32_t unit;
  void *at, *again;
  CHECK(begin(FRAMES) && bring(&unit) && quiet());
  const unsigned writes = fake.unit_writes[unit];
  struct ticket *first = have(unit, &at);
  CHECK(first && TOTAL(drive_hit_bytes) == PIECE && fake.reads == 0);
  struct ticket *second = have(unit, &again);
  CHECK(second && again == at && TOTAL(drive_hit_bytes) == 2 * PIECE);
  mark(at, unit, 2);
  ticket_release(first, true);
  CHECK(fake.waiting == 0 && fake.unit_writes[unit] == writes); /* the other one may write yet */
  mark(at, unit, 3);
  fake.hold = true;
  ticket_release(second, true);
  CHECK(fake_holds(1));
  /* While it is written it is left alone. */
  struct ticket *third = ask(TICKET_STEP, &unit, 1, &again);
  CHECK(third && again == at && ticket_wait(third, 20000000, NULL) == TICKET_WAITING);
  fake_go();
  CHECK(ticket_wait(third, soon_ns, NULL) == TICKET_READY && marked(at, unit, 3));
  ticket_release(third, false);
  CHECK(quiet() && fake.unit_writes[unit] == writes + 1 && fake.reads == 0 && !fake.broken);
  CHECK(marked(fake_unit(unit), unit, 3));
  const uint64_t hits = TOTAL(drive_hit_bytes);
  struct ticket *dropped = ticket_make(frames, TICKET_STEP);
  CHECK(ticket_add(dropped, unit, false) == at);
  ticket_drop(dropped);
  CHECK(hits == 3 * PIECE && TOTAL(drive_hit_bytes) == hits);
  return NULL;
}

static const char *alone(void) {
  uint32_t unit;
  void *at[4];
  CHECK(begin(FRAMES) && bring(&unit) && quiet());
  struct ticket *before = have(unit, &at[0]), *with = have(unit, &at[1]);
  CHECK(before && with);
  struct ticket *one = ask(TICKET_ALONE, &unit, 1, &at[2]);
  struct ticket *after = ask(TICKET_STEP, &unit, 1, &at[3]);
  CHECK(one && after && at[0] == at[2] && at[2] == at[3]);
  ticket_release(before, true);
  CHECK(ticket_wait(one, 20000000, NULL) == TICKET_WAITING);
  ticket_release(with, true);
  CHECK(ticket_wait(one, soon_ns, NULL) == TICKET_READY);
  CHECK(ticket_wait(after, 20000000, NULL) == TICKET_WAITING);
  ticket_release(one, false);
  CHECK(ticket_wait(after, soon_ns, NULL) == TICKET_READY);
  ticket_release(after, false);
  CHECK(quiet() && fake.unit_writes[unit] ==
                       2); /* what was written is so although the last one wrote nothing */
  return NULL;
}

static const char *bounded(void) {
  uint32_t units[UNITS];
  void *at;
  CHECK(begin(FRAMES) && bring_all(units, UNITS) && quiet());
  struct ticket *ticket = ticket_make(frames, TICKET_STEP);
  for (unsigned i = 0; i < FRAMES / 2; i++)
    CHECK(ticket_add(ticket, units[i], false));
  CHECK(!ticket_add(ticket, units[FRAMES / 2], false));
  CHECK(ticket_add(ticket, units[0], false) &&
        ticket_add(ticket, units[0], false) == ticket_add(ticket, units[0], true));
  const unsigned reads = fake.reads;
  ticket_drop(ticket);
  CHECK(quiet() && fake.reads == reads && fake.broken == 0);
  for (unsigned i = 0; i < UNITS; i++) {
    CHECK((ticket = have(units[i], &at)) && marked(at, units[i], 1));
    ticket_release(ticket, false);
  }
  return NULL;
}

/* ---- waiting ---- */

static void *go_later(void *unused) {
  (void)unused;
  nap_ms(40);
  fake_go();
  return NULL;
}

static void *give_up_later(void *give_up) {
  nap_ms(40);
  atomic_store((_Atomic bool *)give_up, true);
  return NULL;
}

/* Brings units so that the first ones are in no frame, nor kept for the frame's sake. */
static bool far(uint32_t *units) {
  uint32_t ballast[FRAMES];
  return bring_all(ballast, FRAMES) && bring_all(units, UNITS) && quiet();
}

static const char *waits(void) {
  uint32_t units[UNITS];
  void *at;
  pthread_t thread;
  _Atomic bool give_up = false;
  CHECK(begin(FRAMES) && far(units));
  for (unsigned i = 0; i < 2; i++) {
    fake.hold = true;
    struct ticket *ticket = ask(TICKET_STEP, &units[i], 1, &at);
    CHECK(ticket && fake_holds(1) && ticket_wait(ticket, 1000000, NULL) == TICKET_WAITING);
    pthread_create(&thread, NULL, go_later, NULL);
    CHECK(ticket_wait(ticket, i ? UINT64_MAX : UINT64_MAX / 4, NULL) == TICKET_READY);
    CHECK(marked(at, units[i], 1));
    pthread_join(thread, NULL);
    ticket_release(ticket, false);
  }
  fake.hold = true;
  struct ticket *ticket = ask(TICKET_STEP, &units[2], 1, &at);
  pthread_create(&thread, NULL, give_up_later, &give_up);
  CHECK(ticket_wait(ticket, UINT64_MAX / 4, &give_up) == TICKET_WAITING);
  pthread_join(thread, NULL);
  ticket_release(ticket, true); /* while its read is under way: that ends in a frame of nobody's */
  fake_go();
  CHECK(quiet());
  const unsigned reads = fake.reads;
  CHECK((ticket = have(units[2], &at)) && marked(at, units[2], 1) && fake.reads == reads);
  ticket_release(ticket, false);
  CHECK(quiet() && fake.unit_writes[units[2]] == 1);
  return NULL;
}

/* ---- drives that fail ---- */

static const char *read_fails(void) {
  uint32_t units[UNITS];
  void *at[2];
  CHECK(begin(FRAMES) && far(units) && !*frames_lost());
  fake.read_fails = (int)units[1];
  struct ticket *ticket = ask(TICKET_STEP, units, 2, at);
  CHECK(ticket && ticket_wait(ticket, soon_ns, NULL) == TICKET_FAILED);
  CHECK(strstr(ticket_why(ticket), "can't read unit") && strstr(frames_lost(), "can't read unit"));
  ticket_release(ticket, true);
  CHECK(quiet() && fake.unit_writes[units[1]] == 1);
  fake.read_fails = -1; /* what a drive answers once it does, e.g. after a cable was pushed in */
  CHECK((ticket = have(units[1], at)) && marked(at[0], units[1], 1));
  ticket_release(ticket, false);
  CHECK(quiet() && !fake.broken);
  return NULL;
}

static const char *write_kept(void) {
  uint32_t units[UNITS];
  void *at;
  CHECK(begin(FRAMES) && far(units));
  fake.write_kept = (int)units[3];
  struct ticket *ticket = have(units[3], &at);
  CHECK(ticket);
  mark(at, units[3], 2);
  ticket_release(ticket, true);
  CHECK(quiet());
  while (!TOTAL(drive_write_failures))
    nap_ms(1);
  CHECK(TOTAL(drive_write_failures) == 1 && !*frames_lost());
  for (unsigned i = 0; i < UNITS; i++) {
    CHECK((ticket = have(units[i], &at)) && marked(at, units[i], i == 3 ? 2 : 1));
    ticket_release(ticket, false);
  }
  CHECK(reported("refused unit"));
  return NULL;
}

/* The frame is the only place where the piece is: who waits behind it is told so, and nothing is lost. */
static const char *write_fails(void) {
  enum { TICKETS = 40 };
  uint32_t units[UNITS];
  void *at, *others[TICKETS], *again;
  struct ticket *behind[TICKETS];
  unsigned failed = 0;
  CHECK(begin(FRAMES) && far(units));
  struct ticket *ticket = have(units[0], &at);
  CHECK(ticket);
  for (unsigned i = 0; i < TICKETS; i++)
    CHECK((behind[i] = ask(TICKET_STEP, &units[i + 1], 1, &others[i])));
  struct ticket *same = ask(TICKET_STEP, &units[0], 1, &again);
  CHECK(same && again != at); /* the first one's frame has another tenant next */
  mark(at, units[0], 2);
  fake.write_fails = (int)units[0];
  ticket_release(ticket, true);
  CHECK(ticket_wait(same, soon_ns, NULL) == TICKET_FAILED);
  CHECK(strstr(ticket_why(same), "can't write unit"));
  for (unsigned i = 0; i < TICKETS; i++) {
    const enum ticket_state state = ticket_wait(behind[i], soon_ns, NULL);
    CHECK(state == (others[i] == at ? TICKET_FAILED : TICKET_READY));
    failed += state == TICKET_FAILED;
    ticket_release(behind[i], false);
  }
  CHECK(failed > 0 && *frames_lost());
  ticket_release(same, false);
  CHECK(reported("can't write unit"));
  for (unsigned i = 1; i < UNITS; i++) { /* its frame is no other's */
    CHECK((ticket = have(units[i], &again)) && again != at && marked(again, units[i], 1));
    ticket_release(ticket, false);
  }
  CHECK((ticket = have(units[0], &again)) && again == at && marked(at, units[0], 2));
  fake.write_fails = -1;
  mark(at, units[0], 3);
  ticket_release(ticket, true);
  CHECK(quiet() && marked(fake_unit(units[0]), units[0], 3));
  fake.write_fails = (int)units[5];
  CHECK((ticket = have(units[5], &at)));
  ticket_release(ticket, true);
  CHECK(quiet());
  frames_forget_unit(frames, units[5]); /* gives the frame back */
  for (unsigned round = 0, found = 0; round < 2; round++) {
    for (unsigned i = 6; i < UNITS; i++) {
      CHECK((ticket = have(units[i], &again)) && marked(again, units[i], 1));
      found += again == at;
      ticket_release(ticket, false);
    }
    CHECK(found);
  }
  CHECK(!fake.broken);
  return NULL;
}

/* ---- the keeper ---- */

enum { WATCHED = 60, WORDS = 3 };

/* Does to frames what a stream would, when the words say that it may. */
struct device {
  struct gate_words words[WORDS];
  void *at[WATCHED];
  uint32_t units[WATCHED], versions[WATCHED];
  bool wrong;
};

static void *be_device(void *argument) {
  struct device *device = argument;
  for (unsigned i = 0; i < WATCHED; i++) {
    struct gate_words *words = &device->words[i % WORDS];
    const uint32_t generation = i / WORDS + 1;
    while (atomic_load_explicit(&words->ready, memory_order_acquire) != generation)
      nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    device->wrong |= atomic_load(&words->status) != slot_status(generation, SLOT_APPLY) ||
                     !marked(device->at[i], device->units[i], device->versions[i]);
    mark(device->at[i], device->units[i], device->versions[i] + 1);
    atomic_store_explicit(&words->down, generation, memory_order_release);
  }
  return NULL;
}

static const char *watched(void) {
  uint32_t units[UNITS], versions[UNITS];
  char why[256];
  pthread_t thread;
  static struct device device;
  CHECK(begin(FRAMES) && far(units));
  CHECK(frames_stream_ready(frames, why, sizeof why) &&
        frames_stream_ready(frames, why, sizeof why));
  for (unsigned i = 0; i < UNITS; i++)
    versions[i] = 1;
  for (unsigned i = 0; i < WATCHED; i++) {
    const unsigned k = i * 7 % UNITS;
    device.units[i] = units[k];
    device.versions[i] = versions[k]++;
  }
  for (unsigned i = 0; i < WATCHED; i++) {
    struct gate_words *words = &device.words[i % WORDS];
    if (i == WORDS)
      pthread_create(&thread, NULL, be_device, &device);
    while (i >= WORDS && atomic_load(&words->down) != i / WORDS)
      nap_ms(1);
    struct ticket *ticket = ask(TICKET_STEP, &device.units[i], 1, &device.at[i]);
    CHECK(ticket);
    ticket_watch(ticket, words, i / WORDS + 1);
  }
  pthread_join(thread, NULL);
  CHECK(!device.wrong && quiet() && fake.writes == FRAMES + UNITS + WATCHED && !fake.broken);
  for (unsigned i = 0; i < UNITS; i++) {
    void *at;
    struct ticket *ticket = have(units[i], &at);
    CHECK(ticket && marked(at, units[i], versions[i]));
    ticket_release(ticket, false);
  }
  return NULL;
}

static const char *watch_fails(void) {
  uint32_t units[UNITS];
  char why[256];
  void *at;
  static struct gate_words words[2];
  CHECK(begin(FRAMES) && far(units) && frames_stream_ready(frames, why, sizeof why));
  fake.read_fails = (int)units[0];
  for (unsigned i = 0; i < 2; i++) {
    struct ticket *ticket = ask(TICKET_STEP, &units[i], 1, &at);
    CHECK(ticket);
    ticket_watch(ticket, &words[i], 7);
  }
  while (atomic_load(&words[0].ready) != 7 || atomic_load(&words[1].ready) != 7)
    nap_ms(1);
  CHECK(atomic_load(&words[0].status) == slot_status(7, SLOT_FAILED));
  CHECK(atomic_load(&words[1].status) == slot_status(7, SLOT_APPLY));
  CHECK(stopped);                        /* nobody else says so before the trap */
  CHECK(!frames_idle(frames, 20000000)); /* the second one waits for the device */
  atomic_store(&words[1].down, 7);
  CHECK(quiet());
  return NULL;
}

/* ---- forgetting ---- */

static _Atomic bool forgotten;
static uint32_t forget_this;

static void *forget(void *unused) {
  (void)unused;
  frames_forget_unit(frames, forget_this);
  forgotten = true;
  return NULL;
}

static const char *unit_forgotten(void) {
  uint32_t units[3];
  void *at, *other;
  pthread_t thread;
  CHECK(begin(FRAMES) && bring_all(units, 3) && quiet());
  fake.hold = true;
  struct ticket *ticket = have(units[0], &at);
  CHECK(ticket);
  ticket_release(ticket, true);
  CHECK(fake_holds(1));
  forget_this = units[0];
  pthread_create(&thread, NULL, forget, NULL);
  nap_ms(30);
  CHECK(!forgotten && fake.released == 0);
  fake_go();
  pthread_join(thread, NULL);
  CHECK(fake.released == 1 && !fake.broken);
  CHECK((ticket = have(units[1], &at)));
  CHECK((other = at, ticket_release(ticket, false), true));
  frames_forget_unit(frames, units[1]);
  CHECK(fake.released == 2 && fake.unit_writes[units[1]] == 1);
  uint32_t unit;
  CHECK(bring(&unit) && unit == units[0]); /* a number that comes again is another unit */
  CHECK((ticket = have(unit, &at)) && marked(at, unit, 1));
  ticket_release(ticket, false);
  CHECK(quiet() && !fake.broken && other);
  return NULL;
}

static void *wait_and_let_go(void *ticket) {
  const enum ticket_state state = ticket_wait(ticket, UINT64_MAX / 4, NULL);
  ticket_release(ticket, true);
  return (void *)(uintptr_t)(state == TICKET_FAILED);
}

static bool mapped(const void *at) {
  return !msync((void *)(uintptr_t)at, 4096, MS_ASYNC) || errno != ENOMEM;
}

static const char *context_gone(void) {
  uint32_t units[UNITS];
  char why[320];
  void *at, *failed = NULL, *again;
  pthread_t thread;
  static struct gate_words words;
  CHECK(begin(FRAMES) && far(units) && frames_stream_ready(frames, why, sizeof why));
  CUcontext second;
  CHECK(!driver.cuDevicePrimaryCtxRetain(&second, 1));
  struct frames *others = frames_of(second, PIECE, why, sizeof why);
  CHECK(others && others != frames && frames_find(second) == others);
  struct ticket *theirs = ticket_make(others, TICKET_STEP);
  void *there = ticket_add(theirs, units[5], false);
  ticket_go(theirs);
  CHECK(there && ticket_wait(theirs, soon_ns, NULL) == TICKET_READY && marked(there, units[5], 1));
  ticket_release(theirs, false);
  /* One that a thread waits for, one that waits for the device. */
  struct ticket *seen = have(units[1], &at);
  CHECK(seen);
  ticket_watch(seen, &words, 1);
  fake.hold = true;
  struct ticket *ticket = ask(TICKET_STEP, &units[0], 1, &at);
  pthread_create(&thread, NULL, wait_and_let_go, ticket);
  nap_ms(20);
  pthread_t go;
  pthread_create(&go, NULL, go_later, NULL);
  frames_forget_context(context, true);
  pthread_join(thread, &failed);
  pthread_join(go, NULL);
  CHECK(failed && !frames_find(context) && frames_find(second) == others && mapped(at));
  CHECK(fake.unit_writes[units[0]] == 1 && fake.unit_writes[units[1]] == 1);
  frames_forget_context(second, false);
  CHECK(!mapped(there) && !frames_find(second));
  CHECK(!driver.cuDevicePrimaryCtxRelease_v2(0) && !driver.cuDevicePrimaryCtxRetain(&context, 0));
  CHECK(!driver.cuCtxSetCurrent(context) && begin(FRAMES));
  struct ticket *anew = have(units[0], &again);
  CHECK(anew && again >= (void *)frames->memory.base && marked(again, units[0], 1));
  ticket_release(anew, false);
  return NULL;
}

static const char *context_goes(void) {
  uint32_t units[UNITS];
  void *at;
  CHECK(begin(FRAMES) && far(units));
  fake.hold = true;
  struct ticket *ticket = have(units[UNITS - 1], &at);
  CHECK(ticket);
  mark(at, units[UNITS - 1], 2);
  ticket_release(ticket, true);
  CHECK(fake_holds(1));
  pthread_t go;
  pthread_create(&go, NULL, go_later, NULL);
  frames_forget_context(context, false); /* waits for the write */
  pthread_join(go, NULL);
  CHECK(fake.waiting == 0 && marked(fake_unit(units[UNITS - 1]), units[UNITS - 1], 2));
  CHECK(begin(FRAMES)); /* registered again, so it wasn't any more */
  CHECK((ticket = have(units[UNITS - 1], &at)) && marked(at, units[UNITS - 1], 2));
  ticket_release(ticket, false);
  return NULL;
}

static const char *failed_set(void) {
  uint32_t units[UNITS];
  void *at;
  CHECK(begin(FRAMES) && far(units));
  fake.hold = true;
  struct ticket *ticket = ask(TICKET_STEP, &units[0], 1, &at);
  frames_fail(frames);
  CHECK(ticket_wait(ticket, soon_ns, NULL) == TICKET_FAILED && *ticket_why(ticket));
  ticket_release(ticket, true);
  fake_go();
  CHECK(quiet() && fake.unit_writes[units[0]] == 1 && !*frames_lost());
  return NULL;
}

static const char *child(void) {
  uint32_t unit;
  void *at;
  int status = -1;
  CHECK(begin(FRAMES) && bring(&unit) && quiet());
  struct ticket *ticket = have(unit, &at);
  CHECK(ticket);
  const pid_t pid = fork();
  if (!pid) {
    frames_forked();
    frames_forked(); /* as its own child does */
    _exit(fake.forked == 1 && !frames_store() && !mapped(at) ? 0 : 1);
  }
  CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
  CHECK(mapped(at) && marked(at, unit, 1) && frames_store());
  ticket_release(ticket, false);
  return NULL;
}

static void *open_slowly(void *unused) {
  (void)whole_driver()->cuCtxPushCurrent_v2(context);
  return begin(FRAMES) ? unused : &frames;
}

/* The child of a thread that forks while another opens the store must know of its descriptors. */
static const char *child_of_opening(void) {
  pthread_t opener;
  void *failed;
  (void)driver.cuCtxGetCurrent(&context);
  fake.slow_open = true;
  CHECK(!pthread_create(&opener, NULL, open_slowly, NULL));
  while (!fake.opening)
    nap_ms(1);
  CHECK(!frames_store());
  frames_before_fork();
  const pid_t pid = fork();
  if (!pid) {
    frames_forked();
    frames_before_fork(); /* as its own fork does */
    frames_after_fork();
    _exit(fake.forked == 1 ? 0 : 1);
  }
  frames_after_fork();
  int status = -1;
  CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
  CHECK(!pthread_join(opener, &failed) && !failed);
  return NULL;
}

/* ---- making ---- */

static size_t pin_most, pinned, pin_calls;

static CUresult pin_some(void *at, size_t bytes, unsigned flags) {
  pin_calls++;
  if (pinned + bytes > pin_most)
    return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = whole_driver()->cuMemHostRegister_v2(at, bytes, flags);
  pinned += result ? 0 : bytes;
  return result;
}

static const char *less_memory(void) {
  uint32_t units[UNITS];
  char why[320];
  pin_most = 40 * PIECE;
  driver.cuMemHostRegister_v2 = pin_some;
  config.nvme = directory;
  config.nvme_staging.bytes = 100 * PIECE;
  CHECK(!driver.cuCtxGetCurrent(&context));
  CHECK((frames = frames_of(context, PIECE, why, sizeof why)));
  CHECK(frames_count(frames) == 25 && frames_piece_bytes(frames) == PIECE && pin_calls == 3);
  CHECK(bring_all(units, UNITS));
  return NULL;
}

static const char *in_parts(void) {
  enum { COUNT = (40 << 20) / PIECE };
  uint32_t unit;
  void *at;
  CHECK(begin(COUNT) && bring(&unit));
  struct ticket *ticket = have(unit, &at);
  CHECK(ticket);
  ticket_release(ticket, false);
  frames_forget_context(context, false);
  CHECK(begin(COUNT)); /* every part can be registered again */
  return NULL;
}

/* Why there are none, at the first question and at the next. */
static bool refused(const char *part) {
  char why[320] = "", again[320] = "";
  config.nvme = directory;
  (void)driver.cuCtxGetCurrent(&context);
  const bool none = !frames_of(context, PIECE, why, sizeof why) && !frames_find(context) &&
                    !frames_of(context, PIECE, again, sizeof again);
  if (!none || !strstr(why, part) || strcmp(why, again) != 0)
    printf("# said: %s\n", why);
  return none && strstr(why, part) && !strcmp(why, again);
}

static const char *refusals(void) {
  config.nvme_staging.bytes = 15 * PIECE;
  CHECK(refused(
      "OFFLOAD_NVME_STAGING=983040 is too small for 16 pieces: set it to at least 1048576"));
  frames_forget_context(context, true);
  config.nvme_staging.bytes = 64 * PIECE;
  budget_bytes = 15 * PIECE;
  CHECK(refused("983040 bytes for staging"));
  frames_forget_context(context, true);
  budget_bytes = 1u << 30;
  pin_most = 15 * PIECE;
  driver.cuMemHostRegister_v2 = pin_some;
  CHECK(refused("can't pin 1048576 bytes"));
  frames_forget_context(context, true);
  CHECK(pinned == 0);
  driver.cuMemHostRegister_v2 = whole_driver()->cuMemHostRegister_v2;
  fake.refuse_open = true;
  CHECK(refused("the fake drive is not there"));
  frames_forget_context(context, true);
  fake.refuse_open = false;
  CHECK(begin(20));
  char why[320];
  CHECK(!frames_of(context, 2 * PIECE, why, sizeof why) && *why);
  budget_bytes = 20 * PIECE; /* what is asked for within what there is */
  CUcontext second;
  CHECK(!driver.cuDevicePrimaryCtxRetain(&second, 1));
  config.nvme_staging.bytes = 64 * PIECE;
  CHECK((frames = frames_of(second, PIECE, why, sizeof why)) && frames_count(frames) == 20);
  return NULL;
}

/* ---- many tickets ---- */

enum { WORKERS = 3, ROUNDS = 1500, QUEUE = 5 };

/* Whoever steps a piece works on a region of its own in it; one alone works on all of them. */
struct errand {
  struct ticket *ticket;
  bool alone, wrote;
  unsigned count;
  uint32_t units[FRAMES / 4], *at[FRAMES / 4];
};

static struct walker {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  struct errand errands[QUEUE];
  unsigned made, ended;
  bool stop, wrong;
} walkers[WORKERS];

static uint32_t expected[FAKE_UNITS]
                        [WORKERS]; /* of each region; used by whoever may use the region */

static bool step_region(uint32_t *piece, uint32_t unit, unsigned region, bool write) {
  enum { WORDS_OF_ONE = PIECE / 4 / WORKERS };
  uint32_t *words = piece + region * WORDS_OF_ONE;
  for (unsigned i = 0; i < WORDS_OF_ONE; i += 61)
    if (words[i] != expected[unit][region] * 97u + i + unit)
      return false;
  expected[unit][region] += write;
  for (unsigned i = 0; write && i < WORDS_OF_ONE; i += 61)
    words[i] = expected[unit][region] * 97u + i + unit;
  return true;
}

static bool run_errand(struct errand *errand, unsigned self) {
  bool good = ticket_wait(errand->ticket, 4 * soon_ns, NULL) == TICKET_READY;
  for (unsigned i = 0; good && i < errand->count; i++)
    for (unsigned region = 0; region < WORKERS; region++)
      if (errand->alone || region == self)
        good &= step_region(errand->at[i], errand->units[i], region, errand->wrote);
  ticket_release(errand->ticket, errand->wrote);
  return good;
}

static void *walk(void *argument) {
  struct walker *walker = argument;
  for (;;) {
    pthread_mutex_lock(&walker->lock);
    while (walker->made == walker->ended && !walker->stop)
      pthread_cond_wait(&walker->changed, &walker->lock);
    const bool over = walker->made == walker->ended;
    struct errand errand = walker->errands[walker->ended % QUEUE];
    pthread_mutex_unlock(&walker->lock);
    if (over)
      return NULL;
    const bool good = run_errand(&errand, (unsigned)(walker - walkers));
    pthread_mutex_lock(&walker->lock);
    walker->wrong |= !good;
    walker->ended++;
    pthread_cond_broadcast(&walker->changed);
    pthread_mutex_unlock(&walker->lock);
  }
}

/* Hands it over when there is room; false when the walker found a wrong value. */
static bool hand(struct walker *walker, const struct errand *errand) {
  pthread_mutex_lock(&walker->lock);
  while (walker->made - walker->ended == QUEUE)
    pthread_cond_wait(&walker->changed, &walker->lock);
  walker->errands[walker->made++ % QUEUE] = *errand;
  const bool good = !walker->wrong;
  pthread_cond_broadcast(&walker->changed);
  pthread_mutex_unlock(&walker->lock);
  return good;
}

static bool all_ended(void) {
  bool good = true;
  for (unsigned i = 0; i < WORKERS; i++) {
    pthread_mutex_lock(&walkers[i].lock);
    while (walkers[i].made != walkers[i].ended)
      pthread_cond_wait(&walkers[i].changed, &walkers[i].lock);
    good &= !walkers[i].wrong;
    pthread_mutex_unlock(&walkers[i].lock);
  }
  return good;
}

static uint32_t dice_state;
static uint32_t dice(uint32_t limit) {
  dice_state = dice_state * 1664525u + 1013904223u;
  return (dice_state >> 9) % limit;
}

static bool create(uint32_t *unit) {
  if (!allocate(unit))
    return false;
  struct errand errand = {ticket_make(frames, TICKET_ALONE), true, true, 1, {*unit}, {NULL}};
  errand.at[0] = ticket_add(errand.ticket, *unit, true);
  ticket_go(errand.ticket);
  if (!errand.at[0] || ticket_wait(errand.ticket, soon_ns, NULL) != TICKET_READY)
    return false;
  for (unsigned region = 0; region < WORKERS; region++) {
    expected[*unit][region] = dice(1000);
    for (unsigned i = 0; i < PIECE / 4 / WORKERS; i += 61)
      errand.at[0][region * (PIECE / 4 / WORKERS) + i] = expected[*unit][region] * 97u + i + *unit;
  }
  ticket_release(errand.ticket, true);
  return true;
}

/* A ticket of random shape, some of which are dropped. False without an address. */
static bool random_errand(const uint32_t *units, struct errand *errand, bool *drop) {
  *errand = (struct errand){.alone = !dice(8), .wrote = dice(3) > 0};
  errand->ticket = ticket_make(frames, errand->alone ? TICKET_ALONE : TICKET_STEP);
  errand->count = 1 + dice(FRAMES / 4);
  *drop = !dice(10);
  /* Neighbours, so that tickets share pieces; no unit twice. */
  const uint32_t first = dice(UNITS);
  for (unsigned i = 0; i < errand->count; i++) {
    errand->units[i] = units[(first + i * 5) % UNITS];
    if (!(errand->at[i] = ticket_add(errand->ticket, errand->units[i], false)))
      return false;
  }
  return true;
}

static const char *walks(uint32_t seed) {
  uint32_t units[UNITS];
  dice_state = seed;
  CHECK(begin(FRAMES));
  fake.write_kept = seed % 2 ? -2 : -1;
  fake.delay_us = seed % 3 * 150;
  for (unsigned i = 0; i < UNITS; i++)
    CHECK(create(&units[i]));
  for (unsigned i = 0; i < WORKERS; i++) {
    pthread_mutex_init(&walkers[i].lock, NULL);
    pthread_cond_init(&walkers[i].changed, NULL);
    pthread_create(&walkers[i].thread, NULL, walk, &walkers[i]);
  }
  for (unsigned round = 0; round < ROUNDS; round++) {
    struct errand errand;
    bool drop;
    CHECK(random_errand(units, &errand, &drop));
    if (drop) {
      ticket_drop(errand.ticket);
      continue;
    }
    ticket_go(errand.ticket);
    CHECK(hand(&walkers[dice(WORKERS)], &errand));
    if (!dice(100)) { /* one goes, another comes */
      const unsigned i = dice(UNITS);
      CHECK(all_ended());
      frames_forget_unit(frames, units[i]);
      CHECK(create(&units[i]));
    }
  }
  CHECK(all_ended() && quiet());
  for (unsigned i = 0; i < WORKERS; i++) {
    walkers[i].stop = true;
    pthread_cond_broadcast(&walkers[i].changed);
    pthread_join(walkers[i].thread, NULL);
  }
  if (fake.broken)
    printf("# %s\n", fake_complaint());
  CHECK(!fake.broken && !*frames_lost() && fake.reads > ROUNDS / 4 && TOTAL(drive_hit_bytes) > 0);
  CHECK(!fake_store || fake.reads * PIECE == TOTAL(drive_read_bytes));
  for (unsigned i = 0; i < UNITS; i++) {
    void *at;
    struct ticket *ticket = have(units[i], &at);
    CHECK(ticket);
    for (unsigned region = 0; region < WORKERS; region++)
      CHECK(step_region(at, units[i], region, false));
    ticket_release(ticket, false);
  }
  return NULL;
}

static const char *walk_1(void) {
  return walks(1);
}
static const char *walk_2(void) {
  return walks(2);
}
static const char *walk_6(void) {
  return walks(6);
}

/* ---- the real store ---- */

static const char *real_kept(void) {
  config.test_nvme = "write_eio=60+";
  uint32_t units[UNITS];
  CHECK(begin(FRAMES) && bring_all(units, UNITS));
  for (uint32_t version = 1; version < 4; version++)
    for (unsigned i = 0; i < UNITS; i++) {
      void *at;
      struct ticket *ticket = have(units[i], &at);
      CHECK(ticket && marked(at, units[i], version));
      mark(at, units[i], version + 1);
      ticket_release(ticket, true);
    }
  CHECK(quiet() && TOTAL(drive_write_failures) > 0 && TOTAL(drive_written_bytes) >= UNITS * PIECE);
  CHECK(reported("OFFLOAD_NVME: write at byte") && !*frames_lost());
  return NULL;
}

static const char *real_lost(void) {
  config.test_nvme = "read_flip=3";
  uint32_t units[UNITS];
  CHECK(begin(FRAMES) && bring_all(units, UNITS));
  unsigned failed = 0;
  for (unsigned i = 0; i < UNITS; i++) {
    void *at;
    struct ticket *ticket = ask(TICKET_STEP, &units[i], 1, &at);
    CHECK(ticket);
    const enum ticket_state state = ticket_wait(ticket, soon_ns, NULL);
    failed += state == TICKET_FAILED;
    CHECK(state != TICKET_FAILED || strstr(ticket_why(ticket), "not what was written"));
    CHECK(state != TICKET_READY || marked(at, units[i], 1));
    ticket_release(ticket, false);
  }
  CHECK(failed == 1 && strstr(frames_lost(), directory));
  return NULL;
}

static void with_the_real_store(void) {
  static const char *const sentences[] = {
      "pieces come back from a real drive as they were written, over more of them than frames",
      "what a real drive refuses is kept, read again and stepped on",
      "wrong bytes from a real drive fail the ticket, with the directory and the place"};
  const char *(*const cases[])(void) = {round_trips, real_kept, real_lost};
  struct statfs system;
  const bool can = !statfs("build", &system) && !drive_file_refused((uint64_t)system.f_type) &&
                   system.f_type != 0x9123683e;
  char here[2048];
  if (!can || !getcwd(here, sizeof here) ||
      snprintf(directory, sizeof directory, "%s/build/shim_frames-XXXXXX", here) < 0 ||
      !mkdtemp(directory))
    directory[0] = 0;
  fake_store = false;
  for (unsigned i = 0; i < 3; i++) {
    if (directory[0])
      TEST_CASE(sentences[i], "", cases[i]);
    else
      tap_skip(sentences[i], "the build's folder is on a file system that can't hold state");
  }
  if (directory[0])
    (void)rmdir(directory);
}

int main(void) {
  snprintf(directory, sizeof directory, "/fake");
  fake_store = true;
  TEST_CASE("pieces are read, used and written behind, over more of them than frames", "",
            round_trips);
  TEST_CASE(
      "tenants of a frame follow each other, and addresses are known before the bytes are there",
      "", chain);
  TEST_CASE("a piece still in its frame is not read, and written once for all who wrote", "",
            still_there);
  TEST_CASE("a ticket alone waits for those before, and those after wait for it", "", alone);
  TEST_CASE("a ticket names half of the frames at most, and one that is dropped leaves nothing", "",
            bounded);
  TEST_CASE(
      "waits end when the piece is there, are given up when told to, and have no end if so asked",
      "", waits);
  TEST_CASE("a failed read fails its ticket, says why, and nothing of it is written", "",
            read_fails);
  TEST_CASE("what a drive refused is read again as it was to be written", "", write_kept);
  TEST_CASE("a piece that found neither a drive nor memory stays in its frame, and nobody waits "
            "behind it",
            "", write_fails);
  TEST_CASE("the keeper tells a device when pieces are there, and lets go when it is done", "",
            watched);
  TEST_CASE("after a failed read the keeper says so before the device's gate traps", "",
            watch_fails);
  TEST_CASE("a unit that is forgotten is released after its last write, and not written again", "",
            unit_forgotten);
  TEST_CASE("a context that is gone ends all waits, and its successor has frames again",
            "GPUSIM_DEVICES=2", context_gone);
  TEST_CASE("a context that goes has its last writes waited for, and its memory unregistered", "",
            context_goes);
  TEST_CASE("frames that fail end every wait and begin no read", "", failed_set);
  TEST_CASE("a child has neither frames nor the drives' files, and closes these once", "", child);
  TEST_CASE("a child that is made while the drives' files are opened closes them, too", "",
            child_of_opening);
  TEST_CASE("fewer frames are made where the driver pins less", "", less_memory);
  TEST_CASE("a driver that registers 16 MiB at once is asked in parts", "GPUSIM_ODD=register_limit",
            in_parts);
  TEST_CASE("why there are no frames is said with what to do, each time the same",
            "GPUSIM_DEVICES=2", refusals);
  TEST_CASE(
      "random tickets of several threads find and leave every value (slow drive, writes refused)",
      "", walk_1);
  TEST_CASE("random tickets of several threads find and leave every value (slower drive)", "",
            walk_2);
  TEST_CASE("random tickets of several threads find and leave every value (fast drive)", "",
            walk_6);
  with_the_real_store();
  return tap_done();
}
