/* The drive tier: what goes to drives, what comes back and why, and that no byte is lost. */
#include "memory_frames.h"
#include "memory_support.h"
#include "nvme/clock.h"
#include "shim/drive.h"
#include "shim/graphs.h"
#include "shim/move.h"
#include "shim/tier.h"
#include "tests/lib/tap.h"
#include <pthread.h>
#include <time.h>

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

/* As if nothing had been brought in before. */
static bool rested(void) {
  range_find(m)->drive_fetched = range_find(v)->drive_fetched = false;
  range_find(m)->drive_rest_until = range_find(v)->drive_rest_until = 0;
  return true;
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

/* By pieces: its partner stays as well, and the others go. */
static const char *reads_keep(void) {
  const char *wrong_begin = begin(0, 1);
  if (wrong_begin)
    return wrong_begin;
  for (unsigned i = 0; i < 4; i++) {
    CHECK(!state_foreign_access(m, PIECE, NULL, false) && !step());
    CHECK(on_drives(m) == PIECES - 1 && on_drives(v) == PIECES - 1);
  }
  CHECK(!report.totals.drive_faults && range_find(m)->pieces[0].tier == PIECE_DEVICE);
  CHECK(!step() && on_drives(m) == PIECES && on_drives(v) == PIECES);
  return NULL;
}

static const char *host_for_what_drives_refuse(void) {
  const char *wrong_begin = begin(2, 1);
  if (wrong_begin)
    return wrong_begin;
  for (unsigned i = 0; i < 4; i++)
    CHECK(!state_foreign_access(m + (PIECES - 1) * PIECE, PIECE, NULL, false) && !step());
  CHECK(range_find(m)->pieces[PIECES - 1].tier == PIECE_HOST && pieces_on_host(m) == 2);
  CHECK(on_drives(m) == PIECES - 2 && on_drives(v) == PIECES && !report.totals.drive_faults);
  return NULL;
}

/* The first piece of m stays, hence that of v: the little room is not kept for it. */
static const char *room_for_what_goes(void) {
  drive_units = 2;
  const char *wrong_begin = begin(0, 1);
  if (wrong_begin)
    return wrong_begin;
  for (unsigned i = 0; i < 3; i++)
    CHECK(!state_foreign_access(m, PIECE, NULL, false) && !step());
  CHECK(on_drives(m) == 1 && on_drives(v) == 1 && range_find(m)->pieces[1].tier == PIECE_DRIVE);
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

static const char *worn(void) {
  drive_units = 4;
  config.nvme_wear_limit = (struct wear_limit){.bytes = 4 * (uint64_t)PIECE, .set = true};
  const char *wrong_begin = begin(0, 4);
  if (wrong_begin)
    return wrong_begin;
  CHECK(on_drives(m) == 2 && on_drives(v) == 2);
  drive_units = 1024;
  for (unsigned i = 0; i < 4; i++)
    CHECK(!step() && on_drives(m) == 2 && on_drives(v) == 2);
  CHECK(!drive_fault_all(NULL) && whole());
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
  memset(bytes, 0, sizeof bytes);
  CHECK(!drive_fault_bytes(m + PIECE, 1) && !drive_serve(bytes, m + 100, sizeof bytes));
  CHECK(!memcmp(bytes, whole_bytes + 100, sizeof bytes) && on_drives(m) == PIECES - 1);
  CHECK(report.totals.drive_served_bytes == 2 * sizeof bytes - PIECE);
  return NULL;
}

static const char *without_a_context(void) {
  static unsigned char bytes[2 * PIECE], whole_bytes[2 * PIECE];
  CUcontext context, current;
  const char *wrong_begin = begin(0, 1);
  if (wrong_begin)
    return wrong_begin;
  CHECK(!driver.cuMemcpyDtoH_v2(whole_bytes, m, sizeof whole_bytes));
  CHECK(!step() && !step() && !step() && on_drives(m) == PIECES);
  CHECK(!driver.cuCtxGetCurrent(&context) && !driver.cuCtxSetCurrent(NULL));
  CHECK(!drive_fault_bytes(m, 1) && on_drives(m) == PIECES - 1);
  CHECK(range_find(m)->pieces[0].tier == PIECE_DEVICE);
  CHECK(!drive_serve(bytes, m, sizeof bytes) && !memcmp(bytes, whole_bytes, sizeof bytes));
  CHECK(!drive_fault_all(NULL) && on_drives(m) == 0);
  CHECK(!driver.cuCtxGetCurrent(&current) && !current && !driver.cuCtxSetCurrent(context));
  CHECK(whole());
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

/* ---- what is no reason to stay ---- */

static const char *host_reads_pass(void) {
  static unsigned char bytes[PIECE], first[PIECE];
  CUresult result;
  const char *wrong_begin = begin(0, 1);
  if (wrong_begin)
    return wrong_begin;
  CHECK(!driver.cuMemcpyDtoH_v2(first, m, sizeof first));
  for (unsigned i = 0; i < 4; i++) {
    memset(bytes, 0, sizeof bytes);
    CHECK(touch_serve(bytes, m, sizeof bytes, NULL, true, &result) && !result);
    CHECK(!memcmp(bytes, first, sizeof bytes) && !step());
  }
  CHECK(on_drives(m) == PIECES && on_drives(v) == PIECES && !report.totals.drive_faults);
  CHECK(report.totals.drive_served_bytes >= sizeof bytes);
  return NULL;
}

static const char *graphs_pass(void) {
  const char *wrong_begin = begin(0, 1);
  if (wrong_begin)
    return wrong_begin;
  const uint64_t unseen = touch_unseen_count();
  graphs_made(GRAPHS_TEMPLATE(&v));
  for (unsigned i = 0; i < 3; i++) /* of a graph that names m */
    CHECK(!graphs_hold_address(GRAPHS_TEMPLATE(&v), m) && !touch_graph_launch(NULL) && !step());
  CHECK(touch_unseen_count() == unseen + 3 && on_drives(m) + on_drives(v) == 0);
  graphs_gone(GRAPHS_TEMPLATE(&v));
  for (unsigned i = 0; i < 3; i++) /* of others */
    CHECK(!touch_graph_launch(NULL) && !step());
  CHECK(on_drives(m) == PIECES && on_drives(v) == PIECES);
  touch_graphs_reach_all();
  CHECK(!touch_graph_launch(NULL) && on_drives(m) + on_drives(v) == 0);
  for (unsigned i = 0; i < 4; i++)
    CHECK(!step() && !touch_graph_launch(NULL) && on_drives(m) + on_drives(v) == 0);
  CHECK(whole());
  return NULL;
}

/* Two lists of 64 tensors as PyTorch's releases before 2.12 lay them out. */
static struct {
  uint64_t addresses[2][64];
  int64_t counts[64];
  unsigned char block_tensor[320];
  int block_chunk[320];
  int start;
} list;
static CUresult list_size(CUfunction function, size_t i, size_t *offset, size_t *bytes) {
  (void)function;
  *offset = 0;
  *bytes = sizeof list;
  return i ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
static CUresult list_name(const char **name, CUfunction function) {
  (void)function;
  *name = "_ZN2at6native57_GLOBAL__N__0f0f0f0f_24_ForeachBinaryOpList_cu_0f0f0f0f25multi_tensor_"
          "apply_kernelINS1_18TensorListMetadataILi2EEENS1_14UnaryOpFunctorIfLi2ELi1ELi1EEEJEEEvT_"
          "T0_DpT1_";
  return CUDA_SUCCESS;
}
static CUresult launch_list(void) {
  void *parameters[] = {&list};
  return state_foreign_launch((CUfunction)&list, 1, NULL, parameters, NULL);
}

static const char *stale_lists_pass(void) {
  const char *wrong_begin = begin(0, 1);
  if (wrong_begin)
    return wrong_begin;
  const uintptr_t parameter = filled(PIECE, 9);
  driver.cuFuncGetParamInfo = list_size;
  driver.cuFuncGetName = list_name;
  list.addresses[0][0] = list.addresses[1][0] = parameter;
  list.addresses[0][1] = m, list.addresses[1][1] = v; /* of an earlier launch */
  list.counts[0] = list.counts[1] = 8;
  list.block_tensor[1] = 1;
  for (unsigned i = 0; i < 3; i++)
    CHECK(!launch_list() && !step());
  CHECK(on_drives(m) == PIECES && on_drives(v) == PIECES);
  CHECK(!launch_list() && on_drives(m) == PIECES && !report.totals.drive_faults);
  list.block_tensor[0] = 1; /* now it is named */
  CHECK(!launch_list() && on_drives(m) == 0 && on_drives(v) == 0);
  for (unsigned i = 0; i < 4; i++)
    CHECK(!step() && !launch_list() && on_drives(m) + on_drives(v) == 0);
  CHECK(whole());
  return NULL;
}

/* ---- partners ---- */

/* m lies at a piece's begin and v in the middle of one, so that pieces of both hold each other together; the halves that v leaves
   are of two small tensors that share a piece. */
static const char *partners_of_partners(void) {
  enum { LONG = 3 };
  config.nvme = "somewhere";
  budget_bytes = 0;
  const uintptr_t first = filled((size_t)LONG * PIECE, 1), second = filled((LONG + 1) * PIECE, 2),
                  small = filled(PIECE, 3);
  const size_t half = PIECE / 2;
  const struct state_tensor tensors[] = {{{first, second + half}, (size_t)LONG * PIECE, 0},
                                         {{small, second}, half, 0},
                                         {{small + half, second + LONG * PIECE + half}, half, 0}};
  CHECK(first && second && small);
  for (unsigned i = 0; i < 4; i++)
    CHECK(!step_names(tensors, 3, NULL));
  CHECK(on_drives(first) == LONG && on_drives(second) == LONG + 1 && on_drives(small) == 1);
  CHECK(!drive_fault_bytes(first, 1));
  CHECK(on_drives(first) + on_drives(second) + on_drives(small) == 0);
  CHECK(report.totals.drive_faults == 2 * LONG + 2);
  CHECK(holds(first, (size_t)LONG * PIECE, 1) && holds(second, (LONG + 1) * PIECE, 2) &&
        holds(small, PIECE, 3));
  for (unsigned i = 0; i < 4; i++)
    CHECK(!step_names(tensors, 3, NULL));
  CHECK(on_drives(first) == LONG && on_drives(second) == LONG + 1);
  failing(8, 1000); /* a piece takes four calls, and three must come: the third fails */
  CHECK(drive_fault_bytes(first, 1) == CUDA_ERROR_OUT_OF_MEMORY && on_drives(second) == LONG);
  failing(0, 0);
  for (unsigned i = 0; i < 8; i++)
    CHECK(!step_names(tensors, 3, NULL));
  CHECK(on_drives(first) == LONG && on_drives(second) == LONG + 1);
  failing(12, 1000); /* those that are only parted from partners by it fail */
  CHECK(!drive_fault_bytes(first, 1));
  failing(0, 0);
  CHECK(on_drives(first) == LONG - 1 && on_drives(second) == LONG - 1 && on_drives(small) == 1);
  return NULL;
}

/* ---- room ---- */

static const char *beyond_the_budget(void) {
  CUdeviceptr fillers[DEVICE_BYTES / PIECE];
  unsigned count = 0;
  const char *wrong_begin = begin(0, 4);
  if (wrong_begin)
    return wrong_begin;
  CHECK(on_drives(m) == PIECES && on_drives(v) == PIECES);
  while (device_free() >= 2 * (size_t)PIECE)
    CHECK(!driver.cuMemAlloc_v2(&fillers[count++], PIECE));
  CHECK(count && !drive_fault_bytes(m, 1) && pieces_on_host(m) == 1 && pieces_on_host(v) == 1);
  CHECK(reported("host memory beyond the budget") && on_drives(m) == PIECES - 1);
  while (count)
    CHECK(!driver.cuMemFree_v2(fillers[--count]));
  CHECK(!drive_fault_all(NULL) && pieces_on_host(m) == 1 && whole());
  return NULL;
}

/* The budget's room for two pieces is taken when state goes, and free when it comes back. */
static const char *within_the_budget(void) {
  CUmemGenericAllocationHandle taken[2];
  CUdeviceptr filler;
  config.nvme = "somewhere";
  budget_bytes = 2 * (uint64_t)PIECE;
  CHECK(tier_room(0) == 2 * PIECE && !tier_create(0, PIECE, &taken[0]) &&
        !tier_create(0, PIECE, &taken[1]));
  const char *wrong_begin = begin(2, 4);
  if (wrong_begin)
    return wrong_begin;
  CHECK(on_drives(m) == PIECES && on_drives(v) == PIECES);
  tier_release(0, taken[0], PIECE);
  tier_release(0, taken[1], PIECE);
  while (device_free() >= 2 * (size_t)PIECE)
    CHECK(!driver.cuMemAlloc_v2(&filler, PIECE));
  CHECK(!drive_fault_bytes(m, 1) && pieces_on_host(m) == 1 && pieces_on_host(v) == 1);
  CHECK(tier_room(0) == 0 && !reported("host memory beyond the budget"));
  return NULL;
}

static const char *no_stream(void) {
  CUcontext context;
  const char *wrong_begin = begin(0, 4);
  if (wrong_begin)
    return wrong_begin;
  CHECK(on_drives(m) == PIECES && !driver.cuCtxGetCurrent(&context));
  enqueue_lock();
  move_forget_context(context);
  enqueue_unlock();
  failing(0, 1000);
  CHECK(drive_fault_bytes(m, 1) == CUDA_ERROR_UNKNOWN && on_drives(m) == PIECES);
  CHECK(reported("no stream could be made for the copy") && !stopped);
  failing(0, 0);
  CHECK(!drive_fault_all(NULL) && on_drives(m) == 0 && whole());
  return NULL;
}

static size_t evict(size_t bytes) {
  enqueue_lock();
  const size_t freed = state_evict(bytes);
  enqueue_unlock();
  return freed;
}

static const char *evicted(void) {
  drive_units = 0;
  const char *wrong_begin = begin(0, 4);
  if (wrong_begin)
    return wrong_begin;
  CHECK(on_drives(m) == 0);
  drive_units = 1024;
  CHECK(!state_foreign_access(m, (size_t)PIECES * PIECE, NULL, false) &&
        evict(4 * (size_t)PIECE) == 0); /* in use */
  drive_units = 0;
  CHECK(!step() && !step() && on_drives(m) == 0);
  drive_units = 1024;
  touch_unseen();
  CHECK(evict(4 * (size_t)PIECE) == 0);
  drive_units = 0;
  CHECK(!step() && !step() && on_drives(m) == 0);
  drive_units = 1024;
  CHECK(evict(4 * (size_t)PIECE) == 4 * (size_t)PIECE && on_drives(m) == 2 && on_drives(v) == 2);
  CHECK(!drive_fault_all(NULL) && whole());
  return NULL;
}

/* Rare ones aren't counted together: as long as they are apart, the rest is as short as the first. */
static const char *rests_briefly(void) {
  const char *wrong_begin = begin(0, 4);
  if (wrong_begin)
    return wrong_begin;
  for (unsigned time = 0; time < 5; time++) {
    CHECK(on_drives(m) == PIECES && !drive_fault_all(NULL) && on_drives(m) == 0);
    for (unsigned steps = 0; steps < 20; steps++)
      CHECK(!step());
  }
  CHECK(on_drives(m) == PIECES && on_drives(v) == PIECES && range_find(m)->drive_rest == 1);
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

/* ---- what goes wrong on the way out ---- */

static unsigned copies_out;
static bool copies_fail, copies_late; /* their events don't come */
static CUresult counted_copy(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
  copies_out++;
  return copies_fail ? CUDA_ERROR_OUT_OF_MEMORY
                     : whole_driver()->cuMemcpyDtoHAsync_v2(to, from, bytes, stream);
}
static CUresult late_query(CUevent event) {
  return copies_late && copies_out ? CUDA_ERROR_NOT_READY : whole_driver()->cuEventQuery(event);
}
static CUresult refuse_unmapping(CUdeviceptr at, size_t bytes) {
  return at == m + PIECE ? CUDA_ERROR_NOT_PERMITTED : whole_driver()->cuMemUnmap(at, bytes);
}

/* A step that is to send state; nothing goes, no frame and no unit is lost. */
static bool step_keeps(void) {
  return !step() && on_drives(m) + on_drives(v) == 0 && drive_units_used == 0;
}
static const char *goes_after_all(void) {
  for (unsigned i = 0; i < 20 && on_drives(m) < PIECES; i++) /* put off for some */
    CHECK(!step());
  CHECK(on_drives(m) == PIECES && on_drives(v) == PIECES);
  CHECK(drive_units_used == 2 * PIECES && !drive_fault_all(NULL) && whole());
  return NULL;
}

static const char *frames_taken(void) {
  const char *wrong_begin = begin(0, 1);
  if (wrong_begin)
    return wrong_begin;
  drive_frames_late = true;
  CHECK(step_keeps() && reported("moving was put off"));
  drive_frames_late = false;
  return goes_after_all();
}

static const char *copy_refused(void) {
  const char *wrong_begin = begin(0, 1);
  if (wrong_begin)
    return wrong_begin;
  driver.cuMemcpyDtoHAsync_v2 = counted_copy;
  copies_fail = true;
  CHECK(step_keeps() && copies_out == 1);
  copies_fail = false;
  return goes_after_all();
}

/* Its frames are kept until it has ended, and nothing else goes meanwhile. */
static const char *copy_late(void) {
  const char *wrong_begin = begin(0, 1);
  if (wrong_begin)
    return wrong_begin;
  move_wait_ns = 2000000;
  driver.cuMemcpyDtoHAsync_v2 = counted_copy;
  driver.cuEventQuery = late_query;
  copies_late = true;
  CHECK(!step() && on_drives(m) + on_drives(v) == 0 && drive_units_used == copies_out);
  const unsigned copied = copies_out;
  CHECK(copied > 0);
  for (unsigned i = 0; i < 20; i++) /* put off for fewer */
    CHECK(!step() && copies_out == copied && drive_units_used == copied);
  copies_late = false;
  move_wait_ns = 20000000000;
  return goes_after_all();
}

static const char *copy_never(void) {
  CUcontext context;
  const char *wrong_begin = begin(0, 1);
  if (wrong_begin)
    return wrong_begin;
  move_wait_ns = 2000000;
  driver.cuMemcpyDtoHAsync_v2 = counted_copy;
  driver.cuEventQuery = late_query;
  copies_late = true;
  CHECK(!step() && drive_units_used > 0 && !driver.cuCtxGetCurrent(&context));
  enqueue_lock();
  drive_forget_context(context, true);
  enqueue_unlock();
  CHECK(drive_units_used == 0);
  return NULL;
}

static const char *unmapping_refused(void) {
  const char *wrong_begin = begin(0, 1);
  if (wrong_begin)
    return wrong_begin;
  driver.cuMemUnmap = refuse_unmapping;
  CHECK(!step() && on_drives(m) == PIECES - 1 && range_find(m)->pieces[1].tier == PIECE_DEVICE);
  driver.cuMemUnmap = whole_driver()->cuMemUnmap;
  CHECK(drive_units_used == 2 * PIECES - 1 && !drive_fault_all(NULL) && whole());
  return NULL;
}

/* Another process took it, or the file system refuses: what found room goes. */
static const char *room_taken(void) {
  drive_room_wrong = true;
  drive_units = 2;
  const char *wrong_begin = begin(0, 4);
  if (wrong_begin)
    return wrong_begin;
  CHECK(on_drives(m) + on_drives(v) == 2 && drive_units_used == 2 && reported("no room"));
  CHECK(!drive_fault_all(NULL) && drive_units_used == 0 && whole());
  return NULL;
}

/* ---- hooks and moves at the same time ---- */

/* What another thread does while a move is under way, behind its first copy or before its first unmapping. */
static void (*at_copy)(void), (*at_unmap)(void);
static void call(void (**what)(void)) {
  void (*now)(void) = *what;
  *what = NULL;
  if (now)
    now();
}
static CUresult copy_out(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
  CUresult result = whole_driver()->cuMemcpyDtoHAsync_v2(to, from, bytes, stream);
  if (!result)
    result = whole_driver()->cuStreamSynchronize(stream);
  call(&at_copy);
  return result;
}
static CUresult unmap(CUdeviceptr at, size_t bytes) {
  call(&at_unmap);
  return whole_driver()->cuMemUnmap(at, bytes);
}

/* Copied out, and not yet exchanged. */
static void write_named(void) {
  (void)state_foreign_access(m, PIECE, NULL, true);
  fill(m, PIECE, 7);
}
static void write_unseen(void) {
  touch_unseen();
  fill(m, PIECE, 8);
}
/* A graph that names it is made. */
static void hold(void) {
  range_find(m)->graph_holds++;
}
static const char *touched_under_a_move(void) {
  const char *wrong_begin = begin(0, 1);
  if (wrong_begin)
    return wrong_begin;
  driver.cuMemcpyDtoHAsync_v2 = copy_out;
  at_copy = write_named;
  CHECK(!step() && !at_copy && on_drives(m) == 0 && holds(m, PIECE, 7));
  fill(m, PIECE, 1);
  CHECK(!step() && !step() && on_drives(m) == PIECES && !drive_fault_all(NULL) && rested());
  CHECK(!step());
  at_copy = write_unseen;
  CHECK(!step() && !at_copy && on_drives(m) + on_drives(v) == 0 && holds(m, PIECE, 8));
  fill(m, PIECE, 1);
  at_copy = hold;
  CHECK(!step() && !step() && !at_copy && on_drives(m) == 0);
  range_find(m)->graph_holds--;
  CHECK(!drive_fault_all(NULL) && whole());
  return NULL;
}

/* The other thread: a hook, and the call behind it. */
struct accessor {
  pthread_t thread;
  CUcontext context;
  CUresult result;
  _Atomic bool done;
  uint64_t spin_ns;
  unsigned seed;
  bool beside_copies;
};
static struct accessor accessor;

static void spin(uint64_t ns) {
  for (const uint64_t end = clock_now_ns() + ns; clock_now_ns() < end;)
    ;
}

/* A move's copy may read what is just written, as on hardware, and is given up then; a sanitizer would call that a race. */
#ifdef __SANITIZE_THREAD__
static const bool writes_beside_copies = false;
#else
static const bool writes_beside_copies = true;
#endif

static CUresult write_piece(unsigned seed) {
  static unsigned char bytes[PIECE];
  if (!accessor.beside_copies || writes_beside_copies) {
    fill(m + PIECE, PIECE, seed);
    return CUDA_SUCCESS;
  }
  return whole_driver()->cuMemcpyDtoH_v2(bytes, m + PIECE, PIECE);
}

static void *access_once(void *unused) {
  (void)unused;
  accessor.result = whole_driver()->cuCtxSetCurrent(accessor.context);
  spin(accessor.spin_ns);
  if (!accessor.result)
    accessor.result = state_foreign_access(m + PIECE, PIECE, NULL, true);
  if (!accessor.result)
    accessor.result = write_piece(accessor.seed);
  accessor.done = true;
  return NULL;
}

static bool start_accessor(uint64_t spin_ns, unsigned seed) {
  accessor.spin_ns = spin_ns;
  accessor.seed = seed;
  accessor.done = false;
  return !driver.cuCtxGetCurrent(&accessor.context) &&
         !pthread_create(&accessor.thread, NULL, access_once, NULL);
}

/* Goes on when the other thread's hook has counted, and read where the piece is. */
static bool in_window;
static void access_in_window(void) {
  const uint64_t touches = range_find(m)->touches;
  in_window = start_accessor(0, 9);
  while (range_find(m)->touches == touches && !accessor.done)
    spin(1000);
  usleep(20000);
}

static const char *touched_while_unmapped(void) {
  const char *wrong_begin = begin(0, 1);
  if (wrong_begin)
    return wrong_begin;
  driver.cuMemUnmap = unmap;
  CHECK(!step() && on_drives(m) == PIECES && !drive_fault_all(NULL) && rested() && !step());
  at_unmap = access_in_window;
  CHECK(!step() && in_window && !pthread_join(accessor.thread, NULL));
  CHECK(!accessor.result && range_find(m)->pieces[1].tier == PIECE_DEVICE);
  CHECK(holds(m + PIECE, PIECE, 9) && !drive_fault_all(NULL) && holds(m, PIECE, 1));
  return NULL;
}

/* Whatever the moment, the call finds its memory, and what it wrote is there. */
static const char *touched_at_any_moment(void) {
  unsigned sent = 0, stayed = 0, random = 12345;
  uint64_t move_ns = 100000;
  const char *wrong_begin = begin(0, 1);
  if (wrong_begin)
    return wrong_begin;
  accessor.beside_copies = true;
  fill(m + PIECE, PIECE, 77);
  for (unsigned i = 0; i < 150; i++) {
    for (unsigned k = 0; k < 4 && on_drives(m) < PIECES; k++)
      CHECK(!step());
    CHECK(on_drives(m) == PIECES && !drive_fault_all(NULL) && rested());
    CHECK(!step() && on_drives(m) == 0);
    random = random * 1103515245 + 12345;
    CHECK(start_accessor(2 * move_ns * (random >> 16 & 0xff) >> 8, i));
    const uint64_t began_ns = clock_now_ns();
    CHECK(!step());
    move_ns = on_drives(m) == PIECES ? clock_now_ns() - began_ns : move_ns + move_ns / 16;
    CHECK(!pthread_join(accessor.thread, NULL) && rested());
    CHECK(!accessor.result && range_find(m)->pieces[1].tier == PIECE_DEVICE);
    CHECK(holds(m + PIECE, PIECE, writes_beside_copies ? i : 77));
    sent += on_drives(m) != 0;
    stayed += on_drives(m) == 0;
  }
  printf("# of %u moves %u were given up\n", sent + stayed, stayed);
  return sent ? NULL : "the accesses were always first";
}

static const char *other_stream(void) {
  CUstream streams[2];
  struct state_tensor tensor;
  const char *wrong_begin = begin(0, 1);
  if (wrong_begin)
    return wrong_begin;
  CHECK(!driver.cuStreamCreate(&streams[0], CU_STREAM_NON_BLOCKING) &&
        !driver.cuStreamCreate(&streams[1], CU_STREAM_NON_BLOCKING));
  tensor = (struct state_tensor){{m, v}, (size_t)PIECES * PIECE, 0};
  for (unsigned i = 0; i < 6; i++)
    CHECK(!step_names(&tensor, 1, streams[i % 2]) && on_drives(m) + on_drives(v) == 0);
  for (unsigned i = 0; i < 70; i++)
    CHECK(!step_names(&tensor, 1, streams[0]));
  CHECK(on_drives(m) == PIECES && on_drives(v) == PIECES && !drive_fault_all(NULL) && whole());
  return NULL;
}

int main(void) {
  TEST_CASE("state goes to drives and comes back with its partners and every byte", "",
            goes_and_returns);
  TEST_CASE("only what is beyond the host budget goes to drives", "", beyond_the_host);
  TEST_CASE("state that something reads does not go to drives", "", reads_keep);
  TEST_CASE("the host has room first for what drives don't take", "", host_for_what_drives_refuse);
  TEST_CASE("room on drives is not kept for what stays for its partner's sake", "",
            room_for_what_goes);
  TEST_CASE("nothing goes to drives while launches are unseen", "", unseen_keep);
  TEST_CASE("after a failed write state comes home and no more goes", "", failed_drive);
  TEST_CASE("at the wear limit no more state goes to drives, and what is there stays", "", worn);
  TEST_CASE("a failed read stops the hooks", "", failed_read);
  TEST_CASE("a synchronous copy is served from the drive, where the state stays", "", served);
  TEST_CASE("freed state gives its room on drives back", "", freed);
  TEST_CASE("drives with little room take whole pairs", "", little_room);
  TEST_CASE("state that is copied to the host at every step goes to drives all the same", "",
            host_reads_pass);
  TEST_CASE("a graph's launches keep what the graph holds off drives, and nothing else", "",
            graphs_pass);
  TEST_CASE("addresses in a list that no block names don't keep state off drives", "",
            stale_lists_pass);
  TEST_CASE("a fault-in follows partners through shared pieces, as far as there is memory", "",
            partners_of_partners);
  TEST_CASE("what is brought in goes to host memory beyond the budget when the device is full", "",
            beyond_the_budget);
  TEST_CASE("what is brought in goes to the budget's host memory first when the device is full", "",
            within_the_budget);
  TEST_CASE("state is served and brought in for a thread without a context", "", without_a_context);
  TEST_CASE("a fault-in without a stream is refused with a sentence, and state stays whole", "",
            no_stream);
  TEST_CASE("memory that is short moves state to drives, if nothing but the step uses it", "",
            evicted);
  TEST_CASE("while frames are taken state stays where it is, and goes later", "", frames_taken);
  TEST_CASE("state whose copy to a frame fails stays where it is, and goes later", "",
            copy_refused);
  TEST_CASE("a copy to a frame that is late keeps the frame until it has ended", "", copy_late);
  TEST_CASE("a copy to a frame that a lost GPU never ends keeps no room on drives", "", copy_never);
  TEST_CASE("a piece that the driver doesn't unmap stays where it is", "", unmapping_refused);
  TEST_CASE("when drives have less room than they said what found room goes", "", room_taken);
  TEST_CASE("a touch while a piece is copied to a drive keeps it where it is", "",
            touched_under_a_move);
  TEST_CASE("an access while a piece is unmapped brings it in", "", touched_while_unmapped);
  TEST_CASE("an access at any moment of a move finds its memory", "", touched_at_any_moment);
  TEST_CASE("what is brought in again and again stays off drives twice as long each time", "",
            rests);
  TEST_CASE("what is brought in now and then soon goes to drives again", "", rests_briefly);
  TEST_CASE("what several streams step in turn stays off drives", "", other_stream);
  return tap_done();
}
