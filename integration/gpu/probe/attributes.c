/* P7: what the driver says about an address: cuMemAlloc memory, a device piece, the same address
   with a host piece behind it, and with a device piece again. Addresses are told as distances from
   the one that was asked about. */
#include "probe.h"
#include <stdio.h>

struct asked {
  const char *name;
  CUpointer_attribute attribute;
  enum { WORD, WIDE, ADDRESS } kind;
};
static const struct asked asked[] = {
    {"memory_type", CU_POINTER_ATTRIBUTE_MEMORY_TYPE, WORD},
    {"buffer_id", CU_POINTER_ATTRIBUTE_BUFFER_ID, WIDE},
    {"device_ordinal", CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, WORD},
    {"is_managed", CU_POINTER_ATTRIBUTE_IS_MANAGED, WORD},
    {"range_start", CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, ADDRESS},
    {"range_size", CU_POINTER_ATTRIBUTE_RANGE_SIZE, WIDE},
    {"mapped", CU_POINTER_ATTRIBUTE_MAPPED, WORD},
    {"legacy_ipc_capable", CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, WORD},
    {"allowed_handle_types", CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, WIDE},
    {"gpu_direct_rdma_capable", CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, WORD},
    {"access_flags", CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, WORD},
    {"host_pointer", CU_POINTER_ATTRIBUTE_HOST_POINTER, ADDRESS},
    {"device_pointer", CU_POINTER_ATTRIBUTE_DEVICE_POINTER, ADDRESS},
    {"mapping_size", CU_POINTER_ATTRIBUTE_MAPPING_SIZE, WIDE},
    {"mapping_base", CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, ADDRESS},
};

/* Returns the memory type; buffer_id is told to the caller too. */
static uint32_t tell(const char *subject, CUdeviceptr at, uint64_t *buffer_id) {
  uint32_t memory_type = 0;
  *buffer_id = 0;
  step(named("asking about %s", subject));
  for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
    uint64_t value = 0; /* little-endian: narrower answers lie in its low bytes */
    const char *key = named("%s_%s", subject, asked[i].name);
    CUresult result = CALL_CU(cuPointerGetAttribute, &value, asked[i].attribute, at);
    if (result != CUDA_SUCCESS)
      fact_result(key, result);
    else if (asked[i].kind == ADDRESS)
      fact_signed(key, (int64_t)(value - at));
    else if (asked[i].kind == WIDE)
      fact_count(key, value);
    else
      fact_signed(key, (int32_t)(uint32_t)value);
    if (result == CUDA_SUCCESS && asked[i].attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
      memory_type = (uint32_t)value;
    if (result == CUDA_SUCCESS && asked[i].attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID)
      *buffer_id = value;
  }
  CUdeviceptr base = 0;
  size_t size = 0;
  CUresult result = CALL_CU(cuMemGetAddressRange_v2, &base, &size, at);
  fact_result(named("%s_address_range", subject), result);
  if (result == CUDA_SUCCESS) {
    fact_signed(named("%s_address_range_base", subject), (int64_t)(base - at));
    fact_count(named("%s_address_range_size", subject), size);
  }
  return memory_type;
}

void probe_attributes(void) {
  start();
  need_host();
  size_t bytes = machine.granularity;
  CUdeviceptr allocated = 0, va = reserve(3 * bytes);
  uint64_t ignored, first, on_host, back;
  MUST(cuMemAlloc_v2, &allocated, 3 * bytes);
  uint32_t type = tell("cu_mem_alloc", allocated + 512, &ignored);
  expect(type == CU_MEMORYTYPE_DEVICE, "cuMemAlloc memory answers DEVICE, not %u", type);
  /* the middle one of three moves: its neighbours are part of the range, not of the mapping */
  put(va, bytes, ON_DEVICE);
  put(va + 2 * bytes, bytes, ON_DEVICE);
  CUmemGenericAllocationHandle handle = put(va + bytes, bytes, ON_DEVICE);
  type = tell("device_piece", va + bytes + 512, &first);
  expect(type == CU_MEMORYTYPE_DEVICE, "a device piece answers DEVICE, not %u", type);
  handle = move(va + bytes, bytes, handle, ON_HOST);
  type = tell("host_piece", va + bytes + 512, &on_host);
  expect(type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_HOST,
         "a host piece answers HOST or DEVICE, not %u", type);
  fact_bool("memory_type_follows_the_move", type == CU_MEMORYTYPE_HOST);
  handle = move(va + bytes, bytes, handle, ON_DEVICE);
  type = tell("piece_back_on_device", va + bytes + 512, &back);
  expect(type == CU_MEMORYTYPE_DEVICE, "a piece back on the device answers DEVICE, not %u", type);
  fact_bool("buffer_id_changes_by_move", first != on_host || on_host != back);
  tell("cu_mem_host_alloc", (CUdeviceptr)(uintptr_t)host_alloc(bytes), &ignored);
  take_away(va + bytes, bytes, handle);
}
