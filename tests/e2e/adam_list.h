/* PyTorch's fused Adam launches as its host code makes them, for test programs on the driver API: what a kernel takes by its
   mangled name and its PTX, the by-value tensor list in the layouts of all releases, cut into as many launches as it needs, and
   the kernel's parameters, plain or packed; with numbers to step and to compare. Layouts and argument orders are written down here apart from the library's own
   (shim/families.def), so that a mistake there is seen. */
#ifndef TESTS_ADAM_LIST_H
#define TESTS_ADAM_LIST_H
#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Lists: p, g, m, v and with amsgrad the largest v. */
enum { ADAM_CHUNK_ELEMENTS = 65536, ADAM_LISTS = 5, ADAM_ARGUMENTS = 12 };

/* Tensor lists, by their size: lists, slots, what a count and a block's tensor take, and where the parts begin. */
struct adam_layout {
  size_t bytes, lists, tensors, blocks, count_bytes, block_tensor_bytes;
  size_t numel, steps, block_tensor, block_chunk;
};
static const struct adam_layout adam_layouts[] = {
    {3336, 4, 36, 320, 8, 1, 1152, 1440, 1728, 2048},
    {25544, 4, 252, 2240, 8, 2, 8064, 10080, 12096, 16576},
    {3288, 5, 30, 320, 8, 1, 1200, 1440, 1680, 2000},
    {25208, 5, 210, 2240, 8, 2, 8400, 10080, 11760, 16240},
    {3192, 4, 36, 320, 4, 1, 1152, 1296, 1584, 1904},
    {3168, 5, 30, 320, 4, 1, 1200, 1320, 1560, 1880},
};

struct adam_kernel {
  CUfunction function;
  const struct adam_layout *layout;
  /* takes a pointer to lr; takes amsgrad and AdamW as arguments; is AdamW's */
  bool lr_pointer, modes, adamw;
  enum { ADAM_FLOAT, ADAM_DOUBLE, ADAM_HALF, ADAM_BFLOAT16 } type; /* of parameter and gradient */
  size_t element_bytes[ADAM_LISTS];
  /* the caller's choice: parameters in one buffer; nonsense in the list's unused tail */
  bool packed, garbage;
};

struct adam_tensor {
  CUdeviceptr lists[ADAM_LISTS], step; /* the step's number, a float */
  size_t elements;
};

struct adam_scalars {
  const float *lr_pointer;
  double lr, beta1, beta2, decay, eps;
  unsigned char maximize;
  const float *grad_scale, *found_inf;
};

/* The kernel's arguments behind the list: pointers and sizes, in order; how many. */
static inline size_t adam_arguments(const struct adam_kernel *kernel, struct adam_scalars *s,
                                    void *pointers[ADAM_ARGUMENTS], size_t bytes[ADAM_ARGUMENTS]) {
  static unsigned char functor, flags[2] = {0, 1};
  const struct {
    void *pointer;
    size_t bytes;
    bool taken;
  } all[ADAM_ARGUMENTS] = {
      {&functor, 1, true},
      {&s->lr_pointer, 8, kernel->lr_pointer},
      {&s->lr, 8, true},
      {&s->beta1, 8, true},
      {&s->beta2, 8, true},
      {&s->decay, 8, true},
      {&s->eps, 8, true},
      {&s->maximize, 1, true},
      {&flags[kernel->layout->lists == ADAM_LISTS], 1, kernel->modes},
      {&s->grad_scale, 8, true},
      {&s->found_inf, 8, true},
      {&flags[kernel->adamw], 1, kernel->modes},
  };
  size_t count = 0;
  for (size_t i = 0; i < ADAM_ARGUMENTS; i++)
    if (all[i].taken) {
      pointers[count] = all[i].pointer;
      bytes[count++] = all[i].bytes;
    }
  return count;
}

static inline CUresult adam_launch(const struct adam_kernel *kernel, const unsigned char *list,
                                   unsigned blocks, struct adam_scalars *s, CUstream stream) {
  void *pointers[1 + ADAM_ARGUMENTS] = {(void *)(uintptr_t)list};
  size_t sizes[ADAM_ARGUMENTS];
  const size_t count = adam_arguments(kernel, s, pointers + 1, sizes);
  if (!kernel->packed)
    return cuLaunchKernel(kernel->function, blocks, 1, 1, 512, 1, 1, 0, stream, pointers, NULL);
  size_t bytes = kernel->layout->bytes;
  unsigned char *buffer = calloc(1, bytes + ADAM_ARGUMENTS * sizeof(double));
  memcpy(buffer, list, bytes);
  for (size_t i = 0; i < count; i++) { /* each at its natural alignment */
    bytes = (bytes + sizes[i] - 1) / sizes[i] * sizes[i];
    memcpy(buffer + bytes, pointers[1 + i], sizes[i]);
    bytes += sizes[i];
  }
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  const CUresult result =
      cuLaunchKernel(kernel->function, blocks, 1, 1, 512, 1, 1, 0, stream, NULL, extra);
  free(buffer);
  return result;
}

/* As many launches as the list needs; a tensor cut by one goes on in the next. The first error ends it. */
static inline CUresult adam_step(const struct adam_kernel *kernel,
                                 const struct adam_tensor *tensors, size_t count,
                                 struct adam_scalars *s, CUstream stream) {
  const struct adam_layout *layout = kernel->layout;
  unsigned char *list = malloc(layout->bytes);
  CUresult result = CUDA_SUCCESS;
  memset(list, kernel->garbage ? 0xb7 : 0, layout->bytes);
  size_t slot = 0, block = 0;
  for (size_t t = 0; t < count; t++) {
    const size_t chunks = (tensors[t].elements + ADAM_CHUNK_ELEMENTS - 1) / ADAM_CHUNK_ELEMENTS;
    for (size_t chunk = 0; chunk < chunks && result == CUDA_SUCCESS; chunk++) {
      if (chunk == 0 || block == 0) {
        for (size_t i = 0; i < layout->lists; i++)
          memcpy(list + (i * layout->tensors + slot) * 8, &tensors[t].lists[i], 8);
        memcpy(list + layout->numel + slot * layout->count_bytes, &tensors[t].elements,
               layout->count_bytes);
        memcpy(list + layout->steps + slot * 8, &tensors[t].step, 8);
        slot++;
      }
      const uint16_t index = (uint16_t)(slot - 1);
      const int number = (int)chunk;
      memcpy(list + layout->block_tensor + block * layout->block_tensor_bytes, &index,
             layout->block_tensor_bytes);
      memcpy(list + layout->block_chunk + block * 4, &number, 4);
      block++;
      const bool last = chunk + 1 == chunks;
      if (block == layout->blocks || (slot == layout->tensors && last)) {
        result = adam_launch(kernel, list, (unsigned)block, s, stream);
        slot = block = 0;
      }
    }
  }
  if (block && result == CUDA_SUCCESS)
    result = adam_launch(kernel, list, (unsigned)block, s, stream);
  free(list);
  return result;
}

/* What a kernel of this name takes. */
static inline void adam_describe(struct adam_kernel *kernel, const char *name) {
  static const size_t type_bytes[] = {4, 8, 2, 2};
  kernel->modes = !strstr(name, "LNS0_9ADAM_MODEE");
  kernel->lr_pointer = !kernel->modes || strstr(name, "JPfddddd");
  kernel->adamw = strstr(name, "_fused_adamw_") != NULL;
  const bool mixed = strstr(name, "FusedAdamMathFunctorMP") != NULL;
  kernel->type = mixed || strstr(name, "FunctorIf")    ? ADAM_FLOAT
                 : strstr(name, "FunctorId")           ? ADAM_DOUBLE
                 : strstr(name, "FunctorIN3c104HalfE") ? ADAM_HALF
                                                       : ADAM_BFLOAT16;
  for (size_t i = 0; i < ADAM_LISTS; i++)
    kernel->element_bytes[i] = mixed && i >= 2 ? 2 : type_bytes[kernel->type];
}

/* The name of a PTX text's fused Adam kernel number `entry`, for the caller to free, or NULL: it has no such kernel, or one
   with a list of an unknown size. */
static inline char *adam_find(struct adam_kernel *kernel, const char *ptx, int entry) {
  const char *at = ptx;
  for (int i = 0; i <= entry; i++) {
    at = strstr(at, ".entry _ZN2at6native");
    if (!at)
      return NULL;
    at += strlen(".entry ");
  }
  const char *size = strstr(at, "_param_0[");
  const size_t bytes = size ? strtoul(size + strlen("_param_0["), NULL, 10) : 0;
  kernel->layout = NULL;
  for (size_t i = 0; i < sizeof adam_layouts / sizeof *adam_layouts; i++)
    if (adam_layouts[i].bytes == bytes)
      kernel->layout = &adam_layouts[i];
  if (!kernel->layout)
    return NULL;
  char *name = strndup(at, strcspn(at, "(\n"));
  adam_describe(kernel, name);
  return name;
}

static inline char *adam_read_file(const char *path) {
  FILE *file = fopen(path, "r");
  if (!file) {
    perror(path);
    exit(2);
  }
  (void)fseek(file, 0, SEEK_END);
  const long bytes = ftell(file);
  rewind(file);
  char *text = calloc(1, (size_t)bytes + 1);
  if (!text || fread(text, 1, (size_t)bytes, file) != (size_t)bytes) {
    fprintf(stderr, "%s can't be read\n", path);
    exit(2);
  }
  (void)fclose(file);
  return text;
}

/* Loads a PTX file into the current context. One that isn't there or has no such kernel ends the program. */
static inline CUresult adam_load(struct adam_kernel *kernel, CUmodule *module, const char *path,
                                 int entry) {
  char *ptx = adam_read_file(path), *name = adam_find(kernel, ptx, entry);
  if (!name) {
    fprintf(stderr, "%s has no fused Adam kernel number %d of a known layout\n", path, entry);
    exit(2);
  }
  CUresult result = cuModuleLoadData(module, ptx);
  if (result == CUDA_SUCCESS)
    result = cuModuleGetFunction(&kernel->function, *module, name);
  free(name);
  free(ptx);
  return result;
}

static inline const char *cu_name(CUresult result) {
  const char *name = NULL;
  (void)cuGetErrorName(result, &name);
  return name ? name : "?";
}

/* Whether a call failed; if so, says which on stderr. */
static inline bool adam_failed(CUresult result, const char *file, int line, const char *call) {
  if (result == CUDA_SUCCESS)
    return false;
  fprintf(stderr, "%s:%d: %s: %s\n", file, line, call, cu_name(result));
  return true;
}

/* The next of a sequence of numbers from 0 to below 1, and where it begins. */
#define ADAM_RANDOM_STATE 88172645463325252u
static inline float adam_random(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return (float)(*state >> 40) / 16777216.0f;
}

/* Floats of one value, queued. */
static inline CUresult adam_set(CUdeviceptr to, float value, size_t count, CUstream stream) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return cuMemsetD32Async(to, bits, count, stream);
}

/* A kernel that reads nothing's address, in the current context: its launch loses the context. */
static inline CUresult adam_load_bad(CUfunction *bad) {
  static const char image[] =
      ".version 6.5\n.target sm_70\n.address_size 64\n.visible .entry bad() { .reg .b64 a; .reg "
      ".b32 b; mov.u64 a, 64; ld.global.u32 b, [a]; st.global.u32 [a], b; ret; }\n";
  CUmodule module;
  const CUresult result = cuModuleLoadData(&module, image);
  return result == CUDA_SUCCESS ? cuModuleGetFunction(bad, module, "bad") : result;
}

static inline uint64_t adam_hash(const void *data, size_t bytes) {
  const unsigned char *at = data;
  uint64_t value = 1469598103934665603u;
  for (size_t i = 0; i < bytes; i++)
    value = (value ^ at[i]) * 1099511628211u;
  return value;
}
#endif
