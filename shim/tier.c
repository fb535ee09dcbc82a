/* The host tier (tier.h): its ladder, its budget, and the properties of handles on either tier.

   Budget: measured when the first byte is wanted, before anything is pinned, and again after every
   portion. What a later measurement finds (others on this machine took memory meanwhile) can only
   make it smaller. */
#include "tier.h"
#include "../policy/budget.h"
#include "../policy/report.h"
#include "cancel.h"
#include "driver.h"
#include "process.h"
#include "quiet.h"
#include <pthread.h>
#include <stdio.h>

enum { DEVICES_MAX = 64 };

/* What is pinned between two measurements. */
static const size_t portion_bytes = 256ul << 20;

enum rung { RUNG_UNTRIED, RUNG_HOST_NUMA, RUNG_HOST, RUNG_NONE };

/* Protects everything below; never held across a driver call. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
  enum rung rung;
  CUmemLocation location;
} devices[DEVICES_MAX];
static struct {
  bool measured, told;
  size_t limit, used, until_next; /* bytes; `limit` counts what is used */
} budget;

CUmemAllocationProp tier_properties(CUmemLocation location) {
  return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = location};
}

CUmemLocation tier_device(CUdevice device) {
  return (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

CUresult tier_open(CUdeviceptr address, size_t bytes, CUdevice device, const CUmemLocation *host) {
  CUmemAccessDesc access[2] = {{tier_device(device), CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
  if (host)
    access[1] = (CUmemAccessDesc){*host, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return driver.cuMemSetAccess(address, bytes, access, host ? 2 : 1);
}

/* Creates, maps, opens and drops one piece: creation alone doesn't tell whether the CPU may see it.
 */
static CUresult probe(CUdevice device, CUmemLocation location, size_t bytes) {
  CUmemAllocationProp properties = tier_properties(location);
  CUmemGenericAllocationHandle handle;
  CUdeviceptr address;
  CUresult result = driver.cuMemAddressReserve(&address, bytes, 0, 0, 0);
  if (result)
    return result;
  result = driver.cuMemCreate(&handle, bytes, &properties, 0);
  if (result)
    goto reserved;
  result = driver.cuMemMap(address, bytes, 0, handle, 0);
  if (result)
    goto created;
  result = tier_open(address, bytes, device, &location);
  CUresult unmapped = driver.cuMemUnmap(address, bytes);
  if (!result)
    result = unmapped;
created:
  (void)driver.cuMemRelease(handle);
reserved:
  (void)driver.cuMemAddressFree(address, bytes);
  return result;
}

static struct tier_refusal refusal; /* under the mutex */

struct tier_refusal tier_refused(void) {
  pthread_mutex_lock(&mutex);
  const struct tier_refusal now = refusal;
  pthread_mutex_unlock(&mutex);
  return now;
}

static void say_none(CUresult numa, CUresult host) {
  int version = 0;
  if (driver.cuDriverGetVersion)
    (void)driver.cuDriverGetVersion(&version);
  pthread_mutex_lock(&mutex);
  refusal = (struct tier_refusal){true, numa == CUDA_ERROR_NOT_PERMITTED, version};
  pthread_mutex_unlock(&mutex);
  if (version && version < 12020)
    report_reason("no state moves: this driver (CUDA %d.%d) can't make host memory handles; driver "
                  "550.54 (CUDA 12.4) or later can",
                  version / 1000, version % 1000 / 10);
  else if (version && version < 12040 && numa != CUDA_ERROR_NOT_PERMITTED)
    report_reason("no state moves: this driver (CUDA %d.%d) makes host memory handles only where "
                  "every visible device has a "
                  "context (error %d): name those in use in CUDA_VISIBLE_DEVICES, or use driver "
                  "550.54 (CUDA 12.4) or later",
                  version / 1000, version % 1000 / 10, (int)numa);
  else
    report_reason("no state moves: the driver refused host memory handles (HOST_NUMA: error %d, "
                  "HOST: error %d); in a container start it with --cap-add SYS_NICE, else use "
                  "driver 550.54 (CUDA 12.4) or later",
                  (int)numa, (int)host);
}

static enum rung climb(CUdevice device, size_t piece_bytes, CUmemLocation *location) {
  int node = 0;
  if (driver.cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device) || node < 0)
    node = 0;
  *location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = node};
  CUresult numa = probe(device, *location, piece_bytes);
  if (!numa)
    return RUNG_HOST_NUMA;
  *location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST};
  CUresult host = probe(device, *location, piece_bytes);
  if (!host)
    return RUNG_HOST;
  process_note(numa, "cuMemCreate");
  process_note(host, "cuMemCreate");
  say_none(numa, host);
  return RUNG_NONE;
}

bool tier_location(CUdevice device, size_t piece_bytes, CUmemLocation *location) {
  if (device < 0 || device >= DEVICES_MAX)
    return false;
  pthread_mutex_lock(&mutex);
  enum rung rung = devices[device].rung;
  *location = devices[device].location;
  pthread_mutex_unlock(&mutex);
  if (rung == RUNG_UNTRIED) { /* two threads may both try: the answers agree */
    CUstreamCaptureMode mode = quiet_begin();
    rung = climb(device, piece_bytes, location);
    quiet_end(mode);
    pthread_mutex_lock(&mutex);
    devices[device].rung = rung;
    devices[device].location = *location;
    report_tier(rung == RUNG_HOST_NUMA ? "host_numa" : rung == RUNG_HOST ? "host" : "none");
    pthread_mutex_unlock(&mutex);
  }
  return rung != RUNG_NONE;
}

/* Under the mutex. */
static void measure(void) {
  const int cancel = cancel_hold(); /* it reads files */
  struct budget now = budget_measure(process_config(), BUDGET_DRIVER_PAGES, NULL);
  cancel_allow(cancel);
  size_t limit = now.bytes > SIZE_MAX - budget.used ? SIZE_MAX : (size_t)now.bytes + budget.used;
  if (!budget.measured || limit < budget.limit) {
    budget.limit = limit;
    report_budget(limit, now.limited_by ? now.limited_by : "");
  }
  budget.measured = true;
  budget.until_next = portion_bytes;
}

size_t tier_room(void) {
  pthread_mutex_lock(&mutex);
  if (!budget.measured || !budget.until_next)
    measure();
  size_t room = budget.limit > budget.used ? budget.limit - budget.used : 0;
  pthread_mutex_unlock(&mutex);
  return room;
}

static bool claim(size_t bytes) {
  pthread_mutex_lock(&mutex);
  if (!budget.measured || budget.until_next < bytes)
    measure();
  bool room = budget.limit >= budget.used && budget.limit - budget.used >= bytes;
  if (room) {
    budget.used += bytes;
    budget.until_next -= bytes < budget.until_next ? bytes : budget.until_next;
  }
  const size_t limit = budget.limit;
  const bool tell = !room && !budget.told;
  budget.told |= tell;
  pthread_mutex_unlock(&mutex);
  if (tell)
    report_reason("part of the state stays on the device: the host memory budget of %zu bytes (%s) "
                  "is used up; raise OFFLOAD_HOST_MEMORY or free host memory",
                  limit, report.budget_limited_by);
  return room;
}

static void unclaim(size_t bytes) {
  pthread_mutex_lock(&mutex);
  budget.used -= bytes < budget.used ? bytes : budget.used;
  pthread_mutex_unlock(&mutex);
}

/* A handle whose bytes are in the budget already. */
static CUresult create_claimed(CUmemLocation location, size_t piece_bytes,
                               CUmemGenericAllocationHandle *handle) {
  CUmemAllocationProp properties = tier_properties(location);
  CUresult result = driver.cuMemCreate(handle, piece_bytes, &properties, 0);
  if (result) {
    unclaim(piece_bytes);
    process_note(result, "cuMemCreate");
    report_reason("part of the state stays on the device: the driver made no more host memory "
                  "(error %d)",
                  (int)result);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

CUresult tier_create(CUdevice device, size_t piece_bytes, CUmemGenericAllocationHandle *handle) {
  CUmemLocation location;
  if (!tier_location(device, piece_bytes, &location))
    return CUDA_ERROR_NOT_SUPPORTED;
  return claim(piece_bytes) ? create_claimed(location, piece_bytes, handle)
                            : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult tier_create_beyond(CUdevice device, size_t piece_bytes,
                            CUmemGenericAllocationHandle *handle) {
  CUmemLocation location;
  if (!tier_location(device, piece_bytes, &location))
    return CUDA_ERROR_NOT_SUPPORTED;
  pthread_mutex_lock(&mutex);
  budget.used += piece_bytes;
  pthread_mutex_unlock(&mutex);
  return create_claimed(location, piece_bytes, handle);
}

void tier_release(CUmemGenericAllocationHandle handle, size_t piece_bytes) {
  process_note(driver.cuMemRelease(handle), "cuMemRelease");
  unclaim(piece_bytes);
}
