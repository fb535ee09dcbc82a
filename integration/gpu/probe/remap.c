/* P2: one address, device memory, host memory and device memory again behind it; who may touch it
   when; and a second mapping of the same handle. */
#include "probe.h"

enum { SEED = 12345, STRIDE = 2654435761u & 0x7fffffff };

static size_t bytes, words;
static CUdeviceptr va, alias;

static void cpu_is_out(const char *key, const char *when) {
  bool can = cpu_can_load(va);
  fact_bool(key, can);
  expect(!can, "the CPU can't load %s", when);
}

static void data_is(const char *key, uint32_t seed, const char *when) {
  uint64_t wrong = mismatches(va, words, seed, STRIDE, machine.stream);
  fact_bool(key, wrong == 0);
  expect(wrong == 0, "the data is intact %s (%llu of %zu words differ)", when,
         (unsigned long long)wrong, words);
}

/* The device's access to a mapping, as cuMemGetAccess tells it. */
static unsigned long long device_access(void) {
  CUmemLocation device = properties_of(ON_DEVICE).location;
  unsigned long long flags = 99;
  MUST(cuMemGetAccess, &flags, &device, va);
  return flags;
}

static CUmemGenericAllocationHandle to_host(CUmemGenericAllocationHandle device) {
  CUmemGenericAllocationHandle host;
  step("preparing host memory at the second address");
  host = put(alias, bytes, ON_HOST);
  MUST(cuMemcpyDtoDAsync_v2, alias, va, bytes, machine.stream);
  MUST(cuStreamSynchronize, machine.stream);
  step("mapping host memory at the first address");
  MUST(cuMemUnmap, va, bytes);
  cpu_is_out("cpu_loads_unmapped", "where nothing is mapped");
  must_succeed(map(va, bytes, host), "cuMemMap", __FILE__, __LINE__);
  cpu_is_out("cpu_loads_before_access", "a host piece before access is set");
  unsigned long long before = device_access();
  fact_count("device_access_before", before);
  expect(before == CU_MEM_ACCESS_FLAGS_PROT_NONE, "a new mapping starts without access");
  must_succeed(grant(va, bytes, FOR_DEVICE), "cuMemSetAccess", __FILE__, __LINE__);
  cpu_is_out("cpu_loads_with_device_access", "a host piece that only the device was granted");
  must_succeed(grant(va, bytes, FOR_HOST), "cuMemSetAccess", __FILE__, __LINE__);
  fact_count("device_access_after", device_access());
  MUST(cuMemRelease, device);
  return host;
}

static void on_host(void) {
  step("using the host piece");
  bool load = cpu_can_load(va), store = cpu_can_store(va);
  fact_bool("cpu_loads_host_piece", load);
  fact_bool("cpu_stores_host_piece", store);
  expect(load && store, "the CPU can load and store a host piece after access is set");
  data_is("intact_on_host", SEED, "for kernels after the move to the host");
  if (!load || !store)
    return;
  uint32_t *here = (uint32_t *)(uintptr_t)va, *there = (uint32_t *)(uintptr_t)alias;
  uint64_t wrong = mismatches_here(here, words, SEED, STRIDE);
  fact_bool("intact_for_cpu", wrong == 0);
  expect(wrong == 0, "the CPU reads the same data at the same address");
  wrong = mismatches_here(there, words, SEED, STRIDE);
  fact_bool("alias_reads_the_same", wrong == 0);
  expect(wrong == 0, "a second mapping of the handle shows the same data");
  fill_here(here, words, SEED + 1, STRIDE);
  wrong = mismatches_here(there, words, SEED + 1, STRIDE);
  fact_bool("alias_sees_stores", wrong == 0);
  expect(wrong == 0, "what the CPU stores at one address it loads at the other");
  data_is("kernels_see_cpu_stores", SEED + 1, "for kernels after the CPU wrote it");
  must_succeed(fill(va, words, SEED + 2, STRIDE, machine.stream), "probe_fill", __FILE__, __LINE__);
  MUST(cuStreamSynchronize, machine.stream);
  wrong = mismatches_here(there, words, SEED + 2, STRIDE);
  fact_bool("alias_sees_kernels", wrong == 0);
  expect(wrong == 0, "what a kernel stored the CPU loads at the other address");
}

void probe_remap(void) {
  start();
  need_host();
  bytes = machine.granularity;
  words = bytes / 4;
  va = reserve(3 * bytes) + bytes; /* a hole on either side */
  alias = reserve(bytes);
  fact_count("piece_bytes", bytes);
  step("filling the device piece");
  CUmemGenericAllocationHandle handle = put(va, bytes, ON_DEVICE);
  must_succeed(fill(va, words, SEED, STRIDE, machine.stream), "probe_fill", __FILE__, __LINE__);
  MUST(cuStreamSynchronize, machine.stream);
  data_is("intact_at_first", SEED, "where it was made");
  cpu_is_out("cpu_loads_device_piece", "a device piece");
  handle = to_host(handle);
  on_host();
  MUST(cuMemUnmap, alias, bytes);
  step("moving back to the device, and to the host once more");
  must_succeed(fill(va, words, SEED + 3, STRIDE, machine.stream), "probe_fill", __FILE__, __LINE__);
  handle = move(va, bytes, handle, ON_DEVICE);
  data_is("intact_back_on_device", SEED + 3, "after the move back to the device");
  cpu_is_out("cpu_loads_after_return", "a piece that went back to the device");
  handle = move(va, bytes, handle, ON_HOST);
  data_is("intact_on_host_again", SEED + 3, "after a second move to the host");
  take_away(va, bytes, handle);
}
