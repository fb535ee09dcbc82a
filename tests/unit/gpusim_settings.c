/* The switches: what is read, what is refused, and what the device then says. */
#include "tests/unit/gpusim_driver.h"

static const char *name, *value;

static int set_and_start(void) {
  setenv(name, value, 1);
  return cuInit(0) == CUDA_SUCCESS ? 0 : 1;
}

static int starting_with(const char *variable, const char *text_value) {
  name = variable;
  value = text_value;
  return in_child(set_and_start);
}

static int memory_of_device(void) {
  size_t bytes = 0;
  setenv("GPUSIM_MEMORY", "48MiB", 1);
  return cuInit(0) == CUDA_SUCCESS && cuDeviceTotalMem(&bytes, 0) == CUDA_SUCCESS &&
                 bytes == 48 << 20
             ? 0
             : 1;
}

static int eight_devices(void) {
  int count = 0;
  setenv("GPUSIM_DEVICES", "8", 1);
  return cuInit(0) == CUDA_SUCCESS && cuDeviceGetCount(&count) == CUDA_SUCCESS && count == 8 ? 0
                                                                                             : 1;
}

static int compute_capability(void) {
  int major = 0, minor = 0;
  setenv("GPUSIM_COMPUTE_CAPABILITY", "86", 1);
  if (cuInit(0) != CUDA_SUCCESS)
    return 1;
  cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
  cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0);
  return major == 8 && minor == 6 ? 0 : 1;
}

/* Sees the devices `order` of four, by their bus, and no more. */
static int seeing(const char *list, const int *order, int expected) {
  setenv("GPUSIM_DEVICES", "4", 1);
  setenv("CUDA_VISIBLE_DEVICES", list, 1);
  int count = -1;
  if (cuInit(0) != (expected ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE) ||
      gpusim_machine_devices() != 4)
    return 1;
  if (expected == 0)
    return 0;
  if (cuDeviceGetCount(&count) != CUDA_SUCCESS || count != expected)
    return 1;
  for (int i = 0; i < count; i++) {
    char bus[24], wide[32];
    CUuuid uuid;
    CUdevice back = -1;
    struct gpusim_machine_device machine;
    int number;
    MUST(cuDeviceGetPCIBusId(bus, sizeof bus, i));
    MUST(cuDeviceGetUuid(&uuid, i));
    snprintf(wide, sizeof wide, "0000%s", bus);
    number = gpusim_machine_device_by_bus(wide);
    if (number != order[i] || gpusim_machine_device(number, &machine) != 0 ||
        memcmp(machine.uuid, uuid.bytes, sizeof machine.uuid) != 0 ||
        cuDeviceGetByPCIBusId(&back, wide) != CUDA_SUCCESS || back != i)
      return 1;
  }
  return 0;
}

static int visible_in_order(void) {
  return seeing("2,0", (const int[]){2, 0}, 2);
}
static int visible_up_to_a_bad_one(void) {
  return seeing("3,7,1", (const int[]){3}, 1);
}
static int visible_none(void) {
  return seeing("", NULL, 0);
}
static int visible_by_mistake(void) {
  return seeing("-1", NULL, 0);
}

static int machine_without_driver(void) {
  struct gpusim_machine_device machine = {.memory_bytes = 0};
  setenv("GPUSIM_MEMORY", "48MiB", 1);
  if (gpusim_machine_device(0, &machine) != 0 || machine.memory_bytes != 48 << 20 ||
      gpusim_machine_device(1, &machine) == 0)
    return 1;
  int count;
  if (cuDeviceGetCount(&count) != CUDA_ERROR_NOT_INITIALIZED)
    return 1;
  start();
  CUdeviceptr memory;
  MUST(cuMemAlloc(&memory, 3 << 20));
  return gpusim_machine_device(0, &machine) == 0 && machine.used_bytes >= 3 << 20 ? 0 : 1;
}

static int numa_attribute(void) {
  int supported = 1;
  setenv("GPUSIM_HOST_NUMA", "0", 1);
  return cuInit(0) == CUDA_SUCCESS &&
                 cuDeviceGetAttribute(
                     &supported, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                     0) == CUDA_SUCCESS &&
                 supported == 0
             ? 0
             : 1;
}

static int unpoisoned(void) {
  setenv("GPUSIM_POISON", "0", 1);
  start();
  CUdeviceptr memory;
  MUST(cuMemAlloc(&memory, 4096));
  return device_word(memory) == 0 ? 0 : 1;
}

int main(void) {
  tap_ok(starting_with("GPUSIM_QUEUES", "8") == 0, "a good value is taken");
  tap_ok(starting_with("GPUSIM_QEUES", "8") == 87, "a misspelt variable ends the process with 87");
  tap_ok(starting_with("GPUSIM_QUEUES", "0") == 87, "so does a value out of range");
  tap_ok(starting_with("GPUSIM_QUEUES", "8x") == 87, "and one that isn't a number");
  tap_ok(starting_with("GPUSIM_MEMORY", "4GB") == 87, "and a unit that doesn't exist");
  tap_ok(starting_with("GPUSIM_MEMORY", "-4096") == 87, "and negative bytes");
  tap_ok(starting_with("GPUSIM_GRANULARITY", "12KiB") == 87,
         "and a granularity that isn't a power of two");
  tap_ok(in_child(memory_of_device) == 0, "GPUSIM_MEMORY is the memory of a device");
  tap_ok(in_child(eight_devices) == 0, "GPUSIM_DEVICES is their number");
  tap_ok(in_child(visible_in_order) == 0,
         "CUDA_VISIBLE_DEVICES chooses devices and their order; bus and UUID are the machine's");
  tap_ok(in_child(visible_up_to_a_bad_one) == 0, "a device that isn't there ends its list");
  tap_ok(in_child(visible_none) == 0, "an empty list hides all devices");
  tap_ok(in_child(visible_by_mistake) == 0, "so does -1");
  tap_ok(in_child(machine_without_driver) == 0,
         "the machine's devices are told without the driver being initialised");
  tap_ok(in_child(compute_capability) == 0, "GPUSIM_COMPUTE_CAPABILITY is theirs");
  tap_ok(in_child(numa_attribute) == 0, "the attribute follows GPUSIM_HOST_NUMA");
  tap_ok(in_child(unpoisoned) == 0, "GPUSIM_POISON=0 gives zeroed memory");
  return tap_done();
}
