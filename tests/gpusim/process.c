/* The process: cuInit, the locks, what each thread carries, and how entry points are found. A
   forked child of an initialised process can't use CUDA, as with a driver. */
#include "tests/gpusim/driver.h"
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

pthread_mutex_t gpusim_mutex = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool initialised;
/* Not 0 in the process that initialised. The kernel wipes it in children, those of a bare clone
   among them: CUDA can't be used there, where locks may be held by threads that don't exist. */
static atomic_int *home;
static __thread struct gpusim_thread this_thread;

void gpusim_lock(void) {
  pthread_mutex_lock(&gpusim_mutex);
}

void gpusim_unlock(void) {
  pthread_mutex_unlock(&gpusim_mutex);
}

struct gpusim_thread *gpusim_this_thread(void) {
  static _Atomic uint64_t next_thread_id = 1;
  if (this_thread.id == 0)
    this_thread.id = atomic_fetch_add_explicit(&next_thread_id, 1, memory_order_relaxed);
  return &this_thread;
}

bool gpusim_at_home(void) {
  return atomic_load_explicit(&initialised, memory_order_acquire) &&
         atomic_load_explicit(home, memory_order_relaxed) != 0;
}

/* For kernels that don't wipe. */
static void leave_home(void) {
  atomic_store_explicit(home, 0, memory_order_relaxed);
}

static void settle(void) {
  size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
  home = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (home == MAP_FAILED)
    abort();
  (void)madvise(home, bytes, MADV_WIPEONFORK);
  atomic_store_explicit(home, 1, memory_order_relaxed);
  pthread_atfork(NULL, NULL, leave_home);
}

static void initialise(void) {
  gpusim_settings_load();
  gpusim_report_start();
  gpusim_region_start();
  settle();
  gpusim_contexts_start();
  /* release: whoever sees the flag sees the settings and the table of devices */
  atomic_store_explicit(&initialised, true, memory_order_release);
}

/* A tool's library (CUDA_INJECTION64_PATH) is loaded and begins inside the first cuInit. It may call
   CUDA, cuInit too. */
static void inject(void) {
  static atomic_bool begun;
  const char *path = getenv("CUDA_INJECTION64_PATH");
  if (path == NULL || *path == 0 || atomic_exchange(&begun, true))
    return;
  int (*begin)(void) = NULL;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library != NULL)
    *(void **)&begin = dlsym(library, "InitializeInjection");
  gpusim_trace(1, "injection of %s: %s", path, begin == NULL ? "not found" : "begins");
  if (begin != NULL)
    (void)begin();
}

CUresult cuInit(unsigned flags) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  if (flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (atomic_load_explicit(&initialised, memory_order_acquire) && !gpusim_at_home())
    return CUDA_ERROR_NOT_INITIALIZED;
  pthread_once(&once, initialise);
  inject();
  return gpusim_settings.devices > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult gpusim_ready(void) {
  if (!gpusim_at_home())
    return CUDA_ERROR_NOT_INITIALIZED;
  if (this_thread.in_host_function)
    return CUDA_ERROR_NOT_PERMITTED;
  gpusim_driver_pass();
  return CUDA_SUCCESS;
}

CUresult gpusim_ready_vmm(void) {
  CUresult result = gpusim_ready();
  return result == CUDA_SUCCESS && !gpusim_has_vmm() ? CUDA_ERROR_NOT_SUPPORTED : result;
}

/* ---- versions and entry points ---- */

CUresult cuDriverGetVersion(int *version) {
  if (version == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  gpusim_settings_load();
  *version = gpusim_driver_version();
  return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
  const cuuint64_t all =
      CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (name == NULL || function == NULL || (flags & ~all) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  gpusim_settings_load();
  if (version > gpusim_driver_version())
    return CUDA_ERROR_INVALID_VALUE;
  int per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  const char *symbol = NULL;
  *function = gpusim_lookup(name, version, per_thread, &symbol);
  bool newer =
      *function == NULL && gpusim_lookup(name, gpusim_driver_version(), per_thread, NULL) != NULL;
  gpusim_trace(3, "cuGetProcAddress %s, version %d, flags %llu: %s", name, version,
               (unsigned long long)flags, *function != NULL ? symbol : "none");
  if (status != NULL)
    *status = *function != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
              : newer           ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  /* a missing name is NULL and success: cuda.h */
  return CUDA_SUCCESS;
}

/* The form of 11.x, where a missing name is an error. */
CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags) {
  CUresult result = cuGetProcAddress_v2(name, function, version, flags, NULL);
  bool missing = result == CUDA_SUCCESS && *function == NULL;
  return missing && gpusim_driver_version() < 12000 ? CUDA_ERROR_NOT_FOUND : result;
}

/* No private tables: the simulator answers public calls only. */
CUresult cuGetExportTable(const void **table, const CUuuid *id) {
  (void)id;
  if (table == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *table = NULL;
  return CUDA_ERROR_NOT_FOUND;
}

/* cudaProfiler.h's, which cuda.h doesn't declare. */
GPUSIM_EXPORT CUresult cuProfilerStart(void) {
  return gpusim_ready();
}

GPUSIM_EXPORT CUresult cuProfilerStop(void) {
  return gpusim_ready();
}
