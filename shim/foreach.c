/* Layouts of foreach lists (foreach.h), as MultiTensorApply.cuh of PyTorch 2.0 to 2.15 declares them: lists of two sizes, with a
   scalar for each tensor or without; counts were four bytes before 2.1. */
#include "foreach.h"
#include <string.h>

/* Slots for tensors, by the number of lists. */
static const struct {
  unsigned tensors[5], with_scalars[5], blocks, entry_bytes;
} sizes[] = {{{110, 64, 48, 36, 30}, {96, 64, 48, 36, 30}, 320, 1},
             {{770, 448, 336, 252, 210}, {672, 448, 336, 252, 210}, 2240, 2}};

static unsigned aligned(unsigned offset, unsigned alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

/* Bytes of the whole, whose layout is written to *list. Without scalars an int ends it. */
static unsigned lay_out(struct foreach_list *list, unsigned scalar_bytes) {
  list->counts_offset = list->lists * list->tensors * 8;
  unsigned end = list->counts_offset + list->tensors * list->count_bytes;
  if (scalar_bytes)
    end = aligned(end, scalar_bytes) + list->tensors * scalar_bytes;
  list->block_tensor_offset = end;
  list->block_chunk_offset =
      aligned(list->block_tensor_offset + list->blocks * list->entry_bytes, 4);
  end = list->block_chunk_offset + list->blocks * 4;
  return aligned(scalar_bytes ? end : end + 4, 8);
}

/* The number of lists in a name: the digit of "Li<digit>EEE" behind the struct's name. */
static unsigned lists_in(const char *name) {
  const char *end = strstr(name, "EEE");
  return end && end[-1] >= '1' && end[-1] <= '5' ? (unsigned)(end[-1] - '0') : 0;
}

bool foreach_list_of(const char *name, size_t bytes, struct foreach_list *list) {
  static const char kernel[] = "25multi_tensor_apply_kernelINS1_";
  const char *at = strncmp(name, "_ZN2at6native", 13) == 0 ? strstr(name, kernel) : NULL;
  if (!at)
    return false;
  at += sizeof kernel - 1;
  const bool scalars = strncmp(at, "28TensorListScalarListMetadataI", 31) == 0;
  const unsigned lists = lists_in(at);
  if ((!scalars && strncmp(at, "18TensorListMetadataI", 21) != 0) || !lists)
    return false;
  for (unsigned i = 0; i < 4; i++)
    for (unsigned scalar_bytes = scalars ? 4 : 0; scalar_bytes <= (scalars ? 8u : 0u);
         scalar_bytes += 4) {
      *list = (struct foreach_list){
          .lists = lists,
          .tensors = (scalars ? sizes[i / 2].with_scalars : sizes[i / 2].tensors)[lists - 1],
          .blocks = sizes[i / 2].blocks,
          .count_bytes = i % 2 ? 4 : 8,
          .entry_bytes = sizes[i / 2].entry_bytes,
      };
      if (lay_out(list, scalar_bytes) == (bytes & 0xffffff))
        return true;
    }
  return false;
}

/* Operators by a number for all (step counters: + 1) and between lists (- found_inf); their arguments behind the list are
   a functor, an operation and that number. */
bool foreach_adds(const char *name) {
  static const char *const functors[] = {"21BinaryOpScalarFunctorI", "24BinaryOpListAlphaFunctorI"};
  for (size_t i = 0; i < sizeof functors / sizeof *functors; i++)
    if (strstr(name, functors[i]))
      return true;
  return false;
}

uintptr_t foreach_address(const struct foreach_list *list, const void *metadata, unsigned which,
                          unsigned tensor) {
  uint64_t address;
  memcpy(&address,
         (const char *)metadata + ((size_t)which * list->tensors + tensor) * sizeof address,
         sizeof address);
  return (uintptr_t)address;
}

bool foreach_blocks(const struct foreach_list *list, const void *metadata, unsigned blocks,
                    void (*visit)(void *context, unsigned tensor, uint64_t first,
                                  uint64_t elements),
                    void *context) {
  const char *at = metadata;
  unsigned block = 0;
  for (; block < blocks && block < list->blocks; block++) {
    uint16_t tensor = 0; /* little endian, as every machine with CUDA is */
    int chunk;
    int64_t elements = 0;
    memcpy(&tensor, at + list->block_tensor_offset + (size_t)block * list->entry_bytes,
           list->entry_bytes);
    memcpy(&chunk, at + list->block_chunk_offset + block * sizeof chunk, sizeof chunk);
    if (tensor >= list->tensors || chunk < 0)
      return false;
    memcpy(&elements, at + list->counts_offset + (size_t)tensor * list->count_bytes,
           list->count_bytes);
    const int64_t first = (int64_t)chunk * FOREACH_CHUNK_ELEMENTS, left = elements - first;
    if (left <= 0)
      return false;
    visit(context, tensor, (uint64_t)first,
          left < FOREACH_CHUNK_ELEMENTS ? (uint64_t)left : FOREACH_CHUNK_ELEMENTS);
  }
  return block == blocks;
}
