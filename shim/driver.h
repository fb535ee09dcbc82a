/* The real driver: one pointer per name of hooks.def, filled by driver_resolve. Every call of ours
   into CUDA goes through this table, never through a symbol, so that we never meet our own
   wrappers. */
#ifndef OFFLOAD_DRIVER_H
#define OFFLOAD_DRIVER_H
#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
/* Names that cuda.h maps to newer versions; hooks.def means each symbol literally. */
#undef cuGetProcAddress
#undef cuStreamBeginCapture
#undef cuGraphInstantiate
#undef cuGraphExecUpdate
#undef cuGraphAddKernelNode
#undef cuGraphKernelNodeSetParams
#undef cuGraphExecKernelNodeSetParams
#undef cuGraphAddNode
#undef cuMemcpyBatchAsync
#undef cuMemcpy3DBatchAsync
#undef cuStreamWaitValue32
#undef cuStreamWaitValue64
#undef cuStreamWriteValue32
#undef cuStreamWriteValue64
#undef cuStreamBatchMemOp
#undef cuMemPrefetchAsync
#undef cuEventElapsedTime
/* Newer headers declare only its second version, which older drivers lack, unless a file asks for them. */
/* NOLINTNEXTLINE(readability-redundant-declaration): those files */
extern CUresult CUDAAPI cuEventElapsedTime(float *ms, CUevent begin, CUevent end);

/* HOOK(symbol, base name, first version, per-thread variant, parameters, argument names): a wrapper
   of ours exists, hook_<symbol>. USE(symbol, base, version): called by us only. A pointer is NULL
   where the driver lacks the name. */
struct driver {
#define HOOK(symbol, base, version, per_thread, parameters, arguments) CUresult(*symbol) parameters;
#define USE(symbol, base, version) __typeof__(&symbol) symbol;
#include "hooks.def"
#undef HOOK
#undef USE
};
extern struct driver driver;

/* Finds the loaded libcuda.so.1 and fills the table. Idempotent, lock-free, safe from any thread;
   false while no driver is loaded. Holds no lock across loader calls, and runs nothing of the
   driver's: it may be the driver itself that is looking a name up, while it starts. True: the whole table is filled; a single
   pointer that is there says nothing about others. Once process_started has been called it is, for all who see that. */
bool driver_resolve(void);

/* The wrapper of a function that dlsym found, or the pointer itself where none is ours. By identity
   with what libcuda.so.1 exports: what a driver finds in a library of its own stays the driver's. */
void *driver_route(void *real);

/* The same for what cuGetProcAddress handed out, to be called after it answered. */
void *driver_route_address(void *real);

/* What a wrapper answers when there is no real function: NOT_INITIALIZED without a driver, else
 * NOT_SUPPORTED. */
CUresult driver_missing(void);

/* The real function, for wrappers: a program that links directly may call before anything was
 * resolved. */
#define driver_real(symbol)                                                                        \
  ({                                                                                               \
    __typeof__(driver.symbol) real_##symbol = __atomic_load_n(&driver.symbol, __ATOMIC_RELAXED);   \
    if (__builtin_expect(!real_##symbol, 0) && driver_resolve())                                   \
      real_##symbol = __atomic_load_n(&driver.symbol, __ATOMIC_RELAXED);                           \
    real_##symbol;                                                                                 \
  })
#define driver_call(symbol, arguments)                                                             \
  ({                                                                                               \
    __typeof__(driver.symbol) call_##symbol = driver_real(symbol);                                 \
    __builtin_expect(call_##symbol != NULL, 1) ? call_##symbol arguments : driver_missing();       \
  })

/* Drivers before CUDA 12.4 tell no parameters of kernels, and their copies fail where device and host memory lie side by side. */
static inline bool driver_before_12_4(void) {
  return !driver.cuFuncGetParamInfo && !driver.cuKernelGetParamInfo;
}

/* A function's mangled name; NULL when the driver doesn't tell it. A CUkernel may be passed where a
   CUfunction is asked for (cuda.h, cuLaunchKernel). */
static inline const char *driver_function_name(CUfunction function) {
  const char *name = NULL;
  if (driver.cuFuncGetName && driver.cuFuncGetName(&name, function) == CUDA_SUCCESS && name)
    return name;
  name = NULL;
  if (driver.cuKernelGetName && driver.cuKernelGetName(&name, (CUkernel)function) == CUDA_SUCCESS)
    return name;
  return NULL;
}

/* Leaves the function with the answer of a call that failed. */
#define DRIVER_TRY(call)                                                                           \
  do {                                                                                             \
    const CUresult try_result = (call);                                                            \
    if (try_result != CUDA_SUCCESS)                                                                \
      return try_result;                                                                           \
  } while (0)

/* The wrappers. Each is exported under the driver's own name, so that direct links meet the very
 * same function. */
#define HOOK(symbol, base, version, per_thread, parameters, arguments)                             \
  CUresult hook_##symbol parameters __asm__(#symbol) __attribute__((visibility("default")));
#define USE(symbol, base, version)
#include "hooks.def"
#undef HOOK
#undef USE
#endif
