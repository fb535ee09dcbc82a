/* Ranges and the host tier: making, finding, freeing, and what happens when a driver call fails. */
#include "memory_support.h"
#include "tests/lib/tap.h"
#include <pthread.h>

static const char *pieces(void) {
  CUdeviceptr pointer = filled(3 * PIECE + 100, 1);
  struct range *range = range_find(pointer);
  CHECK(range && range->bytes == 3 * PIECE + 100 && range->mapped_bytes == 4 * PIECE);
  CHECK(range->piece_count == 4 && range->host_pieces == 0 && range->id);
  CHECK(range_find(pointer + 3 * PIECE + 99) == range);
  CHECK(!range_find(pointer + 3 * PIECE + 100) && !range_find(pointer - 1) && !range_find(0));
  CHECK(!range_on_host(pointer, 1) && !range_any_host());
  CHECK(holds(pointer, 3 * PIECE + 100, 1));
  return NULL;
}

static const char *many(void) {
  uintptr_t bases[40];
  for (unsigned i = 0; i < 40; i++)
    CHECK((bases[i] = filled(PIECE, i)));
  for (unsigned i = 0; i < 40; i += 2)
    CHECK(range_destroy(range_find(bases[i])) == CUDA_SUCCESS);
  for (unsigned i = 0; i < 40; i++)
    CHECK(i % 2 ? range_find(bases[i] + 5)->base == bases[i] && holds(bases[i], PIECE, i)
                : !range_find(bases[i]));
  return NULL;
}

static const char *full(void) {
  size_t before = device_free();
  CUdeviceptr pointer;
  CHECK(range_create(&pointer, DEVICE_BYTES + PIECE, PIECE_DEVICE) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(device_free() == before);
  CHECK(range_create(&pointer, 0, PIECE_DEVICE) == CUDA_ERROR_NOT_SUPPORTED);
  return NULL;
}

static const char *failures_while_made(void) {
  CHECK(range_piece_bytes(0) == PIECE);
  size_t before = device_free();
  for (unsigned n = 0; n < 9;
       n++) { /* reserve, 3 x (create, map), access; the ninth doesn't happen */
    CUdeviceptr pointer = 0;
    failing(n, 1);
    CUresult result = range_create(&pointer, 3 * PIECE, PIECE_DEVICE);
    unsigned failed = calls_failed;
    failing(0, 0);
    CHECK(failed == (n < 8));
    CHECK(result == (n < 8 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS));
    CHECK(n == 8 || (!pointer && device_free() == before));
  }
  return NULL;
}

static const char *no_access(void) {
  CUdeviceptr pointer;
  driver.cuMemCreate = NULL;
  CHECK(range_create(&pointer, PIECE, PIECE_DEVICE) == CUDA_ERROR_NOT_SUPPORTED);
  return NULL;
}

static const char *freed_after_work(void) {
  uintptr_t base = filled(4 * PIECE, 1);
  CUstream stream = new_stream();
  delay(stream, 50);
  CHECK(!driver.cuMemsetD8Async(base, 7, 4 * PIECE, stream));
  size_t before = device_free();
  CHECK(range_destroy(range_find(base)) == CUDA_SUCCESS);
  CHECK(driver.cuStreamQuery(stream) == CUDA_SUCCESS);
  CHECK(device_free() == before + 4 * PIECE && !range_find(base));
  return NULL;
}

static unsigned synchronised;
static CUresult (*real_synchronise)(void);
static CUresult count_synchronise(void) {
  synchronised++;
  return real_synchronise();
}

static const char *freed_under_capture(void) {
  uintptr_t base = filled(4 * PIECE, 1), other = filled(PIECE, 2);
  size_t before = device_free();
  real_synchronise = driver.cuCtxSynchronize;
  driver.cuCtxSynchronize = count_synchronise;
  capture_open = true;
  CHECK(range_destroy(range_find(base)) == CUDA_SUCCESS);
  CHECK(!synchronised && device_free() == before && !range_find(base));
  capture_open = false;
  CHECK(range_destroy(range_find(other)) == CUDA_SUCCESS);
  CHECK(device_free() == before + 5 * PIECE);
  return NULL;
}

static const char *context_ends(void) {
  CUcontext context;
  uintptr_t base = filled(4 * PIECE, 1);
  size_t before = device_free();
  CHECK(!driver.cuCtxGetCurrent(&context));
  range_forget_context((CUcontext)&before);
  CHECK(range_find(base));
  CHECK(!driver.cuCtxSynchronize()); /* as the driver does before it ends one */
  range_forget_context(context);
  CHECK(!range_find(base) && device_free() == before + 4 * PIECE);
  return NULL;
}

/* The flags of the mapping that holds the address, as /proc/self/smaps tells. */
static bool mapping_flag(uintptr_t address, const char *flag) {
  FILE *file = fopen("/proc/self/smaps", "r");
  char line[1024];
  bool inside = false, found = false;
  while (file && fgets(line, sizeof line, file)) {
    unsigned long from, to;
    char end;
    if (sscanf(line, "%lx-%lx%c", &from, &to, &end) == 3)
      inside = address >= from && address < to;
    else if (inside && !strncmp(line, "VmFlags:", 8))
      found = strstr(line, flag) != NULL;
  }
  if (file)
    fclose(file);
  return found;
}

static const char *host_range(void) {
  CUdeviceptr pointer;
  size_t before = device_free();
  CHECK(range_create(&pointer, 2 * PIECE, PIECE_HOST) == CUDA_SUCCESS);
  CHECK(device_free() == before && range_on_host(pointer, 2 * PIECE) && range_any_host());
  CHECK(range_find(pointer)->pieces[1].provisional && report.totals.moved_bytes == 2 * PIECE);
  fill(pointer, 2 * PIECE, 3);
  volatile unsigned char *bytes = (volatile unsigned char *)pointer;
  CHECK(bytes[1] == (unsigned char)(3 * 37 + 11)); /* the CPU sees it */
  CHECK(mapping_flag(pointer, " dc"));             /* a forked child doesn't */
  CHECK(!strcmp(report.tier, "host_numa"));
  CHECK(tier_room(0) == budget_bytes - 2 * PIECE);
  CHECK(range_destroy(range_find(pointer)) == CUDA_SUCCESS);
  CHECK(!range_any_host() && !report.totals.moved_bytes && tier_room(0) == budget_bytes);
  return NULL;
}

static const char *host_budget(void) {
  CUdeviceptr pointer;
  budget_bytes = 3 * PIECE + 100;
  CHECK(range_create(&pointer, 4 * PIECE, PIECE_HOST) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tier_room(0) == budget_bytes && !report.totals.moved_bytes);
  CHECK(reported("OFFLOAD_HOST_MEMORY"));
  CHECK(range_create(&pointer, 3 * PIECE, PIECE_HOST) == CUDA_SUCCESS);
  return NULL;
}

/* ---- the ladder ---- */

static unsigned refuse_kinds; /* bit per CUmemLocationType */
static unsigned probes;
static CUresult (*real_create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                               unsigned long long);
static CUresult refusing_create(CUmemGenericAllocationHandle *handle, size_t bytes,
                                const CUmemAllocationProp *properties, unsigned long long flags) {
  probes += properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE;
  if (refuse_kinds >> properties->location.type & 1)
    return CUDA_ERROR_NOT_PERMITTED;
  return real_create(handle, bytes, properties, flags);
}

static const char *no_numa(void) {
  CUdeviceptr pointer;
  real_create = driver.cuMemCreate;
  driver.cuMemCreate = refusing_create;
  refuse_kinds = 1u << CU_MEM_LOCATION_TYPE_HOST_NUMA;
  CHECK(range_create(&pointer, PIECE, PIECE_HOST) == CUDA_SUCCESS);
  CHECK(!strcmp(report.tier, "host") && range_on_host(pointer, PIECE));
  fill(pointer, PIECE, 4);
  CHECK(holds(pointer, PIECE, 4));
  return NULL;
}

static const char *no_host(void) {
  CUdeviceptr pointer;
  real_create = driver.cuMemCreate;
  driver.cuMemCreate = refusing_create;
  refuse_kinds = 1u << CU_MEM_LOCATION_TYPE_HOST_NUMA | 1u << CU_MEM_LOCATION_TYPE_HOST;
  CHECK(range_create(&pointer, PIECE, PIECE_HOST) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(!strcmp(report.tier, "none") && reported("--cap-add SYS_NICE"));
  unsigned once = probes;
  CHECK(range_create(&pointer, PIECE, PIECE_HOST) == CUDA_ERROR_NOT_SUPPORTED && probes == once);
  CHECK(range_create(&pointer, PIECE, PIECE_DEVICE) == CUDA_SUCCESS);
  return NULL;
}

static const char *large_pieces(void) {
  config.piece = (struct config_size){.bytes = 100000, .set = true};
  CHECK(range_piece_bytes(0) == 2 * PIECE && reported("OFFLOAD_PIECE=100000"));
  CHECK(range_find(filled(3 * PIECE, 1))->piece_count == 2);
  return NULL;
}

/* ---- threads ---- */

static _Atomic bool over;
static uintptr_t stable;

static void *make_and_free(void *context) {
  for (unsigned i = 0; i < 60; i++) {
    CUdeviceptr pointer;
    if (driver.cuCtxSetCurrent(context) || range_create(&pointer, PIECE, PIECE_DEVICE))
      return "a range could not be made";
    if (!range_find(pointer + 7) || range_destroy(range_find(pointer)))
      return "a range of another thread's hands";
  }
  return NULL;
}

static void *look(void *unused) {
  (void)unused;
  while (!over) {
    struct range *range = range_find(stable + 11);
    if (!range || range->base != stable)
      return "a range was not found";
    state_foreign_access(stable, 8, NULL, true);
  }
  return NULL;
}

static const char *threads(void) {
  pthread_t makers[2], watcher;
  CUcontext context;
  CHECK(!driver.cuCtxGetCurrent(&context));
  stable = filled(PIECE, 1);
  pthread_create(&watcher, NULL, look, NULL);
  for (size_t i = 0; i < 2; i++)
    pthread_create(&makers[i], NULL, make_and_free, context);
  void *bad[3] = {NULL};
  for (size_t i = 0; i < 2; i++)
    pthread_join(makers[i], &bad[i]);
  over = true;
  pthread_join(watcher, &bad[2]);
  CHECK(!bad[0] && !bad[1] && !bad[2]);
  return NULL;
}

int main(void) {
  TEST_CASE("a range has a piece per granule, the tail included, and is found by its addresses", "",
            pieces);
  TEST_CASE("of many ranges the right one is found, and freed ones are not", "", many);
  TEST_CASE("a request larger than the device is out of memory and leaves nothing behind", "",
            full);
  TEST_CASE("a driver call that fails while a range is made leaves nothing behind", "",
            failures_while_made);
  TEST_CASE("a driver without virtual memory makes no ranges", "", no_access);
  TEST_CASE("freeing waits for what is queued", "", freed_after_work);
  TEST_CASE("freeing under a capture gives the memory back when the capture has ended", "",
            freed_under_capture);
  TEST_CASE("a context that ends takes its ranges along, and no others", "", context_ends);
  TEST_CASE("a host range is seen by the CPU, not by forked children, and its bytes are booked", "",
            host_range);
  TEST_CASE("a host range beyond the budget is out of memory, and the reason names the variable",
            "", host_budget);
  TEST_CASE("without HOST_NUMA handles HOST handles are used", "", no_numa);
  TEST_CASE("without either, device ranges remain, and the reason names the container flag", "",
            no_host);
  TEST_CASE("OFFLOAD_PIECE is rounded to the granularity and said so", "", large_pieces);
  TEST_CASE("threads make, find and free ranges at the same time", "", threads);
  return tap_done();
}
