/* Memory pressure: who is refused, who is helped, and what becomes of memory that began on the
 * host. */
#include "memory_support.h"
#include "tests/lib/tap.h"

/* As the hook of cuMemAlloc does. */
static CUresult allocate(CUdeviceptr *pointer, size_t bytes) {
  CUresult result = range_create(pointer, bytes, PIECE_DEVICE);
  return result == CUDA_ERROR_OUT_OF_MEMORY ? pressure_allocate(pointer, bytes, result) : result;
}

static CUresult names(uintptr_t m, uintptr_t v, size_t bytes) {
  return step_names(&(struct state_tensor){{m, v}, bytes, 0}, 1, NULL);
}

/* Leaves so many free pieces. */
static uintptr_t leave(size_t pieces) {
  return filled(device_free() - pieces * PIECE, 99);
}

static const char *second_is_helped(void) {
  config.mode = MODE_PRESSURE;
  uintptr_t m = filled(4 * PIECE, 1), v = filled(4 * PIECE, 2);
  leave(1);
  CUdeviceptr pointer = 0;
  CHECK(!names(m, v, 4 * PIECE) && !names(m, v, 4 * PIECE) && !range_any_host());
  CHECK(allocate(&pointer, 3 * PIECE) == CUDA_ERROR_OUT_OF_MEMORY && !range_any_host());
  CHECK(report.totals.refused_out_of_memory == 1);
  CHECK(allocate(&pointer, 3 * PIECE) == CUDA_SUCCESS && report.totals.evictions == 1);
  CHECK(pieces_on_host(m) + pieces_on_host(v) == 2); /* as many as were lacking */
  CHECK(pieces_on_host(pointer) == 0);
  CHECK(holds(m, 4 * PIECE, 1) && holds(v, 4 * PIECE, 2));
  fill(pointer, 3 * PIECE, 3);
  CHECK(holds(pointer, 3 * PIECE, 3) && holds(m, 4 * PIECE, 1));
  /* the next of that size is a first again */
  CHECK(allocate(&pointer, 3 * PIECE) == CUDA_ERROR_OUT_OF_MEMORY);
  return NULL;
}

static const char *first_step_evicts(void) {
  uintptr_t m = filled(4 * PIECE, 1), v = filled(4 * PIECE, 2);
  leave(1);
  CUdeviceptr pointer = 0;
  CHECK(!names(m, v, 4 * PIECE) && state_step() == 1);
  CHECK(allocate(&pointer, 2 * PIECE) && !allocate(&pointer, 2 * PIECE));
  CHECK(range_any_host() && holds(m, 4 * PIECE, 1) && holds(v, 4 * PIECE, 2));
  return NULL;
}

static const char *retry_after_frees(void) {
  uintptr_t filler = leave(1);
  CUdeviceptr pointer = 0;
  CHECK(allocate(&pointer, 2 * PIECE) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(!range_destroy(range_find(filler)));
  CHECK(allocate(&pointer, 2 * PIECE) == CUDA_SUCCESS);
  leave(0);
  CHECK(allocate(&pointer, 2 * PIECE) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(report.totals.refused_out_of_memory == 2); /* a first, though the size had failed before */
  return NULL;
}

static const char *other_sizes_between(void) {
  adam_seen = true;
  filled(2 * PIECE, 1);
  leave(1);
  CUdeviceptr pointer = 0;
  for (size_t pieces = 2; pieces < 6; pieces++)
    CHECK(allocate(&pointer, pieces * PIECE) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(allocate(&pointer, 2 * PIECE) == CUDA_SUCCESS); /* three others failed between */
  for (size_t pieces = 2; pieces < 3; pieces++)
    CHECK(allocate(&pointer, pieces * PIECE) == CUDA_ERROR_OUT_OF_MEMORY);
  for (size_t pieces = 6; pieces < 10; pieces++)
    CHECK(allocate(&pointer, pieces * PIECE) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(allocate(&pointer, 2 * PIECE) == CUDA_ERROR_OUT_OF_MEMORY); /* four: too long ago */
  return NULL;
}

static CUdeviceptr overflowed(size_t bytes) {
  CUdeviceptr pointer = 0;
  if (allocate(&pointer, bytes) != CUDA_ERROR_OUT_OF_MEMORY || allocate(&pointer, bytes))
    return 0;
  return pointer;
}

static const char *provisional(void) {
  adam_seen = true;
  uintptr_t p = filled(3 * PIECE, 1);
  leave(1);
  CUdeviceptr m = overflowed(3 * PIECE), v = overflowed(3 * PIECE), other = overflowed(3 * PIECE);
  CHECK(m && v && other && report.totals.provisional_bytes == 9 * PIECE);
  state_foreign_access(m, 3 * PIECE, NULL, true); /* zeroed by its maker: no reason to go home */
  fill(m, 3 * PIECE, 2);
  fill(v, 3 * PIECE, 3);
  fill(other, 3 * PIECE, 4);
  CHECK(range_on_host(m, 3 * PIECE) && !names(m, v, 3 * PIECE) && range_on_host(v, 3 * PIECE));
  CHECK(!range_destroy(range_find(p)));
  CHECK(!names(m, v, 3 * PIECE));
  CHECK(pieces_on_host(m) == 3 && pieces_on_host(v) == 3 && pieces_on_host(other) == 0);
  CHECK(!range_find(m)->pieces[0].provisional && !range_find(v)->pieces[2].provisional);
  CHECK(holds(m, 3 * PIECE, 2) && holds(v, 3 * PIECE, 3) && holds(other, 3 * PIECE, 4));
  CHECK(!names(m, v, 3 * PIECE) && pieces_on_host(m) == 3);
  /* from the second step on nothing overflows */
  leave(0);
  CHECK(!overflowed(3 * PIECE));
  return NULL;
}

static const char *refused(void) {
  adam_seen = true;
  CUdeviceptr pointer;
  filled(3 * PIECE, 1);
  leave(1);
  CHECK(!overflowed(4 * PIECE)); /* repeats no live allocation */
  adam_seen = false;
  CHECK(!overflowed(3 * PIECE));
  adam_seen = true;
  config.overflow = false;
  CHECK(!overflowed(3 * PIECE));
  config.overflow = true;
  config.mode = MODE_OBSERVE;
  CHECK(!overflowed(3 * PIECE));
  config.mode = MODE_FULL;
  budget_bytes = 2 * PIECE;
  CHECK(!overflowed(3 * PIECE) && !report.totals.moved_bytes);
  CHECK(pressure_allocate(&pointer, PIECE, CUDA_ERROR_NOT_SUPPORTED) == CUDA_ERROR_NOT_SUPPORTED);
  return NULL;
}

/* With large pieces, what fits without us fits with us, and needs no help. */
static const char *rounding(void) {
  CUdeviceptr small, range, odd, pointer;
  adam_seen = true;
  config.piece = (struct config_size){.bytes = 8 * PIECE, .set = true};
  CHECK(range_create(&small, 4 * PIECE, PIECE_DEVICE) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(!driver.cuMemAlloc_v2(&small, 4 * PIECE));
  CHECK(!allocate(&range, 44 * PIECE) && range_find(range)); /* takes 48; 12 of 64 are left */
  CHECK(!allocate(&odd, 10 * PIECE) && !range_find(odd) && device_free() == 2 * PIECE);
  CHECK(!driver.cuMemFree_v2(odd) && report.totals.refused_out_of_memory == 0);
  CHECK(allocate(&pointer, 14 * PIECE) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(report.totals.refused_out_of_memory == 1 && !report.totals.provisional_bytes);
  return NULL;
}

static const char *native_sizes(void) {
  adam_seen = true;
  leave(1);
  pressure_native_freed(4096);
  for (unsigned i = 1; i < 200; i++)
    pressure_native_allocated((CUdeviceptr)(i * 7919 % 199) << 20, (2 + i) * PIECE, false);
  pressure_native_freed((CUdeviceptr)(5 * 7919 % 199) << 20);
  CHECK(!overflowed(7 * PIECE)); /* freed */
  CHECK(overflowed(8 * PIECE));
  return NULL;
}

static const char *under_capture(void) {
  uintptr_t m = filled(4 * PIECE, 1), v = filled(4 * PIECE, 2);
  leave(1);
  CHECK(!names(m, v, 4 * PIECE));
  capture_open = true;
  CHECK(!overflowed(2 * PIECE) && !range_any_host());
  capture_open = false;
  CHECK(overflowed(2 * PIECE));
  return NULL;
}

int main(void) {
  TEST_CASE("the first failing request is refused, the second of its size evicts what it lacks", "",
            second_is_helped);
  TEST_CASE("in the first step what it has named so far is evicted", "", first_step_evicts);
  TEST_CASE("a retry that succeeds by itself makes the next failure a first", "",
            retry_after_frees);
  TEST_CASE("a retry may come after three other sizes failed, not after four", "",
            other_sizes_between);
  TEST_CASE("what looks like state begins on the host; a step confirms it or sends it home", "",
            provisional);
  TEST_CASE("nothing overflows without Adam, a repeated size, leave to do so, or budget", "",
            refused);
  TEST_CASE("what only rounding up to pieces keeps out is given natively, without help", "",
            rounding);
  TEST_CASE("sizes of native allocations count while they live", "", native_sizes);
  TEST_CASE("under a capture nobody is helped", "", under_capture);
  return tap_done();
}
