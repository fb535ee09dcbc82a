/* Devices: count, names, attributes (attributes.def), peers. Questions only; nothing here changes.
 */
#include "tests/gpusim/driver.h"
#include <stdio.h>

CUresult gpusim_ready_device(CUdevice device) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  return device >= 0 && device < gpusim_settings.devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* The same, and `out` must be a place to answer to. */
static CUresult ready_to_answer(CUdevice device, const void *out) {
  CUresult result = gpusim_ready_device(device);
  return result == CUDA_SUCCESS && out == NULL ? CUDA_ERROR_INVALID_VALUE : result;
}

CUresult cuDeviceGetCount(int *count) {
  CUresult result = gpusim_ready();
  if (result == CUDA_SUCCESS && count == NULL)
    result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS)
    *count = gpusim_settings.devices;
  return result;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  CUresult result = ready_to_answer(ordinal, device);
  if (result == CUDA_SUCCESS)
    *device = ordinal;
  return result;
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device) {
  CUresult result = ready_to_answer(device, name);
  if (result != CUDA_SUCCESS || bytes <= 0)
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
  snprintf(name, (size_t)bytes, "Simulated GPU %d", device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  CUresult result = ready_to_answer(device, bytes);
  if (result == CUDA_SUCCESS)
    *bytes = gpusim_settings.memory;
  return result;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  CUresult result = ready_to_answer(device, uuid);
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_machine_uuid(gpusim_machine_number(device), (unsigned char *)uuid->bytes);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
  return cuDeviceGetUuid_v2(uuid, device);
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
  CUresult result = ready_to_answer(device, major != NULL ? minor : NULL);
  if (result != CUDA_SUCCESS)
    return result;
  *major = gpusim_settings.compute_capability / 10;
  *minor = gpusim_settings.compute_capability % 10;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *id, int bytes, CUdevice device) {
  CUresult result = ready_to_answer(device, id);
  if (result != CUDA_SUCCESS || bytes < 13)
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
  snprintf(id, (size_t)bytes, "0000:%02X:00.0", (unsigned)gpusim_machine_number(device) + 1);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS || device == NULL || id == NULL)
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
  int number = gpusim_machine_by_bus(id);
  for (int i = 0; i < gpusim_settings.devices; i++)
    if (gpusim_machine_number(i) == number) {
      *device = i;
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
  CUresult result = ready_to_answer(device, can);
  if (result == CUDA_SUCCESS)
    result = gpusim_ready_device(peer);
  if (result == CUDA_SUCCESS)
    *can = device != peer;
  return result;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice device,
                                 CUdevice peer) {
  CUresult result = cuDeviceCanAccessPeer(value, device, peer);
  if (result != CUDA_SUCCESS || device == peer)
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_DEVICE;
  *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetExecAffinitySupport(int *supported, CUexecAffinityType type, CUdevice device) {
  (void)type;
  CUresult result = ready_to_answer(device, supported);
  if (result == CUDA_SUCCESS)
    *supported = 0;
  return result;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  CUresult result = ready_to_answer(device, value);
  if (result != CUDA_SUCCESS || attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX ||
      !gpusim_attribute_known((int)attribute))
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
  const struct gpusim_settings *s = &gpusim_settings;
  switch ((int)attribute) {
#define ATTRIBUTE(name, answer)                                                                    \
  case CU_DEVICE_ATTRIBUTE_##name:                                                                 \
    *value = (answer);                                                                             \
    break;
#include "attributes.def"
#undef ATTRIBUTE
  default:
    *value = 0;
  }
  return CUDA_SUCCESS;
}
