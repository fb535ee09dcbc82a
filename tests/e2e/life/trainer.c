/* The training of trainer.h. */
#define _GNU_SOURCE
#include "trainer.h"

enum { STEPPED_LISTS = 4 }; /* p, g, m, v */

#define TRY(call)                                                                                  \
  do {                                                                                             \
    const CUresult try_result = (call);                                                            \
    if (try_result != CUDA_SUCCESS)                                                                \
      return try_result;                                                                           \
  } while (0)

static CUresult make_tensors(struct trainer *trainer) {
  static const size_t elements[TRAINER_TENSORS] = {20000, 3, 65536, 1024, 40000};
  for (size_t t = 0; t < TRAINER_TENSORS; t++)
    trainer->floats += (elements[t] + 127) / 128 * 128;
  for (int list = 0; list < STEPPED_LISTS; list++)
    TRY(cuMemAlloc(&trainer->arrays[list], trainer->floats * 4));
  TRY(cuMemAlloc(&trainer->steps, sizeof(float) * TRAINER_TENSORS));
  size_t at = 0;
  for (size_t t = 0; t < TRAINER_TENSORS; t++) {
    struct adam_tensor *tensor = &trainer->tensors[t];
    tensor->elements = elements[t];
    for (int list = 0; list < STEPPED_LISTS; list++)
      tensor->lists[list] = trainer->arrays[list] + at * 4;
    tensor->step = trainer->steps + t * sizeof(float);
    at += (elements[t] + 127) / 128 * 128;
  }
  return CUDA_SUCCESS;
}

static CUresult fill(struct trainer *trainer, uint64_t seed) {
  float *numbers = malloc(trainer->floats * 4);
  uint64_t state = ADAM_RANDOM_STATE + seed;
  CUresult result = CUDA_SUCCESS;
  for (int list = 0; list < 2 && result == CUDA_SUCCESS; list++) {
    for (size_t i = 0; i < trainer->floats; i++)
      numbers[i] = (adam_random(&state) * 2 - 1) * (list ? 0.01f : 1.0f);
    result = cuMemcpyHtoD(trainer->arrays[list], numbers, trainer->floats * 4);
  }
  free(numbers);
  TRY(result);
  TRY(cuCtxSynchronize());
  TRY(cuMemsetD32Async(trainer->arrays[2], 0x3a83126f, trainer->floats, trainer->stream));
  return cuMemsetD32Async(trainer->arrays[3], 0x3727c5ac, trainer->floats, trainer->stream);
}

CUresult trainer_load(struct trainer *trainer, const char *ptx_path) {
  return adam_load(&trainer->kernel, &trainer->module, ptx_path, 0);
}

CUresult trainer_unload(struct trainer *trainer) {
  const CUmodule module = trainer->module;
  trainer->module = NULL;
  return cuModuleUnload(module);
}

CUresult trainer_open(struct trainer *trainer, const char *ptx_path, uint64_t seed) {
  memset(trainer, 0, sizeof *trainer);
  TRY(cuCtxGetCurrent(&trainer->context));
  TRY(trainer_load(trainer, ptx_path));
  TRY(cuStreamCreate(&trainer->stream, CU_STREAM_NON_BLOCKING));
  TRY(make_tensors(trainer));
  return fill(trainer, seed);
}

CUresult trainer_number(struct trainer *trainer) {
  return adam_set(trainer->steps, (float)++trainer->step, TRAINER_TENSORS, trainer->stream);
}

CUresult trainer_launch(struct trainer *trainer) {
  struct adam_scalars scalars = {
      .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .decay = 0.1, .eps = 1e-8};
  return adam_step(&trainer->kernel, trainer->tensors, TRAINER_TENSORS, &scalars, trainer->stream);
}

CUresult trainer_gradients(struct trainer *trainer) {
  return cuMemcpyDtoDAsync(trainer->arrays[1], trainer->arrays[0], trainer->floats / 2 * 4,
                           trainer->stream);
}

CUresult trainer_steps(struct trainer *trainer, unsigned count) {
  for (unsigned i = 0; i < count; i++) {
    TRY(trainer_number(trainer));
    TRY(trainer_launch(trainer));
    TRY(trainer_gradients(trainer));
  }
  return CUDA_SUCCESS;
}

CUresult trainer_batch(struct trainer *trainer, const void *numbers, size_t bytes) {
  if (bytes > trainer->floats * 4)
    return CUDA_ERROR_INVALID_VALUE;
  TRY(cuMemcpyHtoDAsync(trainer->arrays[1], numbers, bytes, trainer->stream));
  return cuStreamSynchronize(trainer->stream);
}

/* All of a list on the host; the caller frees it. */
static CUresult fetch(struct trainer *trainer, int list, void **copy) {
  *copy = malloc(trainer->floats * 4);
  TRY(cuStreamSynchronize(trainer->stream));
  return cuMemcpyDtoH(*copy, trainer->arrays[list], trainer->floats * 4);
}

CUresult trainer_hash(struct trainer *trainer, uint64_t *hash) {
  *hash = 0;
  for (int list = 0; list < STEPPED_LISTS; list++) {
    void *copy = NULL;
    const CUresult result = fetch(trainer, list, &copy);
    if (result == CUDA_SUCCESS)
      *hash = *hash * 31 + adam_hash(copy, trainer->floats * 4);
    free(copy);
    TRY(result);
  }
  return CUDA_SUCCESS;
}

CUresult trainer_save(struct trainer *trainer, const char *path) {
  FILE *file = fopen(path, "wb");
  if (!file)
    return CUDA_ERROR_FILE_NOT_FOUND;
  CUresult result = CUDA_SUCCESS;
  for (int list = 0; list < STEPPED_LISTS && result == CUDA_SUCCESS; list++) {
    void *copy = NULL;
    if (list == 1)
      continue; /* gradients are made anew */
    result = fetch(trainer, list, &copy);
    if (result == CUDA_SUCCESS && fwrite(copy, 4, trainer->floats, file) != trainer->floats)
      result = CUDA_ERROR_OPERATING_SYSTEM;
    free(copy);
  }
  if (fclose(file) && result == CUDA_SUCCESS)
    result = CUDA_ERROR_OPERATING_SYSTEM;
  return result;
}

CUresult trainer_close(struct trainer *trainer) {
  TRY(cuStreamSynchronize(trainer->stream));
  for (int list = 0; list < STEPPED_LISTS; list++)
    TRY(cuMemFree(trainer->arrays[list]));
  TRY(cuMemFree(trainer->steps));
  TRY(cuStreamDestroy(trainer->stream));
  return trainer->module ? trainer_unload(trainer) : CUDA_SUCCESS;
}
