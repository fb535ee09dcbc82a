/* shim/frames: random tickets of several threads against what each piece must hold, and the store as it is, in the build's folder. */
#define _GNU_SOURCE
#include "frames_support.h"
#include "nvme/files.h"
#include <sys/vfs.h>

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
    pthread_mutex_lock(&walkers[i].lock);
    walkers[i].stop = true;
    pthread_cond_broadcast(&walkers[i].changed);
    pthread_mutex_unlock(&walkers[i].lock);
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
  begin_fake();
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
