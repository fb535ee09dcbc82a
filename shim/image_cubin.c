/* Cubins: ELF files with a section .nv.info.KERNEL of attributes for each kernel (cuobjdump -elf shows them). Called by
   image_parse.c. */
#include "image_parse.h"
#include <elf.h>
#include <string.h>

/* An attribute is a format, a number, then two bytes: its value, or the size of the value that follows. */
enum { FORMAT_SIZED = 4 };
enum {
  ATTRIBUTE_PARAMETER = 0x17, /* index, number, offset, size in bits 18 to 31 */
  ATTRIBUTE_LARGE_PARAMETER =
      0x45, /* the same, size in bits 0 to 23: parameters of more than 4 KiB */
  ATTRIBUTE_PARAMETERS_BYTES = 0x19
};

struct file {
  const uint8_t *bytes;
  size_t size;
  uint64_t sections_at, count, names_at, names_bytes;
};

static Elf64_Shdr section(const struct file *file, uint64_t index) {
  Elf64_Shdr header;
  memcpy(&header, file->bytes + file->sections_at + index * sizeof header, sizeof header);
  return header;
}

static bool inside(const struct file *file, const Elf64_Shdr *header) {
  return header->sh_offset <= file->size && header->sh_size <= file->size - header->sh_offset;
}

static bool is_header(const Elf64_Ehdr *header) {
  return memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 && header->e_ident[EI_CLASS] == ELFCLASS64 &&
         header->e_ident[EI_DATA] == ELFDATA2LSB && header->e_shentsize == sizeof(Elf64_Shdr);
}

static bool open_file(struct file *file, const uint8_t *bytes, size_t size) {
  Elf64_Ehdr header;
  if (size < sizeof header)
    return false;
  memcpy(&header, bytes, sizeof header);
  if (!is_header(&header) || header.e_shoff > size || size - header.e_shoff < sizeof(Elf64_Shdr))
    return false;
  *file = (struct file){bytes, size, header.e_shoff, header.e_shnum, 0, 0};
  uint64_t names = header.e_shstrndx;
  const Elf64_Shdr first = section(file, 0); /* holds what 16 bits can't */
  if (!file->count)
    file->count = first.sh_size;
  if (names == SHN_XINDEX)
    names = first.sh_link;
  if (file->count > (size - header.e_shoff) / sizeof(Elf64_Shdr) || names >= file->count)
    return false;
  const Elf64_Shdr strings = section(file, names);
  if (strings.sh_type == SHT_NOBITS || !inside(file, &strings))
    return false;
  file->names_at = strings.sh_offset;
  file->names_bytes = strings.sh_size;
  return true;
}

/* What follows `prefix` in a section's name; false where it has another. */
static bool name_after(const struct file *file, const Elf64_Shdr *header, const char *prefix,
                       struct image_kernel *kernel) {
  const size_t length = strlen(prefix);
  if (header->sh_name >= file->names_bytes)
    return false;
  const char *name = (const char *)file->bytes + file->names_at + header->sh_name;
  const size_t bytes = strnlen(name, file->names_bytes - header->sh_name);
  if (bytes == file->names_bytes - header->sh_name || bytes <= length ||
      memcmp(name, prefix, length) != 0)
    return false;
  *kernel = (struct image_kernel){.name = name + length, .name_bytes = bytes - length};
  return true;
}

struct attributes {
  struct image_parameter *parameters;
  uint32_t count, seen; /* the highest number and one; how many there were */
  uint32_t bytes;       /* of all, as one attribute says; 0: none did */
  bool understood;
};

static void parameter(struct attributes *found, const uint8_t *value, bool large) {
  uint16_t number, offset;
  uint32_t word;
  memcpy(&number, value + 4, sizeof number);
  memcpy(&offset, value + 6, sizeof offset);
  memcpy(&word, value + 8, sizeof word);
  if (number >= IMAGE_PARAMETERS_MOST) {
    found->understood = false;
    return;
  }
  while (found->count <= number)
    found->parameters[found->count++] = (struct image_parameter){0, 0};
  struct image_parameter *at = &found->parameters[number];
  found->understood = found->understood && !at->bytes;
  *at = (struct image_parameter){offset, large ? word & 0xffffff : word >> 18};
  found->seen++;
}

static void read_attributes(struct attributes *found, const uint8_t *at, const uint8_t *end) {
  while (end - at >= 4) {
    const uint8_t format = at[0], number = at[1];
    uint16_t bytes;
    memcpy(&bytes, at + 2, sizeof bytes);
    at += 4;
    if (format != FORMAT_SIZED) {
      if (number == ATTRIBUTE_PARAMETERS_BYTES)
        found->bytes = bytes;
      continue;
    }
    if (bytes > end - at) {
      found->understood = false;
      return;
    }
    if ((number == ATTRIBUTE_PARAMETER || number == ATTRIBUTE_LARGE_PARAMETER) && bytes >= 12)
      parameter(found, at, number == ATTRIBUTE_LARGE_PARAMETER);
    at += bytes;
  }
}

const char *image_cubin(struct image_walk *walk, const uint8_t *bytes, size_t size) {
  struct file file;
  if (!open_file(&file, bytes, size))
    return "holds machine code whose headers are broken";
  const char *why = NULL;
  for (uint64_t i = 0; i < file.count && !walk->enough; i++) {
    const Elf64_Shdr header = section(&file, i);
    struct image_kernel kernel;
    if (!name_after(&file, &header, ".nv.info.", &kernel))
      continue;
    if (header.sh_type == SHT_NOBITS || !inside(&file, &header)) {
      why = "holds machine code whose sections are broken";
      continue;
    }
    struct attributes found = {walk->parameters, 0, 0, 0, true};
    read_attributes(&found, bytes + header.sh_offset, bytes + header.sh_offset + header.sh_size);
    const struct image_parameter *last = found.count ? &found.parameters[found.count - 1] : NULL;
    /* A form of the attribute that is not known yet would leave parameters out. */
    kernel.known =
        found.understood && found.seen == found.count &&
        (last ? !found.bytes || last->offset + last->bytes == found.bytes : found.bytes == 0);
    kernel.count = found.count;
    kernel.parameters = found.parameters;
    image_walk_kernel(walk, &kernel);
  }
  return why;
}

static size_t larger(size_t a, uint64_t offset, uint64_t bytes) {
  return offset > SIZE_MAX / 4 || bytes > SIZE_MAX / 4 || offset + bytes < a ? a : offset + bytes;
}

size_t image_cubin_bytes(const uint8_t *bytes) {
  Elf64_Ehdr header;
  memcpy(&header, bytes, sizeof header);
  if (!is_header(&header))
    return 0;
  struct file file = {.bytes = bytes, .sections_at = header.e_shoff, .count = header.e_shnum};
  if (!file.count && header.e_shoff)
    file.count = section(&file, 0).sh_size;
  size_t size = larger(sizeof header, header.e_shoff, file.count * sizeof(Elf64_Shdr));
  size = larger(size, header.e_phoff, (uint64_t)header.e_phnum * header.e_phentsize);
  for (uint64_t i = 0; i < file.count; i++) {
    const Elf64_Shdr one = section(&file, i);
    if (one.sh_type != SHT_NOBITS && one.sh_type != SHT_NULL)
      size = larger(size, one.sh_offset, one.sh_size);
  }
  return size;
}
