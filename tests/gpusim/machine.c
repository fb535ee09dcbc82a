/* The machine's devices, and which of them CUDA_VISIBLE_DEVICES lets this process see: a device's
   ordinal is its place in that list, its identity (UUID, bus) is the machine's. Configured by
   settings.c. What is exported here serves the NVML of integration/pytorch, which counts the
   machine's devices and must not initialise the driver. */
#include "tests/gpusim/driver.h"
#include "tests/gpusim/gpusim.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int machine_devices;
static int visible[GPUSIM_MAX_DEVICES];

/* Numbers of devices, separated by commas; the first entry that is none of this machine's ends the
   list, as does one that was there before. */
void gpusim_machine_configure(void) {
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  int count = 0;
  machine_devices = gpusim_settings.devices;
  for (int i = 0; i < machine_devices; i++)
    visible[i] = i;
  if (list == NULL)
    return;
  bool taken[GPUSIM_MAX_DEVICES] = {false};
  for (const char *at = list; *at;) {
    char *end;
    long number = strtol(at, &end, 10);
    if (end == at || (*end && *end != ',') || number < 0 || number >= machine_devices ||
        taken[number])
      break;
    taken[number] = true;
    visible[count++] = (int)number;
    at = *end ? end + 1 : end;
  }
  gpusim_settings.devices = count;
}

int gpusim_machine_number(CUdevice device) {
  return visible[device];
}

void gpusim_machine_uuid(int number, unsigned char uuid[16]) {
  memcpy(uuid, "GPU-SIMULATED-0", 16);
  uuid[15] = (unsigned char)number;
}

int gpusim_machine_by_bus(const char *id) {
  unsigned domain, bus, device, function;
  int length = 0;
  /* The domain may be left out, and have four digits or eight. */
  if (sscanf(id, "%x:%x:%x.%x%n", &domain, &bus, &device, &function, &length) != 4) {
    domain = 0;
    if (sscanf(id, "%x:%x.%x%n", &bus, &device, &function, &length) != 3)
      return -1;
  }
  if (id[length] || domain != 0 || device != 0 || function != 0 || bus == 0)
    return -1;
  return bus <= (unsigned)machine_devices ? (int)bus - 1 : -1;
}

GPUSIM_EXPORT int gpusim_machine_devices(void) {
  gpusim_settings_load();
  return machine_devices;
}

GPUSIM_EXPORT int gpusim_machine_device(int number, struct gpusim_machine_device *out) {
  gpusim_settings_load();
  if (number < 0 || number >= machine_devices || out == NULL)
    return -1;
  *out = (struct gpusim_machine_device){.memory_bytes = gpusim_settings.memory,
                                        .compute_capability = gpusim_settings.compute_capability};
  gpusim_machine_uuid(number, out->uuid);
  if (gpusim_ready() != CUDA_SUCCESS)
    return 0;
  for (int device = 0; device < gpusim_settings.devices; device++)
    if (visible[device] == number) {
      gpusim_memory_lock_shared();
      out->used_bytes = gpusim_used(device);
      gpusim_memory_unlock();
    }
  return 0;
}

GPUSIM_EXPORT int gpusim_machine_device_by_bus(const char *id) {
  gpusim_settings_load();
  return id == NULL ? -1 : gpusim_machine_by_bus(id);
}
