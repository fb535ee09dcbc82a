/* shim/frames: units and contexts that go, forked children, and how frames are made. */
#define _GNU_SOURCE
#include "frames_support.h"
#include <errno.h>
#include <sys/mman.h>
#include <sys/wait.h>

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
  struct ticket *second;
  CHECK((ticket = have(units[2], &at)) && (second = have(units[2], &other)) && other == at);
  ticket_release(ticket, true); /* to be written once the other one lets go */
  forget_this = units[2];
  forgotten = false;
  pthread_create(&thread, NULL, forget, NULL);
  nap_ms(30);
  CHECK(!forgotten && fake.released == 2);
  ticket_release(second, false);
  pthread_join(thread, NULL);
  CHECK(fake.released == 3 && fake.unit_writes[units[2]] == 1);
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
  const unsigned char *memory = frames->memory.base;
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
  CHECK(begin(FRAMES));                 /* registered again, so it wasn't any more */
  CHECK(frames->memory.base == memory); /* which the store's ring knows */
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
  CHECK(refused("OFFLOAD_NVME_STAGING=983040 is too small for 16 pieces: set it to at least 1MiB"));
  frames_forget_context(context, true);
  config.nvme_staging.bytes = 64 * PIECE;
  budget_bytes = 15 * PIECE;
  CHECK(refused(
      "can spare 960 KiB for staging (limited by OFFLOAD_HOST_MEMORY), and 1.00 MiB is the least"));
  frames_forget_context(context, true);
  budget_bytes = 1u << 30;
  pin_most = 15 * PIECE;
  driver.cuMemHostRegister_v2 = pin_some;
  CHECK(refused("can't pin 1.00 MiB of staging"));
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
  CHECK(!frames_of(second, 2 * PIECE, why, sizeof why) && strstr(why, "131072 bytes") &&
        strstr(why, "set OFFLOAD_PIECE to the larger"));
  frames_forget_context(second, false);
  CHECK((frames = frames_of(second, PIECE, why, sizeof why)) && frames_count(frames) == 20);
  return NULL;
}

int main(void) {
  begin_fake();
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
  return tap_done();
}
