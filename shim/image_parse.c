/* Containers of kernels (image_parse.h): a fatbin is a header and entries, each with a header of its own (fatbinary_section.h
   has the wrapper around it; the rest is what nvcc writes). Entries that this room can't unpack are told, the others read. */
#include "image_parse.h"
#include <elf.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t wrapper_magic = 0x466243b1, fatbin_magic = 0xba55ed50;
static const char broken[] = "is a fatbin whose entries are broken";
static const char short_of_memory[] = "could not be unpacked: memory is short";
enum { ENTRY_PTX = 1, ENTRY_CUBIN = 2 };
enum { FLAG_LZ4 = 0x2000, FLAG_ZSTD = 0x8000 };
enum { LZ4_RATIO_MOST = 255, UNPACKED_MOST = 512 << 20 };

struct wrapper {
  uint32_t magic, version;
  const void *fatbin, *file;
};
struct fatbin {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes; /* of all entries */
};
struct entry {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t payload_bytes;
  uint32_t packed_bytes, options_at;
  uint16_t minor, major;
  uint32_t architecture, name_at, name_bytes;
  uint64_t flags, reserved, unpacked_bytes;
};
_Static_assert(sizeof(struct fatbin) == 16 && sizeof(struct entry) == 64, "as nvcc writes them");

void image_walk_kernel(struct image_walk *walk, struct image_kernel *kernel) {
  uint32_t end = 0;
  for (unsigned i = 0; i < kernel->count && kernel->known; i++) {
    const struct image_parameter *parameter = &kernel->parameters[i];
    kernel->known = parameter->bytes && parameter->offset >= end;
    end = parameter->offset + parameter->bytes;
  }
  if (!kernel->known)
    kernel->count = 0;
  walk->enough = !walk->visit(walk->context, kernel);
}

static const char *contents(struct image_walk *walk, uint16_t kind, const uint8_t *bytes,
                            size_t size) {
  return kind == ENTRY_PTX ? image_ptx(walk, (const char *)bytes, size)
                           : image_cubin(walk, bytes, size);
}

static const char *unpack(struct image_walk *walk, const struct entry *entry,
                          const uint8_t *payload) {
  if (entry->packed_bytes > entry->payload_bytes || entry->unpacked_bytes > UNPACKED_MOST ||
      entry->unpacked_bytes / LZ4_RATIO_MOST > entry->packed_bytes)
    return broken;
  uint8_t *unpacked = malloc((size_t)entry->unpacked_bytes + 1);
  if (!unpacked)
    return short_of_memory;
  const size_t done =
      image_lz4(payload, entry->packed_bytes, unpacked, (size_t)entry->unpacked_bytes);
  const char *why = done == entry->unpacked_bytes && done
                        ? contents(walk, entry->kind, unpacked, done)
                        : "has an entry whose LZ4 data are broken";
  free(unpacked);
  return why;
}

static const char *read_entry(struct image_walk *walk, const struct entry *entry,
                              const uint8_t *payload) {
  if (entry->kind != ENTRY_PTX && entry->kind != ENTRY_CUBIN)
    return NULL;
  if (entry->flags & FLAG_ZSTD)
    return "is packed by zstd, which this version doesn't read: update the driver, or compile with "
           "--compress-mode=speed";
  if (entry->flags & FLAG_LZ4)
    return unpack(walk, entry, payload);
  return contents(walk, entry->kind, payload, (size_t)entry->payload_bytes);
}

/* Machine code first: parameters of kernels that it has need no other reading. */
static const char *read_fatbin(struct image_walk *walk, const uint8_t *bytes, size_t size) {
  struct fatbin header;
  memcpy(&header, bytes, sizeof header);
  if (header.header_bytes < sizeof header || header.header_bytes > size ||
      header.bytes > size - header.header_bytes)
    return broken;
  const char *why = NULL;
  for (unsigned kind = ENTRY_CUBIN; kind >= ENTRY_PTX && !walk->enough; kind--) {
    const uint8_t *at = bytes + header.header_bytes, *const end = at + header.bytes;
    while (at < end && !walk->enough) {
      struct entry entry;
      if ((size_t)(end - at) < sizeof entry)
        return broken;
      memcpy(&entry, at, sizeof entry);
      if (entry.header_bytes < sizeof entry || entry.header_bytes > (size_t)(end - at) ||
          entry.payload_bytes > (size_t)(end - at) - entry.header_bytes)
        return broken;
      const char *problem =
          entry.kind == kind ? read_entry(walk, &entry, at + entry.header_bytes) : NULL;
      why = problem ? problem : why;
      at += entry.header_bytes + entry.payload_bytes;
    }
  }
  return walk->enough ? NULL : why;
}

static bool is_text(const char *bytes, size_t size) {
  for (size_t i = 0; i < size && i < 64 && bytes[i]; i++)
    if ((unsigned char)bytes[i] < ' ' && !strchr("\t\r\n\f\v", bytes[i]))
      return false;
  return size && bytes[0];
}

const char *image_each(const void *image, size_t bytes, image_visit *visit, void *context) {
  uint32_t magic = 0;
  if (bytes >= sizeof(struct fatbin))
    memcpy(&magic, image, sizeof magic);
  struct image_walk walk = {visit, context, false,
                            malloc(IMAGE_PARAMETERS_MOST * sizeof(struct image_parameter))};
  if (!walk.parameters)
    return short_of_memory;
  const char *why;
  if (magic == fatbin_magic)
    why = read_fatbin(&walk, image, bytes);
  else if (bytes >= SELFMAG && memcmp(image, ELFMAG, SELFMAG) == 0)
    why = image_cubin(&walk, image, bytes);
  else if (is_text(image, bytes))
    why = image_ptx(&walk, image, bytes);
  else
    why = "is of a kind that this version doesn't read";
  free(walk.parameters);
  return walk.enough ? NULL : why;
}

size_t image_bytes(const void *image) {
  struct fatbin header;
  if (strnlen(image, SELFMAG) < SELFMAG) /* no magic number has a zero byte */
    return 0;
  if (memcmp(image, ELFMAG, SELFMAG) == 0)
    return image_cubin_bytes(image);
  memcpy(&header.magic, image, sizeof header.magic);
  if (header.magic != fatbin_magic)
    return is_text(image, SELFMAG) ? strlen(image) : 0;
  memcpy(&header, image, sizeof header);
  return header.bytes <= PTRDIFF_MAX ? header.header_bytes + (size_t)header.bytes : 0;
}

const void *image_unwrap(const void *image) {
  struct wrapper wrapper;
  if (strnlen(image, sizeof wrapper.magic) < sizeof wrapper.magic)
    return NULL;
  memcpy(&wrapper.magic, image, sizeof wrapper.magic);
  if (wrapper.magic != wrapper_magic)
    return NULL;
  memcpy(&wrapper, image, sizeof wrapper);
  return wrapper.fatbin;
}
