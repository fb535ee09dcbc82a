/* Drivers that are older, and machines that are odd: GPUSIM_DRIVER and GPUSIM_ODD, and what each of
   them changes. The rooms ask; what is true of which driver is written here only. */
#include "tests/gpusim/driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Releases: CUDA version and the newest PTX that its driver translates (PTX ISA, release history). */
static const struct {
  const char *name;
  int version, ptx;
} releases[] = {
    {"11.8", 11080, 78}, {"12.0", 12000, 80}, {"12.1", 12010, 81}, {"12.2", 12020, 82},
    {"12.3", 12030, 83}, {"12.4", 12040, 84}, {"12.5", 12050, 85}, {"12.6", 12060, 85},
    {"12.8", 12080, 87}, {"12.9", 12090, 88}, {"13.0", 13000, 90}, {"13.1", 13010, 91},
};
enum { RELEASES = sizeof releases / sizeof *releases };

static const char *const oddities[] = {
#define ODDITY(name, help) #name,
#include "oddities.def"
#undef ODDITY
};
enum { ODDITIES = sizeof oddities / sizeof *oddities };

static int release = RELEASES - 2; /* 13.0, as in switches.def */
static unsigned odd;               /* a bit per oddity */

static void parse_oddities(const char *value) {
  char list[256], known[256] = "expected, separated by commas:";
  snprintf(list, sizeof list, "%s", value);
  for (int i = 0; i < ODDITIES; i++)
    snprintf(known + strlen(known), sizeof known - strlen(known), " %s", oddities[i]);
  char *rest = list;
  for (char *one; (one = strsep(&rest, ",")) != NULL;) {
    int i = 0;
    while (i < ODDITIES && strcmp(one, oddities[i]) != 0)
      i++;
    if (i == ODDITIES)
      gpusim_settings_refuse("GPUSIM_ODD", value, known);
    odd |= 1u << i;
  }
}

void gpusim_odd_configure(void) {
  const char *wanted = gpusim_settings.driver;
  for (release = 0; release < RELEASES && strcmp(releases[release].name, wanted) != 0;)
    release++;
  if (release == RELEASES)
    gpusim_settings_refuse("GPUSIM_DRIVER", wanted,
                           "expected 11.8, 12.0 to 12.6, 12.8, 12.9, 13.0 or 13.1");
  if (gpusim_settings.odd != NULL)
    parse_oddities(gpusim_settings.odd);
}

int gpusim_driver_version(void) {
  return releases[release].version;
}

bool gpusim_is_odd(enum gpusim_oddity oddity) {
  return (odd >> oddity & 1) != 0;
}

bool gpusim_has_vmm(void) {
  return !gpusim_is_odd(ODD_vgpu) && !gpusim_is_odd(ODD_wsl2);
}

int gpusim_ptx_acceptable_version(const char *ptx) {
  int major, minor;
  if (ptx == NULL)
    return releases[release].version < 13000;
  while (*ptx == ' ' || *ptx == '\t' || *ptx == '\n' || *ptx == '\r' || *ptx == '/') {
    if (*ptx == '/') /* a comment line before the version */
      ptx += strcspn(ptx, "\n");
    else
      ptx++;
  }
  if (sscanf(ptx, ".version %d.%d", &major, &minor) != 2 ||
      major * 10 + minor <= releases[release].ptx)
    return CUDA_SUCCESS; /* without a version it is no PTX, which its reader says better */
  gpusim_trace(1, "PTX %d.%d is newer than GPUSIM_DRIVER=%s translates", major, minor,
               releases[release].name);
  return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
}

/* Every visible device needs a context before host memory can be made: 12.2 and 12.3 (NCCL's
 * comment says so; the error is our choice). */
static bool contexts_everywhere(void) {
  bool all = true;
  gpusim_lock();
  for (int device = 0; device < gpusim_settings.devices; device++) {
    bool found = false;
    for (CUcontext c = gpusim_next_context(NULL); c != NULL; c = gpusim_next_context(c))
      found = found || (c->device == device && c->alive);
    all = all && found;
  }
  gpusim_unlock();
  return all;
}

CUresult gpusim_host_location(const CUmemLocation *location) {
  int version = gpusim_driver_version();
  if (location->type == CU_MEM_LOCATION_TYPE_HOST) {
    if (version < 13000)
      return CUDA_ERROR_INVALID_VALUE; /* no such location yet */
    return gpusim_settings.host_handles ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
  }
  if (location->type != CU_MEM_LOCATION_TYPE_HOST_NUMA || version < 12020)
    return CUDA_ERROR_INVALID_VALUE;
  if (!gpusim_settings.host_numa || gpusim_is_odd(ODD_container))
    return CUDA_ERROR_NOT_PERMITTED;
  if (version < 12040 && !contexts_everywhere())
    return CUDA_ERROR_INVALID_CONTEXT;
  /* node 0 always exists; on a cpuless_node machine the GPU's own node is 1, which has memory only */
  return location->id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

int gpusim_numa_node(void) {
  return gpusim_is_odd(ODD_no_numa) ? -1 : gpusim_is_odd(ODD_cpuless_node) ? 1 : 0;
}

bool gpusim_attribute_known(int attribute) {
  int version = gpusim_driver_version();
  if (attribute == CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
    return version >= 12090;
  if (attribute == CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
    return version >= 13000;
  return attribute != CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID || version >= 12020;
}

size_t gpusim_register_limit(void) {
  return gpusim_is_odd(ODD_register_limit) ? (size_t)16 << 20 : SIZE_MAX;
}

/* Copies over the border of device and host memory failed before 12.4 (550.54.14). */
bool gpusim_copies_cross_memories(void) {
  return gpusim_driver_version() >= 12040;
}
