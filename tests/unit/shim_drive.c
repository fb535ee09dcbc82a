/* The drive tier: what goes to drives, what comes back and why, and that no byte is lost. */
#include "memory_frames.h"
#include "memory_support.h"
#include "shim/drive.h"
#include "tests/lib/tap.h"

enum { PIECES = 5 };
static uintptr_t m, v;

static CUresult step(void) {
  struct state_tensor tensor = {{m, v}, (size_t)PIECES * PIECE, 0};
  return step_names(&tensor, 1, NULL);
}

static unsigned on_drives(uintptr_t base) {
  return range_find(base)->drive_pieces;
}

/* A pair of which `host` pieces have room on the host, after so many steps. */
static const char *begin(unsigned host, unsigned steps) {
  config.nvme = "somewhere";
  budget_bytes = (uint64_t)host * PIECE;
  m = filled((size_t)PIECES * PIECE, 1);
  v = filled((size_t)PIECES * PIECE, 2);
  CHECK(m && v);
  for (unsigned i = 0; i < steps; i++)
    CHECK(!step());
  return NULL;
}

static bool whole(void) {
  return holds(m, (size_t)PIECES * PIECE, 1) && holds(v, (size_t)PIECES * PIECE, 2);
}

static const char *goes_and_returns(void) {
  const char *wrong_begin = begin(0, 4);
  if (wrong_begin)
    return wrong_begin;
  CHECK(on_drives(m) == PIECES && on_drives(v) == PIECES && drive_units_written == 2 * PIECES);
  CHECK(report.totals.drive_pieces_out == 2 * PIECES && pieces_on_host(m) == 0);
  CHECK(!drive_fault_bytes(m + PIECE, 1)); /* its partner comes as well */
  CHECK(on_drives(m) == PIECES - 1 && on_drives(v) == PIECES - 1);
  CHECK(report.totals.drive_faults == 2 && drive_units_used == 2 * PIECES - 2);
  CHECK(!drive_fault_all(NULL) && on_drives(m) + on_drives(v) == 0 && drive_units_used == 0);
  CHECK(whole());
  return NULL;
}

static const char *beyond_the_host(void) {
  const char *wrong_begin = begin(4, 4);
  if (wrong_begin)
    return wrong_begin;
  CHECK(pieces_on_host(m) == 2 && pieces_on_host(v) == 2);
  CHECK(on_drives(m) == PIECES - 2 && on_drives(v) == PIECES - 2);
  CHECK(!drive_fault_all(NULL) && whole());
  return NULL;
}

static const char *reads_keep(void) {
  const char *wrong_begin = begin(0, 1);
  if (wrong_begin)
    return wrong_begin;
  for (unsigned i = 0; i < 4; i++) {
    state_foreign_access(m, PIECE, NULL, false);
    CHECK(!step() && on_drives(m) == 0 && on_drives(v) == 0);
  }
  CHECK(!step() && on_drives(m) == PIECES && on_drives(v) == PIECES);
  return NULL;
}

static const char *unseen_keep(void) {
  const char *wrong_begin = begin(0, 1);
  if (wrong_begin)
    return wrong_begin;
  for (unsigned i = 0; i < 4; i++) {
    touch_unseen();
    CHECK(!step() && on_drives(m) + on_drives(v) == 0);
  }
  CHECK(!step() && on_drives(m) + on_drives(v) == 2 * PIECES);
  return NULL;
}

static const char *failed_drive(void) {
  const char *wrong_begin = begin(0, 4);
  if (wrong_begin)
    return wrong_begin;
  CHECK(on_drives(m) == PIECES);
  drive_write_failed = true;
  CHECK(!step() && on_drives(m) + on_drives(v) == 0 && whole());
  CHECK(!step() && !step() && !step() && on_drives(m) == 0 && reported("a write failed"));
  return NULL;
}

static const char *failed_read(void) {
  const char *wrong_begin = begin(0, 4);
  if (wrong_begin)
    return wrong_begin;
  drive_reads_fail = true;
  CHECK(drive_fault_bytes(m, 1) == CUDA_ERROR_UNKNOWN && stopped && on_drives(m) == PIECES);
  return NULL;
}

static const char *served(void) {
  static unsigned char bytes[2 * PIECE], whole_bytes[PIECES * PIECE];
  const char *wrong_begin = begin(0, 1);
  if (wrong_begin)
    return wrong_begin;
  CHECK(!driver.cuMemcpyDtoH_v2(whole_bytes, m, sizeof whole_bytes));
  for (unsigned i = 0; i < 3; i++)
    CHECK(!step());
  CHECK(on_drives(m) == PIECES && !drive_serve(bytes, m + 100, sizeof bytes));
  CHECK(!memcmp(bytes, whole_bytes + 100, sizeof bytes) && on_drives(m) == PIECES);
  CHECK(report.totals.drive_served_bytes == sizeof bytes);
  return NULL;
}

static const char *freed(void) {
  const char *wrong_begin = begin(0, 4);
  if (wrong_begin)
    return wrong_begin;
  CHECK(drive_units_used == 2 * PIECES && !range_destroy(range_find(m)));
  CHECK(drive_units_used == PIECES && !range_destroy(range_find(v)) && drive_units_used == 0);
  CHECK(report.totals.drive_bytes == 0 && !range_any_drive());
  return NULL;
}

static const char *little_room(void) {
  drive_units = 5;
  const char *wrong_begin = begin(0, 4);
  if (wrong_begin)
    return wrong_begin;
  CHECK(on_drives(m) == 2 && on_drives(v) == 2 && !drive_fault_all(NULL) && whole());
  return NULL;
}

static const char *rests(void) {
  unsigned before = 0;
  const char *wrong_begin = begin(0, 4);
  if (wrong_begin)
    return wrong_begin;
  for (unsigned time = 0; time < 4; time++) {
    unsigned steps = 0;
    CHECK(on_drives(m) == PIECES && !drive_fault_bytes(m, 1) && on_drives(m) == PIECES - 1);
    for (; on_drives(m) < PIECES && steps < 100; steps++)
      CHECK(!step());
    CHECK(steps > (time ? before + (1u << time) - 1 : 0) && steps < 100);
    before = steps;
  }
  CHECK(!drive_fault_all(NULL) && whole());
  return NULL;
}

int main(void) {
  TEST_CASE("state goes to drives and comes back with its partners and every byte", "",
            goes_and_returns);
  TEST_CASE("only what is beyond the host budget goes to drives", "", beyond_the_host);
  TEST_CASE("state that something reads does not go to drives", "", reads_keep);
  TEST_CASE("nothing goes to drives while launches are unseen", "", unseen_keep);
  TEST_CASE("after a failed write state comes home and no more goes", "", failed_drive);
  TEST_CASE("a failed read stops the hooks", "", failed_read);
  TEST_CASE("a synchronous copy is served from the drive, where the state stays", "", served);
  TEST_CASE("freed state gives its room on drives back", "", freed);
  TEST_CASE("drives with little room take whole pairs", "", little_room);
  TEST_CASE("what is brought in again and again stays off drives twice as long each time", "",
            rests);
  return tap_done();
}
