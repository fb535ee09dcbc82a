/* The by-value tensor lists of PyTorch's foreach kernels (multi_tensor_apply_kernel): which addresses does a launch
   really name? The lists are partly written objects of the host's stack, and what no block names holds
   addresses of earlier launches. Pure reading: no driver, no state. */
#ifndef OFFLOAD_FOREACH_H
#define OFFLOAD_FOREACH_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FOREACH_CHUNK_ELEMENTS = 65536 };

/* addresses[lists][tensors], counts[tensors], (scalars[tensors],) block_to_tensor[blocks], int block_to_chunk[blocks] */
struct foreach_list {
  unsigned lists, tensors, blocks, count_bytes, entry_bytes;
  unsigned counts_offset, block_tensor_offset, block_chunk_offset;
};

/* The layout of the first parameter, by the function's mangled name and that parameter's size; false when it is none
   that we know. */
bool foreach_list_of(const char *name, size_t bytes, struct foreach_list *);

/* Whether a kernel of such a list writes nothing but what the list names: by its mangled name. */
bool foreach_adds(const char *name);

/* Calls `visit` for each block below `blocks` with its tensor, and first element and number of elements of
   its chunk. False when it ended before, at an entry that makes no sense or the list's end. */
bool foreach_blocks(const struct foreach_list *, const void *metadata, unsigned blocks,
                    void (*visit)(void *context, unsigned tensor, uint64_t first,
                                  uint64_t elements),
                    void *context);

uintptr_t foreach_address(const struct foreach_list *, const void *metadata, unsigned which,
                          unsigned tensor);
#endif
