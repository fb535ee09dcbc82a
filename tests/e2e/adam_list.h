/* PyTorch's fused Adam launches as its host code makes them, for test programs on the driver API: the by-value tensor list in
   both layouts, cut into as many launches as it needs, and the kernel's parameters, plain or packed. */
#ifndef TESTS_ADAM_LIST_H
#define TESTS_ADAM_LIST_H
#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 65536, LISTS = 4 };

struct layout {
  size_t bytes, tensors, blocks, entry, numel, steps, block_tensor, block_chunk;
};
static const struct layout layouts[] = {{3336, 36, 320, 1, 1152, 1440, 1728, 2048},
                                        {25544, 252, 2240, 2, 8064, 10080, 12096, 16576}};

struct tensor {
  CUdeviceptr lists[LISTS], step; /* p, g, m, v; the step's number */
  size_t elements;
};

struct scalars {
  const float *lr_pointer;
  double lr, beta1, beta2, decay, eps;
  unsigned char maximize;
  const float *grad_scale, *found_inf;
};

struct adam_kernel {
  CUfunction function;
  const struct layout *layout;
  bool packed;  /* parameters in one buffer */
  bool garbage; /* nonsense in the unused tail of the list */
};

static inline CUresult adam_launch(const struct adam_kernel *kernel, const unsigned char *metadata,
                                   unsigned blocks, struct scalars *s, CUstream stream) {
  const CUfunction function = kernel->function;
  unsigned char functor = 0;
  if (!kernel->packed) {
    void *parameters[] = {(void *)(uintptr_t)metadata,
                          &functor,
                          &s->lr_pointer,
                          &s->lr,
                          &s->beta1,
                          &s->beta2,
                          &s->decay,
                          &s->eps,
                          &s->maximize,
                          &s->grad_scale,
                          &s->found_inf};
    return cuLaunchKernel(function, blocks, 1, 1, 512, 1, 1, 0, stream, parameters, NULL);
  }
  size_t bytes = kernel->layout->bytes + 80;
  unsigned char *buffer = calloc(1, bytes), *tail = buffer + kernel->layout->bytes;
  memcpy(buffer, metadata, kernel->layout->bytes);
  memcpy(tail + 8, &s->lr_pointer, 8);
  memcpy(tail + 16, &s->lr, 40);
  tail[56] = s->maximize;
  memcpy(tail + 64, &s->grad_scale, 16);
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  const CUresult result = cuLaunchKernel(function, blocks, 1, 1, 512, 1, 1, 0, stream, NULL, extra);
  free(buffer);
  return result;
}

/* As many launches as the list needs; a tensor cut by one goes on in the next. The first error ends it. */
static inline CUresult adam_step(const struct adam_kernel *kernel, const struct tensor *tensors,
                                 size_t count, struct scalars *s, CUstream stream) {
  const struct layout *layout = kernel->layout;
  unsigned char *metadata = malloc(layout->bytes);
  CUresult result = CUDA_SUCCESS;
  memset(metadata, kernel->garbage ? 0xb7 : 0, layout->bytes);
  size_t slot = 0, block = 0;
  for (size_t t = 0; t < count; t++) {
    const size_t chunks = (tensors[t].elements + CHUNK - 1) / CHUNK;
    for (size_t chunk = 0; chunk < chunks && result == CUDA_SUCCESS; chunk++) {
      if (chunk == 0 || block == 0) {
        for (size_t list = 0; list < LISTS; list++)
          memcpy(metadata + (list * layout->tensors + slot) * 8, &tensors[t].lists[list], 8);
        memcpy(metadata + layout->numel + slot * 8, &tensors[t].elements, 8);
        memcpy(metadata + layout->steps + slot * 8, &tensors[t].step, 8);
        slot++;
      }
      const uint16_t index = (uint16_t)(slot - 1);
      const int number = (int)chunk;
      memcpy(metadata + layout->block_tensor + block * layout->entry, &index, layout->entry);
      memcpy(metadata + layout->block_chunk + block * 4, &number, 4);
      block++;
      const bool last = chunk + 1 == chunks;
      if (block == layout->blocks || (slot == layout->tensors && last)) {
        result = adam_launch(kernel, metadata, (unsigned)block, s, stream);
        slot = block = 0;
      }
    }
  }
  if (block && result == CUDA_SUCCESS)
    result = adam_launch(kernel, metadata, (unsigned)block, s, stream);
  free(metadata);
  return result;
}

/* The fused Adam kernel of a PTX text: its name is in there, its layout follows from the list's size. */
static inline char *adam_kernel_name(const char *ptx, const struct layout **layout) {
  const char *at = strstr(ptx, ".entry _ZN2at6native");
  if (!at)
    return NULL;
  at += strlen(".entry ");
  char *name = strndup(at, strcspn(at, "(\n"));
  const char *size = strstr(at, "_param_0[");
  const bool large = !size || strtoul(size + strlen("_param_0["), NULL, 10) != layouts[0].bytes;
  *layout = &layouts[large];
  return name;
}

static inline char *adam_read_file(const char *path) {
  FILE *file = fopen(path, "r");
  if (!file) {
    perror(path);
    exit(2);
  }
  fseek(file, 0, SEEK_END);
  const long bytes = ftell(file);
  rewind(file);
  char *text = calloc(1, (size_t)bytes + 1);
  if (fread(text, 1, (size_t)bytes, file) != (size_t)bytes)
    exit(2);
  (void)fclose(file);
  return text;
}

static inline uint64_t adam_hash(const void *data, size_t bytes) {
  const unsigned char *at = data;
  uint64_t value = 1469598103934665603u;
  for (size_t i = 0; i < bytes; i++)
    value = (value ^ at[i]) * 1099511628211u;
  return value;
}
#endif
