/* Wrappers of everything that loads kernels and hands them out, for drivers that don't tell what kernels take (image.h). With
   any other driver they pass on at one test. */
#include "hooks.h"
#include "image.h"

/* Seen after the real call, which has then accepted the image. */
#define LOAD(symbol, parameters, arguments, seen)                                                  \
  CUresult hook_##symbol parameters {                                                              \
    CUresult result = hook_pass_known(symbol, arguments);                                          \
    if (result == CUDA_SUCCESS && image_wanted())                                                  \
      seen;                                                                                        \
    return result;                                                                                 \
  }

LOAD(cuModuleLoad, (CUmodule * module, const char *path), (module, path),
     image_loaded_file(*module, path))
LOAD(cuModuleLoadData, (CUmodule * module, const void *image), (module, image),
     image_loaded(*module, image))
LOAD(cuModuleLoadDataEx,
     (CUmodule * module, const void *image, unsigned count, CUjit_option *options, void **values),
     (module, image, count, options, values), image_loaded(*module, image))
LOAD(cuModuleLoadFatBinary, (CUmodule * module, const void *image), (module, image),
     image_loaded(*module, image))
LOAD(cuLibraryLoadData,
     (CUlibrary * library, const void *image, CUjit_option *jit_options, void **jit_values,
      unsigned jit_count, CUlibraryOption *options, void **values, unsigned count),
     (library, image, jit_options, jit_values, jit_count, options, values, count),
     image_loaded(*library, image))
LOAD(cuLibraryLoadFromFile,
     (CUlibrary * library, const char *path, CUjit_option *jit_options, void **jit_values,
      unsigned jit_count, CUlibraryOption *options, void **values, unsigned count),
     (library, path, jit_options, jit_values, jit_count, options, values, count),
     image_loaded_file(*library, path))
LOAD(cuLibraryGetModule, (CUmodule * module, CUlibrary library), (module, library),
     image_module_of_library(*module, library))
LOAD(cuKernelGetFunction, (CUfunction * function, CUkernel kernel), (function, kernel),
     image_function_of_kernel(*function, kernel))
