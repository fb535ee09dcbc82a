// charlm's caching allocator against PyTorch's policy: segment sizes, best fit, splitting, merging,
// and what it does when the driver has no memory. The runtime's allocation calls are stood in for
// here, so that no device is needed.
#include "allocator.h"
#include "cuda_check.h"

#include "tests/lib/tap.h"
#include <cstdlib>
#include <vector>

namespace {

constexpr size_t MiB = 1048576;

// The stand-in: addresses are made up, calls are recorded, capacity is limited.
struct Driver {
  size_t capacity = size_t{1} << 40, used = 0;
  uintptr_t next_address = 0x7f0000000000;
  std::vector<size_t> mallocs; // sizes of the calls that succeeded
  std::map<void *, size_t> live;
  int failures = 0, frees = 0;
  cudaError_t other_error = cudaSuccess;
} driver;

} // namespace

extern "C" {

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
  if (driver.other_error != cudaSuccess)
    return driver.other_error;
  if (driver.used + bytes > driver.capacity) {
    driver.failures++;
    return cudaErrorMemoryAllocation;
  }
  *pointer = reinterpret_cast<void *>(driver.next_address);
  driver.next_address += (bytes + 4 * MiB) / (2 * MiB) * (2 * MiB);
  driver.used += bytes;
  driver.live[*pointer] = bytes;
  driver.mallocs.push_back(bytes);
  return cudaSuccess;
}

cudaError_t cudaFree(void *pointer) {
  const auto found = driver.live.find(pointer);
  if (found == driver.live.end())
    return cudaErrorInvalidValue;
  driver.used -= found->second;
  driver.live.erase(found);
  driver.frees++;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  *free_bytes = driver.capacity - driver.used;
  *total_bytes = driver.capacity;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

const char *cudaGetErrorName(cudaError_t) {
  return "name";
}

const char *cudaGetErrorString(cudaError_t) {
  return "text";
}
}

namespace {

using charlm::CachingAllocator;
using charlm::OutOfDeviceMemory;
using charlm::Purpose;

char *take(CachingAllocator &allocator, size_t bytes, Purpose purpose = Purpose::lasting) {
  return static_cast<char *>(allocator.allocate(bytes, purpose, "something"));
}

// The segment that the first request of a size makes.
size_t segment_for(size_t bytes, size_t scale = 1) {
  driver = {};
  CachingAllocator allocator(scale);
  take(allocator, bytes);
  return driver.mallocs.at(0);
}

void test_segments() {
  tap_ok(segment_for(1) == 2 * MiB && segment_for(MiB) == 2 * MiB,
         "requests up to 1 MiB come from a segment of 2 MiB");
  tap_ok(segment_for(MiB + 1) == 20 * MiB && segment_for(10 * MiB - 1024) == 20 * MiB,
         "requests below 10 MiB come from a segment of 20 MiB");
  tap_ok(segment_for(10 * MiB) == 10 * MiB && segment_for(11 * MiB) == 12 * MiB,
         "larger requests have a segment of their own, rounded to 2 MiB");
  tap_ok(segment_for(16384, 64) == 32768 && segment_for(16385, 64) == 327680 &&
             segment_for(163840, 64) == 163840 && segment_for(163841, 64) == 196608,
         "a scale of 64 divides all of these by 64");
}

void test_blocks() {
  driver = {};
  CachingAllocator allocator(1);
  char *a = take(allocator, 1), *b = take(allocator, 513), *c = take(allocator, 512);
  tap_ok(b == a + 512 && c == b + 1024 && driver.mallocs.size() == 1,
         "small blocks are rounded to 512 bytes and lie one behind the other");
  allocator.free(b);
  tap_ok(take(allocator, 1024) == b,
         "a freed block is handed out again to a request that fits best");
  allocator.free(a);
  allocator.free(b);
  tap_ok(take(allocator, 1536) == a, "free neighbours are merged");
  allocator.free(a);
  allocator.free(c);
  tap_ok(take(allocator, MiB) == a && take(allocator, MiB) == a + MiB && driver.mallocs.size() == 1,
         "a segment whose blocks are all free is one block again");
}

void test_large_splits() {
  driver = {};
  CachingAllocator allocator(1);
  char *a = take(allocator, 9 * MiB), *b = take(allocator, 9 * MiB);
  tap_ok(b == a + 9 * MiB && driver.mallocs.size() == 1,
         "a segment of 20 MiB is split for two blocks of 9 MiB");
  char *c = take(allocator, MiB + 512);
  tap_ok(c == b + 9 * MiB && driver.mallocs.size() == 1, "and its rest of 2 MiB serves a third");
  allocator.free(c);
  tap_ok(take(allocator, MiB + MiB / 2) == c, "a rest of not more than 1 MiB stays with its block");
  take(allocator, MiB + 512);
  tap_ok(driver.mallocs.size() == 2, "so the next large request needs a new segment");
}

void test_best_fit() {
  driver = {};
  CachingAllocator allocator(1);
  char *blocks[7];
  const size_t sizes[7] = {4096, 512, 2048, 512, 1024, 512, 8192};
  for (int i = 0; i < 7; i++)
    blocks[i] = take(allocator, sizes[i]);
  for (const int i : {0, 2, 4})
    allocator.free(blocks[i]);
  tap_ok(take(allocator, 1536) == blocks[2],
         "of several free blocks the smallest that is big enough is taken");
}

void test_adjacent() {
  driver = {};
  CachingAllocator allocator(64);
  const std::vector<void *> row =
      allocator.allocate_adjacent({1000, 131072, 131072}, Purpose::lasting, "a row");
  const auto at = [&](size_t i) { return static_cast<char *>(row[i]); };
  tap_ok(at(1) == at(0) + 1024 && at(2) == at(1) + 131072,
         "adjacent blocks are neighbours in their order");
  for (void *block : row)
    allocator.free(block);
  tap_ok(take(allocator, 1024 + 2 * 131072) == at(0) && driver.mallocs.size() == 1,
         "adjacent blocks are freed one by one and merge");
}

void test_out_of_memory() {
  driver = {};
  driver.capacity = 46 * MiB;
  CachingAllocator allocator(1);
  char *kept = take(allocator, 512), *freed = take(allocator, 12 * MiB),
       *half = take(allocator, 5 * MiB);
  allocator.free(freed); // 2 + 12 + 20 MiB are reserved
  char *big = take(allocator, 24 * MiB);
  tap_ok(big && driver.failures == 1 && driver.frees == 1 && allocator.releases() == 1,
         "out of memory, the wholly free segment goes back and the request is tried once more");
  tap_ok(driver.used == 46 * MiB, "segments in use stay");
  std::string message;
  try {
    take(allocator, 30 * MiB);
  } catch (const OutOfDeviceMemory &error) {
    message = error.what();
  }
  tap_ok(driver.failures == 3, "then the second failure is final");
  tap_ok(message.find(
             "something (31457280 bytes) needs a segment of 31457280 bytes; 0 of 48234496 bytes") !=
                 std::string::npos &&
             message.find("48234496 bytes of segments, 30409216 bytes of them in use") !=
                 std::string::npos,
         "and names what was asked for and the totals: %s", message.c_str());
  tap_ok(take(allocator, 6 * MiB) == half + 5 * MiB && kept,
         "what fits in cached segments is still served");

  driver.other_error = cudaErrorLaunchFailure;
  bool other = false;
  try {
    take(allocator, 40 * MiB);
  } catch (const OutOfDeviceMemory &) {
  } catch (const charlm::CudaError &) {
    other = true;
  }
  tap_ok(other, "another error is no out of memory and is not tried again");
  driver.other_error = cudaSuccess;
}

void test_counters() {
  driver = {};
  size_t lasting;
  {
    CachingAllocator allocator(1);
    char *a = take(allocator, 1000), *b = take(allocator, 3 * MiB, Purpose::activation);
    allocator.free(a);
    allocator.free(b);
    take(allocator, 512);
    lasting = allocator.lasting_bytes_peak();
    tap_ok(allocator.reserved_bytes_peak() == 22 * MiB, "the peak counts segments");
    bool refused = false;
    try {
      allocator.free(b);
    } catch (const std::logic_error &) {
      refused = true;
    }
    tap_ok(refused, "freeing twice is refused");
    allocator.free(nullptr);
  }
  tap_ok(lasting == 1024, "the peak without activations counts blocks that last");
  tap_ok(driver.live.empty(), "the allocator gives all segments back at its end");
}

} // namespace

int main() {
  test_segments();
  test_blocks();
  test_large_splits();
  test_best_fit();
  test_adjacent();
  test_out_of_memory();
  test_counters();
  return tap_done();
}
