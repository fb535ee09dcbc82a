/* P1: granularities, attributes, and which handles can be made. Nothing here is given up: each
   answer is a fact. */
#include "probe.h"

static size_t told(const char *name, CUmemLocation location) {
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = location};
  CUmemGenericAllocationHandle handle;
  size_t least = 0, best = 0;
  CUresult result =
      CALL_CU(cuMemGetAllocationGranularity, &least, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  fact_result(named("granularity_of_%s", name), result);
  if (result != CUDA_SUCCESS)
    return 0;
  CALL_CU(cuMemGetAllocationGranularity, &best, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  fact_count(named("%s_minimum_bytes", name), least);
  fact_count(named("%s_recommended_bytes", name), best);
  result = CALL_CU(cuMemCreate, &handle, least, &properties, 0);
  fact_result(named("create_%s", name), result);
  if (result != CUDA_SUCCESS)
    return 0;
  MUST(cuMemRelease, handle);
  result = CALL_CU(cuMemCreate, &handle, least / 2, &properties, 0);
  fact_result(named("create_half_of_%s", name), result);
  expect(result == CUDA_ERROR_INVALID_VALUE,
         "a %s handle of half the granularity is refused as an invalid value, not %s", name,
         result_name(result));
  return least;
}

void probe_granularity(void) {
  start();
  char name[256] = "?";
  int version = 0;
  size_t memory = 0;
  MUST(cuDriverGetVersion, &version);
  MUST(cuDeviceGetName, name, sizeof name, machine.device);
  MUST(cuDeviceTotalMem_v2, &memory, machine.device);
  fact_text("device", "%s", name);
  fact_count("device_memory_bytes", memory);
  fact_signed("driver_version", version);
  fact_signed("compute_capability",
              10 * device_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
                  device_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  fact_signed("attribute_vmm_102",
              device_attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
  fact_signed("attribute_host_numa_id_134", device_attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID));
  fact_signed("attribute_host_numa_vmm_141",
              device_attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
  fact_signed("attribute_host_vmm_145",
              device_attribute(CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
  fact_signed("attribute_wait_value_64_122",
              device_attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS));
  fact_signed("attribute_pageable_access_88",
              device_attribute(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS));

  int node = machine.numa_node;
  step("making handles");
  size_t device = told("device", (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, machine.device});
  size_t numa =
      told("host_numa", (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST_NUMA, node > 0 ? node : 0});
  size_t host = told("host", (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST, 0});
  /* documented as refused; a driver that took them would say that the table of rules is old */
  CUmemAllocationProp wrong = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                               .location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, -1}};
  CUmemGenericAllocationHandle handle;
  size_t bytes = numa > 0 ? numa : 2 * MIB;
  CUresult result = CALL_CU(cuMemCreate, &handle, bytes, &wrong, 0);
  fact_result("create_host_numa_minus_1", result);
  expect(result != CUDA_SUCCESS, "HOST_NUMA with node -1 is refused");
  wrong.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0};
  result = CALL_CU(cuMemCreate, &handle, bytes, &wrong, 0);
  fact_result("create_host_numa_current", result);
  expect(result != CUDA_SUCCESS, "HOST_NUMA_CURRENT is refused");

  expect(device > 0, "device handles can be made");
  expect(numa > 0 || host > 0, "host handles can be made, on a node or anywhere");
  size_t piece = device > numa ? device : numa;
  piece = piece > host ? piece : host;
  fact_count("piece_bytes", piece);
  expect(piece > 0 && 2 * MIB % piece == 0, "2 MiB, the library's piece, is a multiple of %zu",
         piece);
}
