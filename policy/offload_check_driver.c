/* The child of `offload check` that asks the CUDA driver: a line for each answer on standard output, each written out before the next
   call, so that the parent knows which call a crash or a hang was in. On every GPU a piece of host memory is made, mapped, opened,
   written by the CPU and changed by a kernel. */
#define _GNU_SOURCE
#include "check.h"
#include <cuda.h>
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* By the names that the driver exports; what is missing in an older one stays NULL. */
#define DRIVER_CALLS(CALL)                                                                         \
  CALL(cuInit, cuInit)                                                                             \
  CALL(cuDriverGetVersion, cuDriverGetVersion)                                                     \
  CALL(cuGetErrorName, cuGetErrorName)                                                             \
  CALL(cuDeviceGetCount, cuDeviceGetCount)                                                         \
  CALL(cuDeviceGet, cuDeviceGet)                                                                   \
  CALL(cuDeviceGetName, cuDeviceGetName)                                                           \
  CALL(cuDeviceGetAttribute, cuDeviceGetAttribute)                                                 \
  CALL(cuDeviceTotalMem, cuDeviceTotalMem_v2)                                                      \
  CALL(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain)                                         \
  CALL(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2)                                    \
  CALL(cuCtxSetCurrent, cuCtxSetCurrent)                                                           \
  CALL(cuCtxSynchronize, cuCtxSynchronize)                                                         \
  CALL(cuMemGetInfo, cuMemGetInfo_v2)                                                              \
  CALL(cuModuleLoadData, cuModuleLoadData)                                                         \
  CALL(cuModuleGetFunction, cuModuleGetFunction)                                                   \
  CALL(cuLaunchKernel, cuLaunchKernel)                                                             \
  CALL(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity)                               \
  CALL(cuMemAddressReserve, cuMemAddressReserve)                                                   \
  CALL(cuMemAddressFree, cuMemAddressFree)                                                         \
  CALL(cuMemCreate, cuMemCreate)                                                                   \
  CALL(cuMemRelease, cuMemRelease)                                                                 \
  CALL(cuMemMap, cuMemMap)                                                                         \
  CALL(cuMemUnmap, cuMemUnmap)                                                                     \
  CALL(cuMemSetAccess, cuMemSetAccess)

static struct {
#define CALL(name, exported) __typeof__(name) *name;
  DRIVER_CALLS(CALL)
#undef CALL
} driver;

static const char kernel_name[] = "offload_check_add_one";
static const char kernel_text[] = ".version 7.0\n"
                                  ".target sm_52\n"
                                  ".address_size 64\n"
                                  ".visible .entry offload_check_add_one(.param .u64 where)\n"
                                  "{\n"
                                  ".reg .b32 %r<2>;\n"
                                  ".reg .b64 %rd<3>;\n"
                                  "ld.param.u64 %rd1, [where];\n"
                                  "cvta.to.global.u64 %rd2, %rd1;\n"
                                  "ld.global.u32 %r1, [%rd2];\n"
                                  "add.u32 %r1, %r1, 1;\n"
                                  "st.global.u32 [%rd2], %r1;\n"
                                  "ret;\n"
                                  "}\n";
enum { BEFORE = 41 };

static void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void tell(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vprintf(format, arguments);
  va_end(arguments);
  putchar('\n');
  fflush(stdout);
}

static const char *name_of(CUresult result) {
  static char text[64];
  const char *name = NULL;
  if (!result)
    return "-";
  if (driver.cuGetErrorName && !driver.cuGetErrorName(result, &name) && name)
    return name;
  snprintf(text, sizeof text, "error_%d", (int)result);
  return text;
}

static int attribute(CUdevice device, CUdevice_attribute which, int otherwise) {
  int value = otherwise;
  return driver.cuDeviceGetAttribute(&value, which, device) ? otherwise : value;
}

/* CPU and GPU both work on the word: the GPU adds one to what the CPU wrote. */
static void use(int index, CUdeviceptr address) {
  CUmodule module;
  CUfunction function;
  volatile uint32_t *word = (volatile uint32_t *)(uintptr_t)address;
  void *parameters[] = {&address};
  tell("doing %d a store by the CPU to host memory at a device address", index);
  *word = BEFORE;
  tell("doing %d cuModuleLoadData", index);
  CUresult result = driver.cuModuleLoadData(&module, kernel_text);
  if (!result)
    result = driver.cuModuleGetFunction(&function, module, kernel_name);
  tell("doing %d a kernel's load and store on host memory", index);
  if (!result)
    result = driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
  if (!result)
    result = driver.cuCtxSynchronize();
  tell("use %d %s", index, result ? name_of(result) : *word == BEFORE + 1 ? "-" : "wrong_value");
}

/* As the library makes a host piece (shim/tier.c). */
static bool try_host(int index, CUdevice device, CUmemLocation location, const char *word) {
  const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .location = location},
                            on_device = {
                                .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
  const CUmemAccessDesc access[] = {{on_device.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
                                    {location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
  CUmemGenericAllocationHandle handle;
  CUdeviceptr address;
  size_t bytes = 0;
  tell("doing %d cuMemCreate of %s memory", index, word);
  CUresult result =
      driver.cuMemGetAllocationGranularity(&bytes, &on_device, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (!result)
    result = driver.cuMemAddressReserve(&address, bytes, 0, 0, 0);
  if (result)
    goto told;
  result = driver.cuMemCreate(&handle, bytes, &properties, 0);
  if (result)
    goto reserved;
  result = driver.cuMemMap(address, bytes, 0, handle, 0);
  if (result)
    goto created;
  result = driver.cuMemSetAccess(address, bytes, access, 2);
  tell("%s %d %s", word, index, name_of(result));
  if (!result)
    use(index, address);
  (void)driver.cuMemUnmap(address, bytes);
  (void)driver.cuMemRelease(handle);
  (void)driver.cuMemAddressFree(address, bytes);
  return !result;
created:
  (void)driver.cuMemRelease(handle);
reserved:
  (void)driver.cuMemAddressFree(address, bytes);
told:
  tell("%s %d %s", word, index, name_of(result));
  return false;
}

static void ask_gpu(int index, CUdevice device) {
  char name[96] = "";
  size_t bytes = 0, free_bytes = 0, total = 0;
  CUcontext context;
  (void)driver.cuDeviceGetName(name, (int)sizeof name, device);
  (void)driver.cuDeviceTotalMem(&bytes, device);
  const int node = attribute(device, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1);
  const int vmm = attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0);
  tell("gpu %d %d %d %zu %d %d %d %d %d %04x:%02x:%02x.0 %s", index,
       attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0),
       attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0), bytes,
       attribute(device, CU_DEVICE_ATTRIBUTE_INTEGRATED, 0), vmm, node,
       attribute(device, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, 0),
       attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 0),
       (unsigned)attribute(device, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0),
       (unsigned)attribute(device, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0),
       (unsigned)attribute(device, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0), name);
  tell("doing %d cuDevicePrimaryCtxRetain", index);
  CUresult result = driver.cuDevicePrimaryCtxRetain(&context, device);
  if (!result)
    result = driver.cuCtxSetCurrent(context);
  tell("context %d %s", index, name_of(result));
  if (result)
    return;
  if (!driver.cuMemGetInfo(&free_bytes, &total))
    tell("free %d %zu", index, free_bytes);
  /* Drivers that don't know the attribute may still make the memory; node 0 then, as the library does. */
  if (vmm && driver.cuMemCreate && driver.cuMemSetAccess &&
      !try_host(index, device,
                (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = node < 0 ? 0 : node},
                "host_numa"))
    (void)try_host(index, device, (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST}, "host");
}

int check_child_driver(void) {
  tell("doing -1 dlopen of libcuda.so.1");
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    tell("missing %s", dlerror());
    return EXIT_SUCCESS;
  }
#define CALL(name, exported) *(void **)&driver.name = dlsym(library, #exported);
  DRIVER_CALLS(CALL)
#undef CALL
  struct link_map *map = NULL;
  if (!dlinfo(library, RTLD_DI_LINKMAP, &map) && map)
    tell("path %s", map->l_name);
  if (!driver.cuInit || !driver.cuDriverGetVersion || !driver.cuDeviceGetCount ||
      !driver.cuDevicePrimaryCtxRetain || !driver.cuDeviceTotalMem) {
    tell("missing it exports no cuInit and what belongs to it");
    return EXIT_SUCCESS;
  }
  int version = 0, count = 0;
  if (!driver.cuDriverGetVersion(&version))
    tell("version %d", version);
  tell("doing -1 cuInit");
  CUresult result = driver.cuInit(0);
  if (!result)
    result = driver.cuDeviceGetCount(&count);
  tell("init %d %s", (int)result, name_of(result));
  for (int i = 0; i < count && !result; i++) {
    CUdevice device;
    if (!driver.cuDeviceGet(&device, i))
      ask_gpu(i, device);
  }
  tell("done");
  return EXIT_SUCCESS;
}
