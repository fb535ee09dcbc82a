/* Access to pieces on drives from outside the step: what is brought in before a call, what is served, and what a failure says.
   The drive tier is this file's: a piece on a drive is unmapped, with its bytes in memory of ours, and a fault maps it anew. */
#include "memory_support.h"
#include "shim/drive.h"
#include "shim/graphs.h"
#include "shim/image.h"
#include "tests/lib/tap.h"

/* ---- the tier ---- */

static unsigned char units[64][PIECE];
static unsigned unit_count, faults, faults_of_all, served;
static CUresult fault_answer;

static bool to_drive(uintptr_t address) {
  struct range *range = range_find(address);
  const uint32_t i = (uint32_t)((address - range->base) / PIECE);
  const CUdeviceptr at = range->base + (size_t)i * PIECE;
  struct piece *piece = &range->pieces[i];
  if (driver.cuMemcpyDtoH_v2(units[unit_count], at, PIECE) || driver.cuCtxSynchronize() ||
      driver.cuMemUnmap(at, PIECE) || driver.cuMemRelease(piece->handle))
    return false;
  range_piece_to_drive(range, i, unit_count++);
  return true;
}

static CUresult from_drive(struct range *range, uint32_t i) {
  const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
  const CUmemAccessDesc access = {{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                                  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle;
  const CUdeviceptr at = range->base + (size_t)i * PIECE;
  DRIVER_TRY(driver.cuMemCreate(&handle, PIECE, &prop, 0));
  DRIVER_TRY(driver.cuMemMap(at, PIECE, 0, handle, 0));
  DRIVER_TRY(driver.cuMemSetAccess(at, PIECE, &access, 1));
  const uint32_t unit = range->pieces[i].unit;
  range_piece_set(range, i, handle, PIECE_DEVICE);
  return driver.cuMemcpyHtoD_v2(at, units[unit], PIECE);
}

CUresult drive_fault(struct range *range, uint32_t first, uint32_t last) {
  faults++;
  if (fault_answer)
    return fault_answer;
  for (uint32_t i = first; i <= last; i++)
    if (range->pieces[i].tier == PIECE_DRIVE)
      DRIVER_TRY(from_drive(range, i));
  return CUDA_SUCCESS;
}

CUresult drive_fault_bytes(uintptr_t address, size_t bytes) {
  struct range *range = range_find(address);
  return drive_fault(range, (uint32_t)((address - range->base) / PIECE),
                     (uint32_t)((address + bytes - 1 - range->base) / PIECE));
}

CUresult drive_fault_all(CUcontext context) {
  (void)context;
  faults_of_all++;
  if (fault_answer)
    return fault_answer;
  size_t count = 0;
  struct range **ranges = range_list(&count);
  for (size_t i = 0; i < count; i++)
    if (ranges[i]->drive_pieces)
      DRIVER_TRY(drive_fault(ranges[i], 0, ranges[i]->piece_count - 1));
  free((void *)ranges);
  return CUDA_SUCCESS;
}

CUresult drive_serve(void *destination, uintptr_t address, size_t bytes) {
  const struct range *range = range_find(address);
  served++;
  for (size_t i = 0; i < bytes; i++) {
    const size_t at = address + i - range->base;
    const struct piece *piece = &range->pieces[at / PIECE];
    if (piece->tier == PIECE_DRIVE)
      ((unsigned char *)destination)[i] = units[piece->unit][at % PIECE];
    else
      DRIVER_TRY(driver.cuMemcpyDtoH_v2((char *)destination + i, address + i, 1));
  }
  return CUDA_SUCCESS;
}

/* Nothing goes to this tier or leaves it at a step's beginning. */
bool drive_possible(CUcontext context, size_t piece_bytes) {
  (void)context, (void)piece_bytes;
  return false;
}
size_t drive_room(CUcontext context) {
  (void)context;
  return 0;
}
CUresult drive_send(const struct move_item *items, size_t count, uint64_t unseen, CUstream stream,
                    bool wait, size_t *moved) {
  (void)items, (void)count, (void)unseen, (void)stream, (void)wait;
  *moved = 0;
  return CUDA_SUCCESS;
}
CUresult drive_bring(const struct move_item *items, size_t count) {
  (void)items, (void)count;
  return CUDA_SUCCESS;
}
void drive_forget_piece(struct range *range, uint32_t piece) {
  (void)piece;
  range_count_drive(range, false);
}
void drive_forget_context(CUcontext context, bool gone) {
  (void)gone;
  (void)context;
}
void drive_step(CUcontext context) {
  (void)context;
}

static unsigned on_drive(uintptr_t base) {
  return range_find(base)->drive_pieces;
}

/* A tensor's two states, known and on the device, all pieces of m but the first on drives. */
static uintptr_t m, v;
static bool state_on_drives(void) {
  config.mode = MODE_OBSERVE; /* nothing moves by itself */
  m = filled(4 * PIECE, 1);
  v = filled(4 * PIECE, 2);
  const struct state_tensor tensor = {{m, v}, 4 * PIECE, 0};
  return m && v && !step_names(&tensor, 1, NULL) &&
         !step_names(&tensor, 1, NULL) && /* a step's end makes its state known */
         to_drive(m + PIECE) && to_drive(m + 2 * PIECE) && to_drive(m + 3 * PIECE) &&
         on_drive(m) == 3 && range_any_drive();
}

/* ---- copies and memsets ---- */

static const char *copies_bring_in(void) {
  CHECK(state_on_drives());
  const uint64_t touches = range_find(m)->touches;
  CHECK(!state_foreign_access(m, PIECE, NULL, true) && !faults); /* its piece is there */
  CHECK(range_find(m)->touches > touches);
  CHECK(!state_foreign_access(m + 2 * PIECE - 1, 2, NULL, false));
  CHECK(faults == 1 && on_drive(m) == 1);           /* both pieces of the copy, and no other */
  CHECK(!range_find(m)->pieces[1].foreign_touched); /* it was read */
  CHECK(!state_foreign_access(m + 3 * PIECE, 8, NULL, true) && on_drive(m) == 0);
  CHECK(range_find(m)->pieces[3].foreign_touched && holds(m, 4 * PIECE, 1));
  return NULL;
}

static const char *failing_fault(void) {
  CHECK(state_on_drives());
  fault_answer = CUDA_ERROR_OUT_OF_MEMORY;
  CHECK(state_foreign_access(m + PIECE, 8, NULL, false) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(graphs_hold_address(GRAPHS_TEMPLATE(NULL), m) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(faults == 2 && on_drive(m) == 3);
  return NULL;
}

static const char *captured_copies(void) {
  CHECK(state_on_drives());
  capture_open = true;
  CHECK(!state_foreign_access(m, 8, NULL, false)); /* the graph holds all of it */
  CHECK(faults == 1 && on_drive(m) == 0 && !range_movable(range_find(m)));
  return NULL;
}

static const char *held_by_address(void) {
  CHECK(state_on_drives());
  const uint64_t touches = range_find(m)->touches;
  graphs_made(GRAPHS_TEMPLATE(&m));
  CHECK(!graphs_hold_address(GRAPHS_TEMPLATE(&m), m + 8) && on_drive(m) == 0);
  CHECK(range_find(m)->graph_holds == 1 && range_find(m)->touches > touches);
  CHECK(holds(m, 4 * PIECE, 1));
  return NULL;
}

/* ---- reads that are served ---- */

static const char *synchronous_reads(void) {
  static unsigned char got[2 * PIECE], expected[2 * PIECE];
  CUresult result = CUDA_ERROR_UNKNOWN;
  CHECK(state_on_drives());
  memcpy(expected, units[0], PIECE);
  memcpy(expected + PIECE, units[1], PIECE);
  const uint64_t touches = range_find(m)->touches;
  CHECK(touch_serve(got, m + PIECE, 2 * PIECE, NULL, true, &result) && !result);
  CHECK(served == 1 && !faults && on_drive(m) == 3 && !memcmp(got, expected, sizeof got));
  CHECK(range_find(m)->touches == touches); /* no reason to stay, and no piece moves under it */
  CHECK(touch_serve(got, m + PIECE, 8, new_stream(), false, &result) && !result && served == 2);
  CHECK(touch_serve(got, m, PIECE, NULL, true, &result) && !result && served == 3);
  const uintptr_t other = filled(PIECE, 3);
  CHECK(!touch_serve(got, other, PIECE, NULL, true, &result));       /* no state */
  CHECK(!touch_serve((void *)v, m + PIECE, 8, NULL, true, &result)); /* to the device */
  capture_open = true;
  CHECK(!touch_serve(got, m + PIECE, 8, NULL, true, &result) && served == 3);
  return NULL;
}

static const char *pinned_destination(void) {
  void *pinned = NULL;
  CUresult result;
  CHECK(state_on_drives() && !driver.cuMemHostAlloc(&pinned, PIECE, 0));
  CHECK(!touch_serve(pinned, m + PIECE, 8, NULL, false, &result) && !served);
  CHECK(touch_serve(pinned, m + PIECE, 8, NULL, true, &result) && !result && served == 1);
  CHECK(!memcmp(pinned, units[0], 8));
  return NULL;
}

static CUstream slow;
static bool waited;
static CUresult synchronize(CUevent event) {
  waited = driver.cuStreamQuery(slow) == CUDA_ERROR_NOT_READY;
  const CUresult result = whole_driver()->cuEventSynchronize(event);
  waited = waited && driver.cuStreamQuery(slow) == CUDA_SUCCESS;
  return result;
}

/* The copy would wait for its stream, and in the legacy stream for all that block. */
static const char *served_in_order(void) {
  unsigned char got[8];
  CUresult result;
  CHECK(state_on_drives() && !driver.cuStreamCreate(&slow, CU_STREAM_DEFAULT));
  driver.cuEventSynchronize = synchronize;
  delay(slow, 100);
  CHECK(touch_serve(got, m + PIECE, 8, slow, false, &result) && !result && waited);
  waited = false;
  delay(slow, 100);
  CHECK(touch_serve(got, m + PIECE, 8, NULL, true, &result) && !result && waited && served == 2);
  return NULL;
}

/* ---- launches ---- */

static size_t parameter_sizes[4];
static CUresult parameter_info(CUfunction function, size_t i, size_t *offset, size_t *bytes) {
  (void)function;
  *offset = 0;
  *bytes = i < 4 ? parameter_sizes[i] : 0;
  return *bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
static const char *kernel_name;
static CUresult function_name(const char **name, CUfunction function) {
  (void)function;
  *name = kernel_name;
  return kernel_name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
static void takes(size_t bytes, const char *name) {
  driver.cuFuncGetParamInfo = parameter_info;
  driver.cuFuncGetName = function_name;
  parameter_sizes[0] = bytes;
  kernel_name = name;
}

static const char *named_by_a_launch(void) {
  CHECK(state_on_drives());
  takes(16, "kernel");
  uint64_t words[2] = {7, v};
  void *parameters[] = {words};
  CHECK(!state_foreign_launch((CUfunction)&m, 1, NULL, parameters, NULL) && !faults);
  words[0] = m + 2 * PIECE; /* from there to the tensor's end */
  CHECK(!state_foreign_launch((CUfunction)&m, 1, NULL, parameters, NULL));
  CHECK(faults == 1 && on_drive(m) == 1 && range_find(m)->pieces[1].tier == PIECE_DRIVE);
  words[0] = m;
  fault_answer = CUDA_ERROR_UNKNOWN;
  CHECK(state_foreign_launch((CUfunction)&m, 1, NULL, parameters, NULL) == CUDA_ERROR_UNKNOWN);
  return NULL;
}

static const char *large_unread_list(void) {
  static uint64_t list[417];
  CHECK(state_on_drives());
  takes(sizeof list, "some_kernel_of_lists");
  list[400] = m;
  void *parameters[] = {list};
  CHECK(!state_foreign_launch((CUfunction)list, 1, NULL, parameters, NULL) && on_drive(m) == 0);
  CHECK(!range_find(m)->pieces[1].foreign_touched); /* it may be a stale address */
  return NULL;
}

static const char *opaque_kernels(void) {
  CHECK(state_on_drives());
  takes(8, "ncclDevKernel_AllReduce_Sum_f32_RING_LL");
  uint64_t word = 0;
  void *parameters[] = {&word};
  CHECK(!state_foreign_launch((CUfunction)&m, 1, NULL, parameters, NULL));
  CHECK(faults_of_all == 1 && on_drive(m) == 0 && touch_unseen_count() == 1);
  CHECK(!state_foreign_launch((CUfunction)&m, 1, NULL, parameters, NULL) && faults_of_all == 1);
  return NULL;
}

static const char *told_kernels(void) {
  CHECK(state_on_drives());
  takes(8, "ncclDevKernel_AllReduce_Sum_f32_RING_LL");
  uint64_t word = 0;
  void *parameters[] = {&word};
  state_told(true);
  CHECK(!state_foreign_launch((CUfunction)&m, 1, NULL, parameters, NULL));
  CHECK(!faults && on_drive(m) == 3 && touch_unseen_count() == 0);
  word = m + PIECE; /* what it names counts as ever */
  CHECK(!state_foreign_launch((CUfunction)&m, 1, NULL, parameters, NULL) && on_drive(m) == 0);
  CHECK(to_drive(m + PIECE));
  word = 0;
  state_told(false);
  CHECK(!state_foreign_launch((CUfunction)&m, 1, NULL, parameters, NULL) && on_drive(m) == 0);
  return NULL;
}

static const char *unknown_tags(void) {
  CHECK(state_on_drives());
  void *extra[] = {(void *)77, NULL, CU_LAUNCH_PARAM_END};
  CHECK(!state_foreign_launch((CUfunction)&m, 1, NULL, NULL, extra));
  CHECK(faults_of_all == 1 && on_drive(m) == 0);
  return NULL;
}

static const char *kernel_nodes(void) {
  CHECK(state_on_drives());
  takes(8, "kernel");
  uint64_t word = m;
  void *parameters[] = {&word};
  graphs_made(GRAPHS_TEMPLATE(&m));
  CHECK(!state_graph_launch(GRAPHS_TEMPLATE(&m), (CUfunction)&m, parameters, NULL));
  CHECK(on_drive(m) == 0 && range_find(m)->graph_holds == 1 && holds(m, 4 * PIECE, 1));
  CHECK(to_drive(m + PIECE) && !touch_graph_launch(NULL) && on_drive(m) == 1);
  takes(8, "ncclDevKernel");
  state_forget_functions();
  CHECK(!state_graph_launch(GRAPHS_TEMPLATE(&m), (CUfunction)&v, parameters, NULL));
  CHECK(on_drive(m) == 0 && to_drive(m + PIECE)); /* a graph that reaches what nobody knows */
  CHECK(!touch_graph_launch(NULL) && on_drive(m) == 0);
  return NULL;
}

int main(void) {
  TEST_CASE(
      "copies and memsets bring in the pieces they touch and no others, after the touch is counted",
      "", copies_bring_in);
  TEST_CASE("what can't be brought in is the call's answer", "", failing_fault);
  TEST_CASE("a captured copy brings in the whole range that its graph holds", "", captured_copies);
  TEST_CASE("a node's address brings in the whole range that its graph holds", "", held_by_address);
  TEST_CASE("a synchronous copy to the host is served from the drive and brings nothing in", "",
            synchronous_reads);
  TEST_CASE("an asynchronous copy is served to pageable memory alone", "", pinned_destination);
  TEST_CASE("a served copy waits for what the copy would wait for", "", served_in_order);
  TEST_CASE("a launch brings in the tensor that it names, from the address on", "",
            named_by_a_launch);
  TEST_CASE("an address in a list that can't be read is brought in and doesn't go home for it", "",
            large_unread_list);
  TEST_CASE("a kernel that works on lists in memory brings everything in", "", opaque_kernels);
  TEST_CASE("a kernel of a call that told what it works on leaves the rest on drives", "",
            told_kernels);
  TEST_CASE("an extra parameter of an unknown tag brings everything in", "", unknown_tags);
  TEST_CASE("kernel nodes bring in what they name, and graphs of unreadable kernels everything", "",
            kernel_nodes);
  return tap_done();
}
