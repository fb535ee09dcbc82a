/* What the rooms of images share: image.c (containers, tables of kernels), image_cubin.c,
   image_alternate.c. */
#ifndef GPUSIM_IMAGE_H
#define GPUSIM_IMAGE_H
#include "internal.h"

/* The kernel of that name, added when it is new. */
struct gpusim_kernel *gpusim_image_add(struct gpusim_image *, const char *name, size_t length);
/* Adds the kernels of a cubin with their parameters; false when it isn't one. */
bool gpusim_cubin_read(struct gpusim_image *, const uint8_t *bytes, size_t size);
/* Size of an ELF file in memory, from its own headers; 0 when it isn't one. */
size_t gpusim_elf_bytes(const void *);
/* The kernel in the files of GPUSIM_PTX whose name equals `name`, hashes of anonymous namespaces
   apart; or NULL. */
struct gpusim_kernel *gpusim_alternate(const char *name);
uint32_t gpusim_name_hash(const char *name, size_t length);
#endif
