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
  tap_ok(in_child(compute_capability) == 0, "GPUSIM_COMPUTE_CAPABILITY is theirs");
  tap_ok(in_child(numa_attribute) == 0, "the attribute follows GPUSIM_HOST_NUMA");
  tap_ok(in_child(unpoisoned) == 0, "GPUSIM_POISON=0 gives zeroed memory");
  return tap_done();
}
