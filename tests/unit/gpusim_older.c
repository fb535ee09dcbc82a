/* Older drivers and odd machines: what GPUSIM_DRIVER and GPUSIM_ODD take away. */
#include "tests/unit/gpusim_driver.h"
#include <dlfcn.h>

static const char *driver;

static int version(void) {
  int answered = 0;
  setenv("GPUSIM_DRIVER", driver, 1);
  if (cuInit(0) != CUDA_SUCCESS)
    return 1;
  MUST(cuDriverGetVersion(&answered));
  return answered / 1000 * 10 + answered % 1000 / 10; /* 12.4 is 124 */
}

static int version_with(const char *value) {
  driver = value;
  return in_child(version);
}

struct lookup {
  const char *name;
  int version;
  bool found;
  CUdriverProcAddressQueryResult status;
};

static bool finds(struct lookup expected) {
  void *function = (void *)&expected;
  CUdriverProcAddressQueryResult status;
  MUST(cuGetProcAddress(expected.name, &function, expected.version, 0, &status));
  return (function != NULL) == expected.found && status == expected.status;
}

typedef CUresult (*resolver_11)(const char *, void **, int, cuuint64_t);

static int lookups_11_8(void) {
  void *function;
  unsigned long long id;
  size_t offset;
  setenv("GPUSIM_DRIVER", "11.8", 1);
  start();
  resolver_11 resolve = NULL;
  *(void **)&resolve = dlsym(RTLD_DEFAULT, "cuGetProcAddress");
  bool right = resolve("cuMemCreate", &function, 11080, 0) == CUDA_SUCCESS && function != NULL &&
               resolve("cuLibraryLoadData", &function, 11080, 0) == CUDA_ERROR_NOT_FOUND &&
               function == NULL &&
               resolve("cuMemCreate", &function, 12000, 0) == CUDA_ERROR_INVALID_VALUE;
  return right && cuStreamGetId(NULL, &id) == CUDA_ERROR_NOT_SUPPORTED &&
                 cuFuncGetParamInfo(NULL, 0, &offset, NULL) == CUDA_ERROR_NOT_SUPPORTED &&
                 cuGetProcAddress("cuMemCreate", &function, 11080, 0, NULL) ==
                     CUDA_ERROR_NOT_SUPPORTED
             ? 0
             : 1;
}

static int lookups_12_2(void) {
  setenv("GPUSIM_DRIVER", "12.2", 1);
  start();
  return finds((struct lookup){"cuMemCreate", 12020, true, CU_GET_PROC_ADDRESS_SUCCESS}) &&
                 finds((struct lookup){"cuFuncGetParamInfo", 12020, false,
                                       CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND}) &&
                 finds((struct lookup){"cuMemCreate", 10000, false,
                                       CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT})
             ? 0
             : 1;
}

static int forms_12_2(void) {
  void *old_form, *new_form;
  setenv("GPUSIM_DRIVER", "12.2", 1);
  start();
  MUST(cuGetProcAddress("cuStreamGetCaptureInfo", &old_form, 12020, 0, NULL));
  MUST(cuGetProcAddress("cuFuncGetParamInfo", &new_form, 12020, 0, NULL));
  return old_form == dlsym(RTLD_DEFAULT, "cuStreamGetCaptureInfo_v2") && new_form == NULL ? 0 : 1;
}

/* An older driver's own library, as a program finds it with dlsym. */
static bool exports(const char *directory, const char *symbol) {
  char path[4096], own[4096];
  ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
  if (length < 0)
    return false;
  own[length] = 0;
  *strrchr(own, '/') = 0;
  snprintf(path, sizeof path, "%.2000s/../../gpusim/%s/libcuda.so.1", own, directory);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    printf("# %s\n", dlerror());
    return false;
  }
  bool found = dlsym(library, symbol) != NULL;
  dlclose(library);
  return found;
}

static CUresult create_on(CUmemLocationType type, int id) {
  CUmemGenericAllocationHandle handle;
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = type, .id = id}};
  CUresult result = cuMemCreate(&handle, PIECE, &properties, 0);
  if (result == CUDA_SUCCESS)
    MUST(cuMemRelease(handle));
  return result;
}

static int attribute(CUdevice_attribute which) {
  int value = -99;
  CUresult result = cuDeviceGetAttribute(&value, which, 0);
  return result == CUDA_SUCCESS ? value : 1000 + (int)result;
}

static int host_handles_12_0(void) {
  setenv("GPUSIM_DRIVER", "12.0", 1);
  start();
  return create_on(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0) == CUDA_ERROR_INVALID_VALUE &&
                 create_on(CU_MEM_LOCATION_TYPE_HOST, 0) == CUDA_ERROR_INVALID_VALUE &&
                 create_on(CU_MEM_LOCATION_TYPE_DEVICE, 0) == CUDA_SUCCESS &&
                 attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID) == 1000 + CUDA_ERROR_INVALID_VALUE
             ? 0
             : 1;
}

static int host_handles_12_2(void) {
  CUcontext second;
  setenv("GPUSIM_DRIVER", "12.2", 1);
  setenv("GPUSIM_DEVICES", "2", 1);
  start();
  bool refused = create_on(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0) == CUDA_ERROR_INVALID_CONTEXT;
  MUST(cuDevicePrimaryCtxRetain(&second, 1));
  return refused && create_on(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0) == CUDA_SUCCESS ? 0 : 1;
}

/* A copy over a device piece and the host piece behind it. */
static CUresult copy_across(void) {
  CUdeviceptr range, other;
  start();
  MUST(cuMemAddressReserve(&range, 2 * PIECE, 0, 0, 0));
  MUST(cuMemMap(range, PIECE, 0, create(device_memory()), 0));
  MUST(cuMemMap(range + PIECE, PIECE, 0, create(host_memory()), 0));
  MUST(grant(range, 2 * PIECE, CU_MEM_LOCATION_TYPE_DEVICE));
  MUST(cuMemAlloc(&other, 2 * PIECE));
  MUST(cuMemcpyDtoD(other, range, PIECE));
  return cuMemcpyDtoD(other, range, 2 * PIECE);
}

static int across_12_2(void) {
  setenv("GPUSIM_DRIVER", "12.2", 1);
  return copy_across() == CUDA_ERROR_INVALID_VALUE ? 0 : 1;
}

static int across_12_4(void) {
  setenv("GPUSIM_DRIVER", "12.4", 1);
  return copy_across() == CUDA_SUCCESS ? 0 : 1;
}

static int attributes_12_4(void) {
  setenv("GPUSIM_DRIVER", "12.4", 1);
  start();
  return attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) ==
                     1000 + CUDA_ERROR_INVALID_VALUE &&
                 attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID) == 0 &&
                 create_on(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0) == CUDA_SUCCESS &&
                 create_on(CU_MEM_LOCATION_TYPE_HOST, 0) == CUDA_ERROR_INVALID_VALUE
             ? 0
             : 1;
}

static int ptx_of_8_4(const char *release) {
  CUmodule module;
  setenv("GPUSIM_DRIVER", release, 1);
  start();
  return (int)cuModuleLoadData(&module, "// a comment\n.version 8.4\n.target sm_70\n"
                                        ".address_size 64\n.visible .entry f()\n{\n ret;\n}\n");
}

static int ptx_12_2(void) {
  return ptx_of_8_4("12.2") == CUDA_ERROR_UNSUPPORTED_PTX_VERSION ? 0 : 1;
}

static int ptx_12_4(void) {
  return ptx_of_8_4("12.4");
}

static const char *oddity;

static int odd(void) {
  char *page = aligned_alloc(4096, 17 << 20);
  size_t granularity;
  CUdeviceptr range;
  CUmemAllocationProp properties = device_memory();
  setenv("GPUSIM_ODD", oddity, 1);
  start();
  int answer = create_on(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0) == CUDA_ERROR_NOT_PERMITTED ? 1
               : attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID) == -1                      ? 2
               : attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID) == 1 &&
                       create_on(CU_MEM_LOCATION_TYPE_HOST_NUMA, 1) == CUDA_ERROR_INVALID_VALUE &&
                       create_on(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0) == CUDA_SUCCESS
                   ? 3
               : attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0 &&
                       create_on(CU_MEM_LOCATION_TYPE_DEVICE, 0) == CUDA_ERROR_NOT_SUPPORTED &&
                       cuMemAddressReserve(&range, PIECE, 0, 0, 0) == CUDA_ERROR_NOT_SUPPORTED &&
                       cuMemGetAllocationGranularity(&granularity, &properties, 0) ==
                           CUDA_ERROR_NOT_SUPPORTED
                   ? 4
               : cuMemHostRegister(page, 17 << 20, 0) == CUDA_ERROR_OUT_OF_MEMORY ? 5
                                                                                  : 0;
  if (answer == 5)
    answer = cuMemHostRegister(page, 16 << 20, 0) == CUDA_SUCCESS ? 5 : 0;
  if (answer == 2)
    answer = create_on(CU_MEM_LOCATION_TYPE_HOST_NUMA, -1) == CUDA_ERROR_INVALID_VALUE &&
                     create_on(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0) == CUDA_SUCCESS
                 ? 2
                 : 0;
  CUdeviceptr memory;
  return cuMemAlloc(&memory, 4096) == CUDA_SUCCESS ? answer : 99;
}

static int odd_machine(const char *name) {
  oddity = name;
  return in_child(odd);
}

int main(void) {
  tap_ok(version_with("11.8") == 118 && version_with("12.4") == 124 && version_with("13.0") == 130,
         "GPUSIM_DRIVER is the version that the driver answers");
  tap_ok(version_with("12.7") == 87 && version_with("12") == 87, "only releases that exist");
  tap_ok(in_child(lookups_11_8) == 0,
         "a driver doesn't know newer names, nor newer versions, and refuses newer exports");
  tap_ok(in_child(lookups_12_2) == 0, "since 12.0 it says why a name is missing");
  tap_ok(in_child(forms_12_2) == 0, "nor newer forms of a name that it knows");
  tap_ok(exports("driver_11080", "cuMemCreate") && exports("driver_11080", "cuGetProcAddress") &&
             !exports("driver_11080", "cuGetProcAddress_v2") &&
             !exports("driver_11080", "cuLibraryLoadData"),
         "the library of 11.8 has no cuGetProcAddress_v2");
  tap_ok(exports("driver_12020", "cuGetProcAddress_v2") &&
             !exports("driver_12020", "cuFuncGetParamInfo") &&
             exports("driver_12040", "cuFuncGetParamInfo"),
         "cuFuncGetParamInfo begins with 12.4");
  tap_ok(in_child(host_handles_12_0) == 0, "before 12.2 there are no host handles");
  tap_ok(in_child(host_handles_12_2) == 0, "12.2 makes them only with a context on each device");
  tap_ok(in_child(across_12_2) == 0, "and can't copy across the border to one");
  tap_ok(in_child(across_12_4) == 0, "which 12.4 can");
  tap_ok(in_child(attributes_12_4) == 0,
         "before 12.9 the attribute of host handles is unknown although they work");
  tap_ok(in_child(ptx_12_2) == 0, "PTX newer than the driver is refused by that name");
  tap_ok(in_child(ptx_12_4) == 0, "PTX as old as the driver is taken");
  tap_ok(odd_machine("container") == 1, "in a container host handles aren't permitted");
  tap_ok(odd_machine("no_numa") == 2, "without NUMA the node is -1 and handles want node 0");
  tap_ok(odd_machine("cpuless_node") == 3, "a node without CPUs is refused, another one isn't");
  tap_ok(odd_machine("wsl2") == 4 && odd_machine("vgpu") == 4,
         "without virtual memory management its calls say so");
  tap_ok(odd_machine("register_limit") == 5, "registering too much at once runs out of memory");
  tap_ok(odd_machine("moon") == 87, "an unknown oddity ends the process with 87");
  return tap_done();
}
