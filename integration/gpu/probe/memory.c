/* Pieces of memory behind reserved addresses, in the calls that the library makes. */
#include "probe.h"
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static CUmemAllocationProp properties_at(CUmemLocation location) {
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = location};
  return properties;
}

CUmemAllocationProp properties_of(enum place place) {
  CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = machine.device};
  return properties_at(place == ON_DEVICE ? device : machine.host);
}

static size_t granularity_of(CUmemAllocationProp properties) {
  size_t bytes = 0;
  MUST(cuMemGetAllocationGranularity, &bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  return bytes;
}

void need_host(void) {
  CUmemLocation numa = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA,
                        .id = machine.numa_node > 0 ? machine.numa_node : 0};
  CUmemLocation any = {.type = CU_MEM_LOCATION_TYPE_HOST, .id = 0};
  const CUmemLocation tried[] = {numa, any};
  CUresult results[2];
  step("looking for host handles");
  size_t device = granularity_of(properties_of(ON_DEVICE));
  for (int i = 0; i < 2; i++) {
    CUmemAllocationProp properties = properties_at(tried[i]);
    CUmemGenericAllocationHandle handle;
    size_t bytes = 0;
    results[i] = CALL_CU(cuMemGetAllocationGranularity, &bytes, &properties,
                         CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (results[i] == CUDA_SUCCESS)
      results[i] = CALL_CU(cuMemCreate, &handle, bytes, &properties, 0);
    if (results[i] != CUDA_SUCCESS)
      continue;
    MUST(cuMemRelease, handle);
    machine.host = tried[i];
    machine.granularity = bytes > device ? bytes : device;
    if (i == 0)
      fact_text("host_handles", "HOST_NUMA node %d", numa.id);
    else
      fact_text("host_handles", "HOST");
    return;
  }
  give_up("no host handles: HOST_NUMA on node %d: %s, HOST: %s (in a container try --cap-add "
          "SYS_NICE; HOST needs a driver for CUDA 13)",
          numa.id, result_name(results[0]), result_name(results[1]));
}

CUresult create(enum place place, size_t bytes, CUmemGenericAllocationHandle *handle) {
  CUmemAllocationProp properties = properties_of(place);
  return CALL_CU(cuMemCreate, handle, bytes, &properties, 0);
}

CUdeviceptr reserve(size_t bytes) {
  CUdeviceptr address = 0;
  MUST(cuMemAddressReserve, &address, bytes, 0, 0, 0);
  return address;
}

CUresult map(CUdeviceptr at, size_t bytes, CUmemGenericAllocationHandle handle) {
  return CALL_CU(cuMemMap, at, bytes, 0, handle, 0);
}

CUresult grant(CUdeviceptr at, size_t bytes, int to_whom) {
  CUmemAccessDesc access[2];
  size_t count = 0;
  memset(access, 0, sizeof access);
  if (to_whom & FOR_DEVICE)
    access[count++].location = properties_of(ON_DEVICE).location;
  if (to_whom & FOR_HOST)
    access[count++].location = machine.host;
  for (size_t i = 0; i < count; i++)
    access[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return CALL_CU(cuMemSetAccess, at, bytes, access, count);
}

CUmemGenericAllocationHandle put(CUdeviceptr at, size_t bytes, enum place place) {
  CUmemGenericAllocationHandle handle;
  must_succeed(create(place, bytes, &handle), "cuMemCreate", __FILE__, __LINE__);
  must_succeed(map(at, bytes, handle), "cuMemMap", __FILE__, __LINE__);
  must_succeed(grant(at, bytes, place == ON_HOST ? FOR_BOTH : FOR_DEVICE), "cuMemSetAccess",
               __FILE__, __LINE__);
  return handle;
}

void take_away(CUdeviceptr at, size_t bytes, CUmemGenericAllocationHandle handle) {
  MUST(cuMemUnmap, at, bytes);
  MUST(cuMemRelease, handle);
}

CUmemGenericAllocationHandle move(CUdeviceptr at, size_t bytes, CUmemGenericAllocationHandle old,
                                  enum place to) {
  CUdeviceptr scratch = reserve(bytes);
  CUmemGenericAllocationHandle handle = put(scratch, bytes, to);
  MUST(cuMemcpyDtoDAsync_v2, scratch, at, bytes, machine.stream);
  MUST(cuStreamSynchronize, machine.stream);
  MUST(cuMemUnmap, scratch, bytes);
  MUST(cuMemAddressFree, scratch, bytes);
  MUST(cuMemUnmap, at, bytes);
  must_succeed(map(at, bytes, handle), "cuMemMap", __FILE__, __LINE__);
  must_succeed(grant(at, bytes, to == ON_HOST ? FOR_BOTH : FOR_DEVICE), "cuMemSetAccess", __FILE__,
               __LINE__);
  MUST(cuMemRelease, old);
  return handle;
}

/* A fault is caught in this process: a forked child may lack the driver's pages, and would fault
 * for that reason. */
static sigjmp_buf fault;

static void on_fault(int number) {
  (void)number;
  siglongjmp(fault, 1);
}

static bool touch(CUdeviceptr at, bool store) {
  struct sigaction caught = {.sa_handler = on_fault}, segv, bus;
  volatile uint32_t *word = (volatile uint32_t *)(uintptr_t)at;
  volatile bool good = false;
  sigaction(SIGSEGV, &caught, &segv);
  sigaction(SIGBUS, &caught, &bus);
  if (sigsetjmp(fault, 1) == 0) {
    uint32_t value = *word;
    if (store)
      *word = value;
    good = true;
  }
  sigaction(SIGSEGV, &segv, NULL);
  sigaction(SIGBUS, &bus, NULL);
  return good;
}

bool cpu_can_load(CUdeviceptr at) {
  return touch(at, false);
}
bool cpu_can_store(CUdeviceptr at) {
  return touch(at, true);
}

void *host_alloc(size_t bytes) {
  void *memory = NULL;
  MUST(cuMemHostAlloc, &memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  return memory;
}
