/* Reading and writing a launch's arguments and its by-value tensor list: the only reader of that
 * layout. See recognise.h. */
#include "driver.h"
#include "recognise.h"
#include <string.h>

/* Offsets behind the metadata; the same in every family (checked when the function was recognised).
 */
enum {
  LR_POINTER = 8,
  LR = 16,
  BETA1 = 24,
  BETA2 = 32,
  WEIGHT_DECAY = 40,
  EPS = 48,
  MAXIMIZE = 56,
  GRAD_SCALE = 64,
  FOUND_INF = 72,
  ARGUMENTS_END = 80
};

/* The packed form's buffer, when it is there and large enough. */
static const unsigned char *packed(const struct family *family, void **extra) {
  const unsigned char *buffer = NULL;
  size_t bytes = 0;
  for (unsigned i = 0; i < 8 && extra && extra[0] != CU_LAUNCH_PARAM_END; i++, extra += 2)
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
      buffer = extra[1];
    else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE)
      bytes = *(const size_t *)extra[1];
    else
      return NULL;
  return bytes >= family->metadata_bytes + ARGUMENTS_END ? buffer : NULL;
}

bool arguments_read(const struct family *family, const struct launch *launch,
                    struct arguments *arguments, const char **why) {
  const unsigned char *at[FAMILY_PARAMETERS];
  if (launch->kernel_parameters) {
    for (unsigned i = 0; i < FAMILY_PARAMETERS; i++)
      if (!(at[i] = launch->kernel_parameters[i])) {
        *why = "a kernel parameter is missing";
        return false;
      }
  } else {
    const unsigned char *buffer = packed(family, launch->extra);
    if (!buffer) {
      *why = "the packed parameters are missing or too short";
      return false;
    }
    static const unsigned offsets[FAMILY_PARAMETERS] = {
        0, 0, LR_POINTER, LR, BETA1, BETA2, WEIGHT_DECAY, EPS, MAXIMIZE, GRAD_SCALE, FOUND_INF};
    at[0] = buffer;
    for (unsigned i = 1; i < FAMILY_PARAMETERS; i++)
      at[i] = buffer + family->metadata_bytes + offsets[i];
  }
  arguments->metadata = at[0];
  memcpy(&arguments->lr_pointer, at[2], sizeof arguments->lr_pointer);
  memcpy(&arguments->lr, at[3], sizeof arguments->lr);
  memcpy(&arguments->beta1, at[4], sizeof arguments->beta1);
  memcpy(&arguments->beta2, at[5], sizeof arguments->beta2);
  memcpy(&arguments->weight_decay, at[6], sizeof arguments->weight_decay);
  memcpy(&arguments->eps, at[7], sizeof arguments->eps);
  arguments->maximize = at[8][0];
  memcpy(&arguments->grad_scale, at[9], sizeof arguments->grad_scale);
  memcpy(&arguments->found_inf, at[10], sizeof arguments->found_inf);
  if (arguments->maximize > 1) {
    *why = "maximize is neither true nor false";
    return false;
  }
  return true;
}

CUresult arguments_launch(const struct function *function, const struct arguments *arguments,
                          unsigned blocks, unsigned shared_bytes, CUstream stream) {
  struct arguments copy = *arguments;
  unsigned char functor = 0;
  void *parameters[FAMILY_PARAMETERS] = {
      (void *)(uintptr_t)copy.metadata,
      &functor,
      &copy.lr_pointer,
      &copy.lr,
      &copy.beta1,
      &copy.beta2,
      &copy.weight_decay,
      &copy.eps,
      &copy.maximize,
      &copy.grad_scale,
      &copy.found_inf,
  };
  return driver.cuLaunchKernel(function->handle, blocks, 1, 1, BLOCK_THREADS, 1, 1, shared_bytes,
                               stream, parameters, NULL);
}

/* ---- the tensor list ---- */

/* Entries are copied, not pointed at: a packed buffer need not be aligned for us. */
static uint64_t word(const unsigned char *metadata, size_t offset) {
  uint64_t value;
  memcpy(&value, metadata + offset, sizeof value);
  return value;
}

uintptr_t metadata_address(const struct family *family, const unsigned char *metadata,
                           enum tensor_list list, unsigned tensor) {
  return (uintptr_t)word(metadata, ((size_t)list * family->tensors + tensor) * 8);
}

int64_t metadata_elements(const struct family *family, const unsigned char *metadata,
                          unsigned tensor) {
  return (int64_t)word(metadata, family->numel_offset + tensor * (size_t)8);
}

uintptr_t metadata_step(const struct family *family, const unsigned char *metadata,
                        unsigned tensor) {
  return (uintptr_t)word(metadata, family->steps_offset + tensor * (size_t)8);
}

unsigned metadata_block_tensor(const struct family *family, const unsigned char *metadata,
                               unsigned block) {
  const unsigned char *entry =
      metadata + family->block_tensor_offset + (size_t)block * family->block_tensor_bytes;
  uint16_t wide;
  if (family->block_tensor_bytes == 1)
    return *entry;
  memcpy(&wide, entry, sizeof wide);
  return wide;
}

int metadata_block_chunk(const struct family *family, const unsigned char *metadata,
                         unsigned block) {
  int chunk;
  memcpy(&chunk, metadata + family->block_chunk_offset + block * (size_t)4, sizeof chunk);
  return chunk;
}

void metadata_set_address(const struct family *family, unsigned char *metadata,
                          enum tensor_list list, unsigned tensor, uintptr_t address) {
  const uint64_t value = address;
  memcpy(metadata + ((size_t)list * family->tensors + tensor) * 8, &value, sizeof value);
}

void metadata_set_tensor(const struct family *family, unsigned char *metadata, unsigned tensor,
                         const uintptr_t addresses[4], int64_t elements, uintptr_t step) {
  for (unsigned list = 0; list < 4; list++)
    metadata_set_address(family, metadata, (enum tensor_list)list, tensor, addresses[list]);
  const uint64_t step_address = step;
  memcpy(metadata + family->numel_offset + tensor * (size_t)8, &elements, sizeof elements);
  memcpy(metadata + family->steps_offset + tensor * (size_t)8, &step_address, sizeof step_address);
}

void metadata_set_block(const struct family *family, unsigned char *metadata, unsigned block,
                        unsigned tensor, unsigned chunk) {
  unsigned char *entry =
      metadata + family->block_tensor_offset + (size_t)block * family->block_tensor_bytes;
  const uint16_t wide = (uint16_t)tensor;
  if (family->block_tensor_bytes == 1)
    *entry = (unsigned char)tensor;
  else
    memcpy(entry, &wide, sizeof wide);
  const int number = (int)chunk;
  memcpy(metadata + family->block_chunk_offset + block * (size_t)4, &number, sizeof number);
}

const char *launch_unsound(const struct family *family, const struct launch *launch,
                           const struct arguments *arguments) {
  if (launch->block[0] != BLOCK_THREADS || launch->block[1] != 1 || launch->block[2] != 1)
    return "the blocks are not of 512 threads";
  if (launch->grid[1] != 1 || launch->grid[2] != 1 || launch->grid[0] < 1 ||
      launch->grid[0] > family->blocks)
    return "the grid is not one that the tensor list can hold";
  const unsigned char *metadata = arguments->metadata;
  for (unsigned block = 0; block < launch->grid[0]; block++) {
    const unsigned tensor = metadata_block_tensor(family, metadata, block);
    const int chunk = metadata_block_chunk(family, metadata, block);
    if (tensor >= family->tensors)
      return "a block names a tensor beyond the list";
    const int64_t elements = metadata_elements(family, metadata, tensor);
    if (chunk < 0 || elements <= 0 || elements > (int64_t)1 << 46 ||
        (int64_t)chunk * CHUNK_ELEMENTS >= elements)
      return "a block names a chunk outside its tensor";
    for (unsigned list = 0; list < 4; list++) {
      const uintptr_t address = metadata_address(family, metadata, (enum tensor_list)list, tensor);
      if (!address || address % sizeof(float))
        return "a tensor's address is not that of floats";
    }
    if (!metadata_step(family, metadata, tensor))
      return "a tensor has no step counter";
  }
  return NULL;
}
