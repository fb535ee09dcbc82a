/* Kernels of an image and how their parameters are laid out: fatbins, cubins and PTX text, as the CUDA toolkit writes them.
   Pure: no driver, no state. Whatever the bytes are, only those given are read; memory taken while reading is bounded by what
   the image can unpack to. Called by image.c, for drivers that don't tell parameter sizes themselves (before CUDA 12.4).

     image_parse.c  containers: fatbin entries, packed or not
     image_lz4.c    entries packed by LZ4
     image_cubin.c  machine code: an ELF file with attributes for each kernel
     image_ptx.c    text: parameters as declared */
#ifndef OFFLOAD_IMAGE_PARSE_H
#define OFFLOAD_IMAGE_PARSE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { IMAGE_PARAMETERS_MOST = 4096 };

struct image_parameter {
  uint32_t offset, bytes;
};

struct image_kernel {
  const char *name; /* not ended by a zero byte */
  size_t name_bytes;
  bool known; /* false: its parameters are written in a way that is not understood */
  unsigned count;
  const struct image_parameter *parameters; /* by number */
};

/* Is called for every kernel of every entry, so a name may come several times; what it points at is gone
   afterwards. False ends the walk. */
typedef bool image_visit(void *context, const struct image_kernel *);

/* Walks an image. NULL when all of it was read (or the visitor had enough), else what could not be, as the end of a sentence
   "its image ...". */
const char *image_each(const void *image, size_t bytes, image_visit *, void *context);

/* Bytes of an image of which only the beginning is known, from its own headers; 0 when it isn't one. For images that a driver
   has accepted: it reads the headers that others lead to. */
size_t image_bytes(const void *image);

/* What nvcc's registration code points at: the fatbin behind a wrapper; NULL when this is no wrapper. */
const void *image_unwrap(const void *wrapper);

/* ---- among the rooms above ---- */

struct image_walk {
  image_visit *visit;
  void *context;
  bool enough;
  struct image_parameter *parameters; /* room for IMAGE_PARAMETERS_MOST */
};

/* Hands a kernel to the visitor, as unknown if its parameters overlap or don't ascend. */
void image_walk_kernel(struct image_walk *, struct image_kernel *);

const char *image_cubin(struct image_walk *, const uint8_t *bytes, size_t size);
const char *image_ptx(struct image_walk *, const char *text, size_t size);
size_t image_cubin_bytes(const uint8_t *);

/* Unpacks a block (LZ4 block format). Bytes written; 0 when it is broken or larger than `room`. */
size_t image_lz4(const uint8_t *packed, size_t packed_bytes, uint8_t *to, size_t room);
#endif
