/* Reaches driver functions by every way there is and prints, a line each, in which object the
   function lies and what it is called there. Linked against the driver, as a driver-API program is.
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#undef cuGetProcAddress

CUresult cuGetProcAddress(const char *, void **, int, cuuint64_t);

static void print(const char *way, const char *name, void *function) {
  Dl_info info = {0};
  const char *file = "none";
  if (function && dladdr(function, &info)) {
    const char *slash = strrchr(info.dli_fname, '/');
    file = slash ? slash + 1 : info.dli_fname;
  }
  printf("%s %s: %s %s\n", way, name, file, function && info.dli_sname ? info.dli_sname : "");
}

static void by_proc_address(const char *base, int version) {
  static const struct {
    const char *name;
    cuuint64_t flags;
  } flags[] = {{"default", CU_GET_PROC_ADDRESS_DEFAULT},
               {"legacy", CU_GET_PROC_ADDRESS_LEGACY_STREAM},
               {"per-thread", CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM}};
  for (unsigned i = 0; i < sizeof flags / sizeof *flags; i++) {
    char way[64];
    void *function = NULL;
    CUdriverProcAddressQueryResult status;
    (void)snprintf(way, sizeof way, "proc-v1-%s", flags[i].name);
    print(way, base, cuGetProcAddress(base, &function, version, flags[i].flags) ? NULL : function);
    function = NULL;
    (void)snprintf(way, sizeof way, "proc-v2-%s", flags[i].name);
    print(way, base,
          cuGetProcAddress_v2(base, &function, version, flags[i].flags, &status) ? NULL : function);
  }
}

int main(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  static const char *const names[] = {"cuInit",           "cuMemAlloc_v2",       "cuMemFree_v2",
                                      "cuLaunchKernel",   "cuLaunchKernel_ptsz", "cuMemcpyHtoD_v2",
                                      "cuGetProcAddress", "cuGetProcAddress_v2", "cuDeviceGet"};
  if (!library)
    return 1;
  print("direct", "cuMemAlloc_v2", (void *)cuMemAlloc_v2);
  print("direct", "cuLaunchKernel", (void *)cuLaunchKernel);
  for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
    print("dlsym", names[i], dlsym(library, names[i]));
    print("default", names[i], dlsym(RTLD_DEFAULT, names[i]));
  }
  by_proc_address("cuMemAlloc", 12000);
  by_proc_address("cuLaunchKernel", 12000);
  by_proc_address("cuDeviceGet", 12000);
  by_proc_address("cuGetProcAddress", 11030);
  by_proc_address("cuGetProcAddress", 12000);
  return 0;
}
