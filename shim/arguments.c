/* Reading and writing a launch's arguments and its by-value tensor list: the only reader of that
 * layout. See recognise.h. */
#include "driver.h"
#include "recognise.h"
#include <string.h>

/* Where an argument lies in struct arguments, and its size there. */
static const struct member {
  size_t offset, bytes;
} members[ARGUMENTS_MOST] = {
#define X(name, size, member)                                                                      \
  [ARGUMENT_##name] = {offsetof(struct arguments, member), sizeof(((struct arguments *)0)->member)},
    ARGUMENT_LIST(X)
#undef X
};
#define X(name, size, member)                                                                      \
  _Static_assert(sizeof(((struct arguments *)0)->member) == (size), #member " has its size");
ARGUMENT_LIST(X)
#undef X

struct arguments arguments_of(const struct family *family) {
  return (struct arguments){.amsgrad = family->lists == LISTS_MOST, .mode = family->mode == ADAM_W};
}

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
  return bytes >= family->metadata_bytes + family->arguments_bytes ? buffer : NULL;
}

/* What a launch says about the family itself must be what its name says. */
static const char *contradiction(const struct family *family, const struct arguments *arguments) {
  const struct arguments said = arguments_of(family);
  if (arguments->maximize > 1)
    return "maximize is neither true nor false";
  if (arguments->amsgrad != said.amsgrad)
    return "amsgrad is not what the number of tensor lists says";
  return arguments->mode != said.mode ? "the mode is not that of its source file" : NULL;
}

bool arguments_read(const struct family *family, const struct launch *launch,
                    struct arguments *arguments, const char **why) {
  const unsigned char *buffer = NULL;
  *arguments = arguments_of(family);
  if (!launch->kernel_parameters && !(buffer = packed(family, launch->extra))) {
    *why = "the packed parameters are missing or too short";
    return false;
  }
  arguments->metadata = buffer ? buffer : launch->kernel_parameters[0];
  for (unsigned i = 0; i < family->argument_count; i++) {
    const struct member *member = &members[family->arguments[i]];
    const unsigned char *from = buffer ? buffer + family->metadata_bytes + family->offsets[i]
                                       : launch->kernel_parameters[i + 1];
    if (!arguments->metadata || !from) {
      *why = "a kernel parameter is missing";
      return false;
    }
    memcpy((char *)arguments + member->offset, from, member->bytes);
  }
  const char *wrong = contradiction(family, arguments);
  if (wrong)
    *why = wrong;
  return !wrong;
}

CUresult arguments_launch(const struct function *function, const struct arguments *arguments,
                          unsigned blocks, unsigned shared_bytes, CUstream stream) {
  const struct family *family = &function->family;
  struct arguments copy = *arguments;
  void *parameters[PARAMETERS_MOST] = {(void *)(uintptr_t)copy.metadata};
  for (unsigned i = 0; i < family->argument_count; i++)
    parameters[i + 1] = (char *)&copy + members[family->arguments[i]].offset;
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
  const size_t at = family->numel_offset + (size_t)tensor * family->numel_bytes;
  int narrow; /* before 2.1 */
  if (family->numel_bytes == sizeof(uint64_t))
    return (int64_t)word(metadata, at);
  memcpy(&narrow, metadata + at, sizeof narrow);
  return narrow;
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
                         const uintptr_t *addresses, int64_t elements, uintptr_t step) {
  for (unsigned list = 0; list < family->lists; list++)
    metadata_set_address(family, metadata, (enum tensor_list)list, tensor, addresses[list]);
  const uint64_t step_address = step;
  const int narrow = (int)elements;
  memcpy(metadata + family->numel_offset + (size_t)tensor * family->numel_bytes,
         family->numel_bytes == sizeof elements ? (const void *)&elements : &narrow,
         family->numel_bytes);
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

uint64_t metadata_chunk_elements(const struct family *family, const unsigned char *metadata,
                                 unsigned block) {
  const unsigned tensor = metadata_block_tensor(family, metadata, block);
  const uint64_t left = (uint64_t)metadata_elements(family, metadata, tensor) -
                        (uint64_t)metadata_block_chunk(family, metadata, block) * CHUNK_ELEMENTS;
  return left < CHUNK_ELEMENTS ? left : CHUNK_ELEMENTS;
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
    for (unsigned i = 0; i < family->lists; i++) {
      const enum tensor_list list = (enum tensor_list)i;
      const uintptr_t address = metadata_address(family, metadata, list, tensor);
      if (!address || address % element_bytes(family, list))
        return "a tensor's address is not that of its elements";
    }
    if (!metadata_step(family, metadata, tensor))
      return "a tensor has no step counter";
  }
  return NULL;
}
