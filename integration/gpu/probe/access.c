/* P4: what cuMemSetAccess, cuMemMap and cuMemUnmap accept over [device piece][host piece], and what
   a refused call leaves behind. */
#include "probe.h"

static size_t bytes;
static CUdeviceptr va;

static bool answer(const char *key, CUresult result, CUresult wanted) {
  fact_result(key, result);
  return expect(result == wanted, "%s answers %s, not %s", key, result_name(wanted),
                result_name(result));
}

static bool usable(CUdeviceptr at, uint64_t words) {
  must_succeed(fill(at, words, 5, 3, machine.stream), "probe_fill", __FILE__, __LINE__);
  return mismatches(at, words, 5, 3, machine.stream) == 0;
}

static void host_access(const char *key, CUdeviceptr at) {
  unsigned long long flags = 99;
  CUmemLocation host = machine.host;
  CUresult result = CALL_CU(cuMemGetAccess, &flags, &host, at);
  if (result == CUDA_SUCCESS)
    fact_count(key, flags);
  else
    fact_result(key, result);
}

void probe_access(void) {
  start();
  need_host();
  bytes = machine.granularity;
  va = reserve(4 * bytes);
  CUmemGenericAllocationHandle device, host, big;
  must_succeed(create(ON_DEVICE, bytes, &device), "cuMemCreate", __FILE__, __LINE__);
  must_succeed(create(ON_HOST, bytes, &host), "cuMemCreate", __FILE__, __LINE__);
  must_succeed(map(va, bytes, device), "cuMemMap", __FILE__, __LINE__);
  must_succeed(map(va + bytes, bytes, host), "cuMemMap", __FILE__, __LINE__);

  step("setting access over both");
  if (answer("device_over_both", grant(va, 2 * bytes, FOR_DEVICE), CUDA_SUCCESS)) {
    bool works = usable(va, bytes / 2);
    fact_bool("kernel_over_both", works);
    expect(works, "a kernel may use both after one call");
  }
  answer("host_over_both", grant(va, 2 * bytes, FOR_HOST), CUDA_ERROR_INVALID_VALUE);
  bool opened = cpu_can_load(va + bytes);
  fact_bool("refused_call_opened_the_host_piece", opened);
  bool still = usable(va, bytes / 2);
  fact_bool("kernel_after_refused_call", still);
  expect(still, "a refused call leaves the device's access as it was");
  answer("device_and_host_over_both", grant(va, 2 * bytes, FOR_BOTH), CUDA_ERROR_INVALID_VALUE);
  answer("host_on_device_piece", grant(va, bytes, FOR_HOST), CUDA_ERROR_INVALID_VALUE);
  answer("device_and_host_on_host_piece", grant(va + bytes, bytes, FOR_BOTH), CUDA_SUCCESS);
  bool cpu = cpu_can_store(va + bytes);
  fact_bool("cpu_stores_host_piece", cpu);
  expect(cpu, "the host descriptor opens the host piece to the CPU");
  host_access("host_access_of_host_piece", va + bytes);
  host_access("host_access_of_device_piece", va);
  fact_result("access_over_a_hole", grant(va, 3 * bytes, FOR_DEVICE));

  step("mapping and unmapping in parts");
  must_succeed(create(ON_HOST, 2 * bytes, &big), "cuMemCreate", __FILE__, __LINE__);
  CUresult result = CALL_CU(cuMemMap, va + 2 * bytes, bytes, bytes, big, 0);
  fact_result("map_with_offset", result);
  if (result == CUDA_SUCCESS)
    MUST(cuMemUnmap, va + 2 * bytes, bytes);
  must_succeed(map(va + 2 * bytes, 2 * bytes, big), "cuMemMap", __FILE__, __LINE__);
  answer("map_over_a_mapping", map(va + bytes, bytes, host), CUDA_ERROR_INVALID_VALUE);
  fact_result("access_on_half_a_mapping", grant(va + 2 * bytes, bytes, FOR_DEVICE));
  answer("unmap_half_a_mapping", CALL_CU(cuMemUnmap, va + 2 * bytes, bytes),
         CUDA_ERROR_INVALID_VALUE);
  answer("unmap_several_mappings", CALL_CU(cuMemUnmap, va, 4 * bytes), CUDA_SUCCESS);
  MUST(cuMemRelease, device);
  MUST(cuMemRelease, host);
  MUST(cuMemRelease, big);
  answer("free_reservation", CALL_CU(cuMemAddressFree, va, 4 * bytes), CUDA_SUCCESS);
}
