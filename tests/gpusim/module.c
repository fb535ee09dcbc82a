/* Modules and libraries (both an image), kernels (CUfunction and CUkernel, both an image's kernel)
   and what may be asked about them. Launches are in launch.c. A kernel's handle is known from the
   first time the program gets it until its image is unloaded. */
#include "tests/gpusim/driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct loaded {
  struct loaded *next;
  struct gpusim_image *image;
  CUcontext context; /* NULL for libraries: they belong to no context */
};
static struct loaded *all; /* gpusim_mutex */

/* ---- loading ---- */

static void unload(struct loaded *loaded) {
  gpusim_image_free(loaded->image);
  free(loaded);
}

static CUresult load(void **out, const void *code, CUcontext context) {
  int error = CUDA_SUCCESS;
  if (out == NULL || code == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  /* libraries are loaded when first used, also inside a capture; modules at the call */
  CUresult result = context != NULL ? gpusim_capture_unsafe() : CUDA_SUCCESS;
  if (result != CUDA_SUCCESS)
    return result;
  if (context != NULL)
    gpusim_driver_settle(context, "a module load");
  struct gpusim_image *image = gpusim_image_load(code, &error);
  if (image == NULL)
    return (CUresult)error;
  struct loaded *loaded = gpusim_new(sizeof *loaded);
  loaded->image = image;
  loaded->context = context;
  gpusim_lock();
  if (context == NULL || context->alive) {
    gpusim_handle_add(loaded, HANDLE_LOADED, NULL);
    loaded->next = all;
    all = loaded;
    *out = loaded;
  } else {
    unload(loaded);
    result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  gpusim_unlock();
  return result;
}

static CUresult load_file(void **out, const char *path, CUcontext context) {
  FILE *file = path != NULL ? fopen(path, "rb") : NULL;
  if (file == NULL)
    return CUDA_ERROR_FILE_NOT_FOUND;
  fseek(file, 0, SEEK_END);
  long bytes = ftell(file);
  rewind(file);
  char *code = gpusim_new((size_t)(bytes > 0 ? bytes : 0) + 1);
  bool whole = bytes > 0 && fread(code, 1, (size_t)bytes, file) == (size_t)bytes;
  fclose(file);
  CUresult result = whole ? load(out, code, context) : CUDA_ERROR_INVALID_IMAGE;
  free(code);
  return result;
}

/* Takes it off the list, and its handles out of the program's hands: nothing new can be launched of it.
   gpusim_mutex held. */
static void forget(struct loaded *loaded) {
  struct loaded **link = &all;
  while (*link != loaded)
    link = &(*link)->next;
  *link = loaded->next;
  gpusim_handle_remove(loaded);
  for (struct gpusim_kernel *k = gpusim_image_known_kernels(loaded->image); k != NULL; k = k->next)
    gpusim_handle_remove(k);
}

void gpusim_modules_free(CUcontext context) {
  for (struct loaded *l = all, *next; l != NULL; l = next) {
    next = l->next;
    if (l->context == context) {
      forget(l);
      unload(l);
    }
  }
}

/* A driver waits for work before it takes the code away. */
static CUresult unload_handle(void *handle) {
  CUresult result = gpusim_ready();
  if (result == CUDA_SUCCESS)
    result = gpusim_capture_unsafe();
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_lock();
  gpusim_driver_hold("unloading");
  if (gpusim_handle_is(handle, HANDLE_LOADED)) {
    forget(handle);
    for (CUcontext c = gpusim_next_context(NULL); c != NULL; c = gpusim_next_context(c))
      gpusim_drain_context(c);
    unload(handle);
  } else {
    result = CUDA_ERROR_INVALID_HANDLE;
  }
  gpusim_driver_let_go();
  gpusim_unlock();
  return result;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_options,
                           void **jit_values, unsigned jit_count, CUlibraryOption *options,
                           void **values, unsigned count) {
  (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
  CUresult result = gpusim_ready();
  return result == CUDA_SUCCESS ? load((void **)library, code, NULL) : result;
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit_options,
                               void **jit_values, unsigned jit_count, CUlibraryOption *options,
                               void **values, unsigned count) {
  (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
  CUresult result = gpusim_ready();
  return result == CUDA_SUCCESS ? load_file((void **)library, path, NULL) : result;
}

CUresult cuLibraryUnload(CUlibrary library) {
  return unload_handle(library);
}

CUresult cuModuleLoadData(CUmodule *module, const void *code) {
  CUcontext context;
  CUresult result = gpusim_enter(&context);
  return result == CUDA_SUCCESS ? load((void **)module, code, context) : result;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *code, unsigned count,
                            CUjit_option *options, void **values) {
  (void)count, (void)options, (void)values;
  return cuModuleLoadData(module, code);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *code) {
  return cuModuleLoadData(module, code);
}

CUresult cuModuleLoad(CUmodule *module, const char *path) {
  CUcontext context;
  CUresult result = gpusim_enter(&context);
  return result == CUDA_SUCCESS ? load_file((void **)module, path, context) : result;
}

CUresult cuModuleUnload(CUmodule module) {
  return unload_handle(module);
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
  if (mode == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *mode = CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

/* ---- what an image holds ---- */

/* The image of a handle. On success gpusim_mutex is held: it can't go until the caller lets go of it. */
static CUresult enter_image(void *handle, struct gpusim_image **image) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_lock();
  if (!gpusim_handle_is(handle, HANDLE_LOADED)) {
    gpusim_unlock();
    return CUDA_ERROR_INVALID_HANDLE;
  }
  *image = ((struct loaded *)handle)->image;
  return CUDA_SUCCESS;
}

static CUresult get_kernel(void **out, void *handle, const char *name) {
  struct gpusim_image *image;
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  if (out == NULL || name == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  result = enter_image(handle, &image);
  if (result != CUDA_SUCCESS)
    return result;
  struct gpusim_kernel *kernel = gpusim_image_kernel(image, name);
  if (kernel != NULL) {
    gpusim_handle_add(kernel, HANDLE_KERNEL, handle);
    *out = kernel;
  }
  gpusim_unlock();
  return kernel != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
  return get_kernel((void **)kernel, library, name);
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  return get_kernel((void **)function, module, name);
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
  if (module == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (!gpusim_handle_is(library, HANDLE_LOADED))
    return CUDA_ERROR_INVALID_HANDLE;
  *module = (CUmodule)(void *)library;
  return CUDA_SUCCESS;
}

static CUresult get_global(CUdeviceptr *address, size_t *bytes, void *handle, const char *name) {
  struct gpusim_image *image;
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  if (name == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  result = enter_image(handle, &image);
  if (result != CUDA_SUCCESS)
    return result;
  struct gpusim_global *global = gpusim_image_global(image, name);
  if (global != NULL && address != NULL)
    *address = global->address;
  if (global != NULL && bytes != NULL)
    *bytes = global->bytes;
  gpusim_unlock();
  return global != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library,
                            const char *name) {
  return get_global(address, bytes, library, name);
}

CUresult cuLibraryGetManaged(CUdeviceptr *address, size_t *bytes, CUlibrary library,
                             const char *name) {
  return get_global(address, bytes, library, name);
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module,
                              const char *name) {
  return get_global(address, bytes, module, name);
}

static CUresult enumerate(void **out, unsigned room, unsigned *count, void *handle) {
  struct gpusim_image *image;
  unsigned found = 0;
  CUresult result = enter_image(handle, &image);
  if (result != CUDA_SUCCESS)
    return result;
  for (struct gpusim_kernel *k = gpusim_image_kernels(image); k != NULL; k = k->next, found++)
    if (out != NULL && found < room) {
      gpusim_handle_add(k, HANDLE_KERNEL, handle);
      out[found] = k;
    }
  gpusim_unlock();
  if (count != NULL)
    *count = found;
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary library) {
  return count != NULL ? enumerate(NULL, 0, count, library) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule module) {
  return count != NULL ? enumerate(NULL, 0, count, module) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned room, CUlibrary library) {
  return kernels != NULL ? enumerate((void **)kernels, room, NULL, library)
                         : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned room, CUmodule module) {
  return functions != NULL ? enumerate((void **)functions, room, NULL, module)
                           : CUDA_ERROR_INVALID_VALUE;
}

/* ---- a kernel; a CUkernel passed as a CUfunction is the same thing (cuda.h, cuLaunchKernel) ----
 */

CUresult gpusim_enter_kernel(const void *handle, struct gpusim_kernel **kernel) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_lock();
  if (!gpusim_handle_is(handle, HANDLE_KERNEL)) {
    gpusim_unlock();
    return CUDA_ERROR_INVALID_HANDLE;
  }
  *kernel = (struct gpusim_kernel *)handle;
  return CUDA_SUCCESS;
}

/* For questions that a live handle answers. */
static CUresult check_kernel(const void *handle) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  return gpusim_handle_is(handle, HANDLE_KERNEL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
  CUresult result = check_kernel(kernel);
  if (result == CUDA_SUCCESS)
    *function = (CUfunction)(void *)kernel;
  return result;
}

CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel) {
  CUresult result = check_kernel(kernel);
  if (result == CUDA_SUCCESS)
    *library = gpusim_handle_owner(kernel, HANDLE_KERNEL);
  return result;
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction function) {
  CUresult result = check_kernel(function);
  if (result == CUDA_SUCCESS)
    *module = gpusim_handle_owner(function, HANDLE_KERNEL);
  return result;
}

static CUresult get_name(const char **name, const void *handle) {
  struct gpusim_kernel *k;
  CUresult result = gpusim_enter_kernel(handle, &k);
  if (result != CUDA_SUCCESS)
    return result;
  *name = k->name;
  gpusim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char **name, CUkernel kernel) {
  return get_name(name, kernel);
}

CUresult cuFuncGetName(const char **name, CUfunction function) {
  return get_name(name, function);
}

static CUresult get_parameter(const void *handle, size_t index, size_t *offset, size_t *bytes) {
  struct gpusim_kernel *k;
  CUresult result = gpusim_enter_kernel(handle, &k);
  if (result != CUDA_SUCCESS)
    return result;
  if (offset == NULL || index >= (size_t)k->parameter_count) {
    result = CUDA_ERROR_INVALID_VALUE;
  } else {
    *offset = k->parameters[index].offset;
    if (bytes != NULL)
      *bytes = k->parameters[index].bytes;
  }
  gpusim_unlock();
  return result;
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *bytes) {
  return get_parameter(kernel, index, offset, bytes);
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *bytes) {
  return get_parameter(function, index, offset, bytes);
}

/* ---- attributes ---- */

enum { DEFAULT_SHARED_BYTES = 49152, MOST_SHARED_BYTES = 232448 };

int gpusim_kernel_dynamic_limit(const struct gpusim_kernel *k) {
  return k->max_dynamic_shared_bytes != 0 ? k->max_dynamic_shared_bytes
                                          : DEFAULT_SHARED_BYTES - (int)k->static_shared_bytes;
}

static CUresult get_attribute(int *value, CUfunction_attribute attribute, const void *handle) {
  struct gpusim_kernel *k;
  if (value == NULL || attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) {
    CUresult result = check_kernel(handle);
    return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
  }
  CUresult result = gpusim_enter_kernel(handle, &k);
  if (result != CUDA_SUCCESS)
    return result;
  switch (attribute) {
  case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    *value = (int)k->max_threads;
    break;
  case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
    *value = (int)k->static_shared_bytes;
    break;
  case CU_FUNC_ATTRIBUTE_NUM_REGS:
    *value = 32;
    break;
  case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    *value = (int)k->architecture;
    break;
  case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
    *value = gpusim_settings.compute_capability;
    break;
  case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
    *value = gpusim_kernel_dynamic_limit(k);
    break;
  default:
    *value = 0;
  }
  gpusim_unlock();
  return CUDA_SUCCESS;
}

static CUresult set_attribute(CUfunction_attribute attribute, int value, const void *handle) {
  struct gpusim_kernel *k;
  CUresult result = gpusim_enter_kernel(handle, &k);
  if (result != CUDA_SUCCESS)
    return result;
  /* the others are preferences, without effect here */
  bool sets = attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  if (attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX ||
      (sets && (value < 0 || value + (int)k->static_shared_bytes > MOST_SHARED_BYTES)))
    result = CUDA_ERROR_INVALID_VALUE;
  else if (sets)
    k->max_dynamic_shared_bytes = value;
  gpusim_unlock();
  return result;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  return get_attribute(value, attribute, function);
}

CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel,
                              CUdevice device) {
  CUresult result = gpusim_ready_device(device);
  return result == CUDA_SUCCESS ? get_attribute(value, attribute, kernel) : result;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  return set_attribute(attribute, value, function);
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                              CUdevice device) {
  CUresult result = gpusim_ready_device(device);
  return result == CUDA_SUCCESS ? set_attribute(attribute, value, kernel) : result;
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
  (void)config;
  return check_kernel(function);
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice device) {
  (void)config;
  CUresult result = gpusim_ready_device(device);
  return result == CUDA_SUCCESS ? check_kernel(kernel) : result;
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function) {
  CUresult result = check_kernel(function);
  if (result == CUDA_SUCCESS)
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
  return result;
}

CUresult cuFuncLoad(CUfunction function) {
  return check_kernel(function);
}
