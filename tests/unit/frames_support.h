/* What the tests of frames share: frames of the context, units with known contents, tickets that are waited for. Each case runs in a
   child, on the simulated driver (memory_support.h) and on a store of the test's (frames_fake.h) or the real one. */
#ifndef FRAMES_SUPPORT_H
#define FRAMES_SUPPORT_H
#include "frames_fake.h"
#include "memory_support.h"
#include "nvme/clock.h"
#include "shim/frames_set.h"
#include "tests/lib/tap.h"
#include <pthread.h>
#include <time.h>

enum { FRAMES = 16, UNITS = 48, PART = 3, SOON = 5 };
static const uint64_t soon_ns = SOON * (uint64_t)1000000000;

static char directory[4096];
static CUcontext context;
static struct frames *frames;

__attribute__((unused)) static void begin_fake(void) {
  snprintf(directory, sizeof directory, "/fake");
  fake_store = true;
}

__attribute__((unused)) static void nap_ms(long ms) {
  nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* So many frames of the context that is current. */
__attribute__((unused)) static bool begin(unsigned count) {
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

__attribute__((unused)) static void mark(void *frame, uint32_t unit, uint32_t version) {
  uint32_t *words = frame;
  for (uint32_t i = 0; i < PIECE / 4; i++)
    words[i] = (unit * 2654435761u) ^ (version * 40503u) ^ (i << 3);
}

__attribute__((unused)) static bool marked(const void *frame, uint32_t unit, uint32_t version) {
  const uint32_t *words = frame;
  uint32_t i = 0;
  while (i < PIECE / 4 && words[i] == ((unit * 2654435761u) ^ (version * 40503u) ^ (i << 3)))
    i++;
  return i == PIECE / 4;
}

__attribute__((unused)) static bool allocate(uint32_t *unit) {
  char why[320] = "";
  const bool good = __wrap_store_allocate(frames_store(), unit, why, sizeof why);
  if (!good)
    printf("# %s\n", why);
  return good;
}

/* A ticket for so many units, under way. */
__attribute__((unused)) static struct ticket *ask(enum ticket_kind kind, const uint32_t *units,
                                                  unsigned count, void **at) {
  struct ticket *ticket = ticket_make(frames, kind);
  for (unsigned i = 0; i < count; i++)
    if (!(at[i] = ticket_add(ticket, units[i], false)))
      return NULL;
  ticket_go(ticket);
  return ticket;
}

/* The same for one, and waits for it. */
__attribute__((unused)) static struct ticket *have(uint32_t unit, void **at) {
  struct ticket *ticket = ask(TICKET_STEP, &unit, 1, at);
  return ticket && ticket_wait(ticket, soon_ns, NULL) == TICKET_READY ? ticket : NULL;
}

/* Brings a new unit, as version 1 of it. */
__attribute__((unused)) static bool bring(uint32_t *unit) {
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

__attribute__((unused)) static bool bring_all(uint32_t *units, unsigned count) {
  for (unsigned i = 0; i < count; i++)
    if (!bring(&units[i]))
      return false;
  return true;
}

/* Until no ticket is open, and the store has nothing to do. */
__attribute__((unused)) static bool quiet(void) {
  const uint64_t end = frames_end_ns(soon_ns);
  pthread_mutex_lock(&frames->lock);
  while ((frames->open || frames->under_way) && clock_now_ns() < end)
    frames_doze(frames, end);
  const bool good = !frames->open && !frames->under_way;
  pthread_mutex_unlock(&frames->lock);
  return good;
}

#define TOTAL(name) atomic_load(&report.totals.name)

/* Brings units so that the first ones are in no frame, nor kept for the frame's sake. */
__attribute__((unused)) static bool far(uint32_t *units) {
  uint32_t ballast[FRAMES];
  return bring_all(ballast, FRAMES) && bring_all(units, UNITS) && quiet();
}

__attribute__((unused)) static void *go_later(void *unused) {
  (void)unused;
  nap_ms(40);
  fake_go();
  return NULL;
}

/* Every unit's piece goes round a few times. */
__attribute__((unused)) static const char *round_trips(void) {
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
#endif
