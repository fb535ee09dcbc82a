/* Cubins: names of kernels from the sections .text.NAME, their parameters from the attributes in
   .nv.info.NAME. What there is to say about machine code that can't be run. Called by image.c, with
   the image's lock held. */
#include "image.h"
#include <elf.h>
#include <stdlib.h>
#include <string.h>

/* An attribute is format, number, then two bytes of value or, for FORMAT_SIZED, of size. */
enum { FORMAT_SIZED = 4 };
enum {
  ATTRIBUTE_MAX_THREADS = 0x05,
  ATTRIBUTE_PARAMETER = 0x17, /* index, ordinal, offset, size in bits 18 to 31 */
  ATTRIBUTE_BIG_PARAMETER =
      0x45, /* the same, size in bits 0 to 23; used when parameters exceed 4 KiB */
};
#define PARAMETERS 4096u

struct elf {
  const uint8_t *bytes;
  size_t size;
  const Elf64_Shdr *sections;
  const char *names;
  size_t names_bytes;
};

size_t gpusim_elf_bytes(const void *code) {
  const Elf64_Ehdr *h = code;
  if (memcmp(h->e_ident, ELFMAG, SELFMAG) != 0 || h->e_ident[EI_CLASS] != ELFCLASS64 ||
      h->e_shentsize != sizeof(Elf64_Shdr))
    return 0;
  size_t size = h->e_shoff + (size_t)h->e_shnum * sizeof(Elf64_Shdr);
  if (h->e_phoff + (size_t)h->e_phnum * sizeof(Elf64_Phdr) > size)
    size = h->e_phoff + (size_t)h->e_phnum * sizeof(Elf64_Phdr);
  const Elf64_Shdr *sections = (const void *)((const uint8_t *)code + h->e_shoff);
  for (int i = 0; i < h->e_shnum; i++)
    if (sections[i].sh_type != SHT_NOBITS && sections[i].sh_offset + sections[i].sh_size > size)
      size = sections[i].sh_offset + sections[i].sh_size;
  return size;
}

static bool elf_open(struct elf *elf, const uint8_t *bytes, size_t size) {
  const Elf64_Ehdr *h = (const void *)bytes;
  if (size < sizeof *h || memcmp(h->e_ident, ELFMAG, SELFMAG) != 0 ||
      h->e_shentsize != sizeof(Elf64_Shdr) || h->e_shoff > size ||
      h->e_shnum > (size - h->e_shoff) / sizeof(Elf64_Shdr) || h->e_shstrndx >= h->e_shnum)
    return false;
  *elf = (struct elf){bytes, size, (const void *)(bytes + h->e_shoff), NULL, 0};
  for (int i = 0; i < h->e_shnum; i++) {
    const Elf64_Shdr *s = &elf->sections[i];
    if (s->sh_type != SHT_NOBITS && (s->sh_offset > size || s->sh_size > size - s->sh_offset))
      return false;
  }
  const Elf64_Shdr *names = &elf->sections[h->e_shstrndx];
  elf->names = (const char *)bytes + names->sh_offset;
  elf->names_bytes = names->sh_size;
  return names->sh_size && !elf->names[names->sh_size - 1];
}

/* What follows `prefix` in the section's name, or NULL. */
static const char *name_after(const struct elf *elf, const Elf64_Shdr *section,
                              const char *prefix) {
  if (section->sh_name >= elf->names_bytes)
    return NULL;
  const char *name = elf->names + section->sh_name;
  size_t length = strlen(prefix);
  return strncmp(name, prefix, length) ? NULL : name + length;
}

static void parameter(struct gpusim_kernel *kernel, const uint8_t *value, bool big) {
  uint16_t ordinal, offset;
  uint32_t word;
  memcpy(&ordinal, value + 4, sizeof ordinal);
  memcpy(&offset, value + 6, sizeof offset);
  memcpy(&word, value + 8, sizeof word);
  uint32_t bytes = big ? word & 0xffffff : word >> 18;
  if (ordinal >= PARAMETERS)
    return;
  if (ordinal >= kernel->parameter_count) {
    struct gpusim_parameter *grown =
        realloc(kernel->parameters, ((size_t)ordinal + 1) * sizeof *grown);
    if (!grown)
      return;
    for (int i = kernel->parameter_count; i <= ordinal; i++)
      grown[i] = (struct gpusim_parameter){0, 0};
    kernel->parameters = grown;
    kernel->parameter_count = ordinal + 1;
  }
  kernel->parameters[ordinal] = (struct gpusim_parameter){offset, bytes};
  if (offset + bytes > kernel->parameter_bytes)
    kernel->parameter_bytes = offset + bytes;
}

static void attributes(struct gpusim_kernel *kernel, const uint8_t *at, const uint8_t *end) {
  while (end - at >= 4) {
    uint8_t format = at[0], number = at[1];
    uint16_t bytes;
    memcpy(&bytes, at + 2, sizeof bytes);
    at += 4;
    if (format != FORMAT_SIZED)
      continue;
    if (bytes > end - at)
      return;
    if ((number == ATTRIBUTE_PARAMETER || number == ATTRIBUTE_BIG_PARAMETER) && bytes >= 12)
      parameter(kernel, at, number == ATTRIBUTE_BIG_PARAMETER);
    if (number == ATTRIBUTE_MAX_THREADS && bytes >= 12) {
      uint32_t size[3];
      memcpy(size, at, sizeof size);
      kernel->max_threads = size[0] * size[1] * size[2];
    }
    at += bytes;
  }
}

bool gpusim_cubin_read(struct gpusim_image *image, const uint8_t *bytes, size_t size) {
  struct elf elf;
  if (!elf_open(&elf, bytes, size)) {
    gpusim_trace(0, "a cubin whose headers don't fit its %zu bytes", size);
    return false;
  }
  const Elf64_Ehdr *h = (const void *)bytes;
  int count = h->e_shnum;
  /* CUDA 13 moved the architecture up by a byte, with ABI version 8 */
  uint32_t architecture = h->e_flags >> (h->e_ident[EI_ABIVERSION] >= 8 ? 8 : 0) & 0xff;
  for (int i = 0; i < count; i++) {
    const Elf64_Shdr *s = &elf.sections[i];
    const char *name = name_after(&elf, s, ".text.");
    if (name)
      gpusim_image_add(image, name, strlen(name));
  }
  for (int i = 0; i < count; i++) {
    const Elf64_Shdr *s = &elf.sections[i];
    const char *info = name_after(&elf, s, ".nv.info."),
               *shared = name_after(&elf, s, ".nv.shared.");
    if (info) {
      struct gpusim_kernel *kernel = gpusim_image_add(image, info, strlen(info));
      kernel->architecture = architecture;
      attributes(kernel, bytes + s->sh_offset, bytes + s->sh_offset + s->sh_size);
    } else if (shared) {
      gpusim_image_add(image, shared, strlen(shared))->static_shared_bytes = (uint32_t)s->sh_size;
    }
  }
  return true;
}
