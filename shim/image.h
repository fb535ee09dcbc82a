/* Names and parameter sizes of kernels for drivers that don't tell them (cuFuncGetName: CUDA 12.3, cuFuncGetParamInfo: 12.4),
   out of the images that the program loads. With any other driver nothing here is called but image_wanted.

     module or library --> where its image lies:
         nvcc's wrapper in a loaded object, whose fatbin stays mapped: looked into when a kernel is first asked about
         anything else: the program may free it after the load, so it is read then, into a table of its kernels
     function or kernel --> name, module or library --> parameters

   Records are made by the wrappers of hooks_image.c, from any thread. The lock is a leaf; images are read without it. */
#ifndef OFFLOAD_IMAGE_H
#define OFFLOAD_IMAGE_H
#include "driver.h"
#include "process.h"

/* Whether the driver leaves these questions open. */
static inline bool image_wanted(void) {
  return driver_before_12_4() && process_active();
}

/* A module or library was loaded from this image, or from this file. */
void image_loaded(const void *module, const void *image);
void image_loaded_file(const void *module, const char *path);

/* `module` is this library's module in some context. */
void image_module_of_library(const void *module, const void *library);
void image_unloaded(const void *module);

/* The program got a kernel by name; a function of a kernel. */
void image_kernel_found(const void *kernel, const void *module, const char *name);
void image_function_of_kernel(const void *function, const void *kernel);

/* Runs before cuInit, for each kernel that the program registers with its runtime: the wrapper of
   the fatbin that the calling thread registered before. Runtimes before 12.0 load it by ways of their own. */
void image_wrapper_seen(const void *wrapper);
void image_adam_registered(const char *name);

/* A function's mangled name, the driver's or what the program asked with; NULL when neither is known. It stays valid. */
const char *image_function_name(CUfunction);

/* Offset and size of a function's parameter, the driver's or the image's; false past the last, or when they aren't known. */
bool image_parameter(CUfunction, size_t index, size_t *offset, size_t *bytes);

/* Why image_parameter doesn't know a function, as the end of a sentence "its image ..."; NULL when it does, which may have no
   parameters. */
const char *image_why(CUfunction);

/* The same after every entry of its image was read: what they say about it must agree. */
const char *image_check(CUfunction);
#endif
