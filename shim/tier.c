/* The host tier (tier.h): its ladder, its budget, and the properties of handles on either tier.

   The budget is this rank's share of the node's (policy/share.h), and the process's devices share it: whoever comes first takes what it
   needs, but for a part of equal size that is kept for each device that steps and hasn't moved its state yet. */
#include "tier.h"
#include "../policy/leaf.h"
#include "../policy/report.h"
#include "../policy/share.h"
#include "cancel.h"
#include "driver.h"
#include "process.h"
#include "quiet.h"
#include <pthread.h>
#include <stdio.h>

enum { DEVICES_MAX = 64 };

enum rung { RUNG_UNTRIED, RUNG_HOST_NUMA, RUNG_HOST, RUNG_NONE };

/* Protects everything below; never held across a driver call. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
  enum rung rung;
  CUmemLocation location;
  bool steps, served; /* its launches were seen; its state had its turn to move */
  size_t used;        /* bytes of the budget */
} devices[DEVICES_MAX];

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
  struct tier_refusal now = {0};
  if (leaf_lock(&mutex)) {
    now = refusal;
    pthread_mutex_unlock(&mutex);
  }
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

void tier_stepping(CUdevice device) {
  if (device < 0 || device >= DEVICES_MAX)
    return;
  pthread_mutex_lock(&mutex);
  devices[device].steps = true;
  pthread_mutex_unlock(&mutex);
}

void tier_served(CUdevice device) {
  if (device < 0 || device >= DEVICES_MAX)
    return;
  pthread_mutex_lock(&mutex);
  devices[device].served = true;
  pthread_mutex_unlock(&mutex);
}

/* Of `room` bytes that are left, those that are kept for others than this device. */
static size_t kept_for_others(CUdevice device, size_t room) {
  size_t used = 0, stepping = 0, kept = 0;
  pthread_mutex_lock(&mutex);
  for (CUdevice i = 0; i < DEVICES_MAX; i++) {
    used += devices[i].used;
    stepping += devices[i].steps || i == device;
  }
  const size_t part = stepping ? (used + room) / stepping : 0;
  for (CUdevice i = 0; i < DEVICES_MAX; i++)
    if (i != device && devices[i].steps && !devices[i].served && devices[i].used < part)
      kept += part - devices[i].used;
  pthread_mutex_unlock(&mutex);
  return kept;
}

static size_t as_size(uint64_t bytes) {
  return bytes > SIZE_MAX ? SIZE_MAX : (size_t)bytes;
}

size_t tier_room(CUdevice device) {
  const int cancel = cancel_hold(); /* it reads files */
  const size_t room = as_size(share_room(process_config()));
  cancel_allow(cancel);
  const size_t kept = kept_for_others(device, room);
  return room > kept ? room - kept : 0;
}

static void count(CUdevice device, size_t bytes, bool more) {
  pthread_mutex_lock(&mutex);
  size_t *used = &devices[device].used;
  *used = more ? *used + bytes : *used > bytes ? *used - bytes : 0;
  pthread_mutex_unlock(&mutex);
}

static bool claim(CUdevice device, size_t bytes, bool beyond) {
  const char *by = NULL;
  char budget[REPORT_SIZE_BYTES];
  const int cancel = cancel_hold();
  const bool taken = share_take(process_config(), bytes, beyond, &by);
  const uint64_t limit = by ? share_limit(process_config()) : 0;
  cancel_allow(cancel);
  if (taken)
    count(device, bytes, true);
  if (by)
    report_reason("part of the state stays on the device: the host memory budget of %s (%s) "
                  "is used up; raise OFFLOAD_HOST_MEMORY or free host memory",
                  report_size_text(limit, budget), by);
  return taken;
}

static void unclaim(CUdevice device, size_t bytes) {
  const int cancel = cancel_hold();
  share_give(bytes);
  cancel_allow(cancel);
  count(device, bytes, false);
}

/* A handle whose bytes are in the budget already. */
static CUresult create_claimed(CUdevice device, CUmemLocation location, size_t piece_bytes,
                               CUmemGenericAllocationHandle *handle) {
  CUmemAllocationProp properties = tier_properties(location);
  CUresult result = driver.cuMemCreate(handle, piece_bytes, &properties, 0);
  if (result) {
    unclaim(device, piece_bytes);
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
  return claim(device, piece_bytes, false) ? create_claimed(device, location, piece_bytes, handle)
                                           : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult tier_create_beyond(CUdevice device, size_t piece_bytes,
                            CUmemGenericAllocationHandle *handle) {
  CUmemLocation location;
  if (!tier_location(device, piece_bytes, &location))
    return CUDA_ERROR_NOT_SUPPORTED;
  (void)claim(device, piece_bytes, true);
  return create_claimed(device, location, piece_bytes, handle);
}

void tier_release(CUdevice device, CUmemGenericAllocationHandle handle, size_t piece_bytes) {
  process_note(driver.cuMemRelease(handle), "cuMemRelease");
  unclaim(device, piece_bytes);
}
