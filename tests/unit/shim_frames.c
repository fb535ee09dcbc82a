/* shim/frames: pieces come to frames, are used and written behind, and never lose a value; drives that fail; what the keeper tells a
   device. */
#define _GNU_SOURCE
#include "frames_support.h"
#include "shim/worker.h"

/* ---- what it is for ---- */

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

/* A piece whose frame has another tenant next goes to a second frame, by way of the drive. */
static const char *moves_on(void) {
  enum { TICKETS = 40 };
  uint32_t units[UNITS];
  void *at, *others[TICKETS], *again;
  struct ticket *behind[TICKETS];
  CHECK(begin(FRAMES) && far(units));
  struct ticket *ticket = have(units[0], &at);
  CHECK(ticket);
  for (unsigned i = 0; i < TICKETS; i++)
    CHECK((behind[i] = ask(TICKET_STEP, &units[i + 1], 1, &others[i])));
  struct ticket *same = ask(TICKET_STEP, &units[0], 1, &again);
  CHECK(same && again != at);
  for (unsigned i = 0; i < TICKETS; i++)
    if (others[i] != at) {
      CHECK(ticket_wait(behind[i], soon_ns, NULL) == TICKET_READY);
      ticket_release(behind[i], false);
    }
  CHECK(ticket_wait(same, 20000000, NULL) == TICKET_WAITING && fake.unit_reads[units[0]] == 1);
  mark(at, units[0], 2);
  ticket_release(ticket, true);
  for (unsigned i = 0; i < TICKETS; i++)
    if (others[i] == at) {
      CHECK(ticket_wait(behind[i], soon_ns, NULL) == TICKET_READY);
      ticket_release(behind[i], false);
    }
  CHECK(ticket_wait(same, soon_ns, NULL) == TICKET_READY && marked(again, units[0], 2));
  ticket_release(same, false);
  CHECK(quiet() && fake.unit_reads[units[0]] == 2 && !fake.broken);
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
  const unsigned before_drop = fake.unit_writes[unit];
  ticket_drop(dropped);
  CHECK(hits == 3 * PIECE && TOTAL(drive_hit_bytes) == hits);
  CHECK(quiet() && fake.unit_writes[unit] == before_drop);
  return NULL;
}

static const char *alone(void) {
  uint32_t unit;
  void *at[4];
  CHECK(begin(FRAMES) && bring(&unit) && quiet());
  struct ticket *before = have(unit, &at[0]), *with = have(unit, &at[1]);
  CHECK(before && with && frames_in_use(frames, unit));
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
  CHECK(!frames_in_use(frames, unit));
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

static void *give_up_later(void *give_up) {
  nap_ms(40);
  atomic_store((_Atomic bool *)give_up, true);
  return NULL;
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
  /* With a frame less a ticket still names as many, each a frame of its own. */
  CHECK((ticket = ask(TICKET_STEP, &units[1], FRAMES / 2, others)));
  CHECK(ticket_wait(ticket, soon_ns, NULL) == TICKET_READY);
  for (unsigned i = 0; i < FRAMES / 2; i++)
    CHECK(others[i] != at && marked(others[i], units[i + 1], 1));
  ticket_release(ticket, false);
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
  CHECK(stopped); /* nobody else says so before the trap */
  CHECK(strstr(stop_reason, "in the middle of a step") && strstr(stop_reason, "last checkpoint") &&
        strstr(stop_reason, frames_lost()));
  CHECK(!frames_idle(frames, 20000000)); /* the second one waits for the device */
  atomic_store(&words[1].down, 7);
  CHECK(quiet());
  /* The number of a use follows the largest: what was there before is not the device's answer. */
  struct ticket *ticket = have(units[1], &at);
  CHECK(ticket);
  atomic_store(&words[1].down, UINT32_MAX);
  ticket_watch(ticket, &words[1], 0);
  CHECK(!frames_idle(frames, 20000000));
  atomic_store(&words[1].down, 0);
  CHECK(quiet());
  return NULL;
}

int main(void) {
  begin_fake();
  TEST_CASE("pieces are read, used and written behind, over more of them than frames", "",
            round_trips);
  TEST_CASE(
      "tenants of a frame follow each other, and addresses are known before the bytes are there",
      "", chain);
  TEST_CASE(
      "a piece that goes on to another frame is read there when it was written from the first", "",
      moves_on);
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
  return tap_done();
}
