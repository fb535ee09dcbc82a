/* Reading the loader's list of objects and their symbol tables. For dlsym.c and register.c, which
   can't ask the loader: the one because it stands in the loader's place, the other because its
   callers see another scope than we do.

   The list is read without the loader's lock. That is sound where it is used: the objects that
   matter were loaded at start and are never removed, or the caller is a constructor and holds the
   loader's lock. */
#include "elf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* NOLINTNEXTLINE(readability-redundant-declaration): link.h's is not this object's own */
extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden")));

/* musl has the same structures under the second name only. */
#pragma weak _r_debug
extern struct r_debug *_dl_debug_addr __attribute__((weak));

static const struct link_map *first_object(void) {
  if (&_r_debug)
    return _r_debug.r_map;
  return &_dl_debug_addr ? _dl_debug_addr->r_map : NULL;
}

struct tables {
  const ElfW(Sym) * symbols;
  const char *strings;
  const uint32_t *hash;
};

static bool same(const char *a, const char *b) {
  while (*a && *a == *b)
    a++, b++;
  return *a == *b;
}

/* The loader relocates these addresses in place, except where the section is read-only (the vDSO).
 */
static uintptr_t address_of(const struct link_map *object, const ElfW(Dyn) * entry) {
  uintptr_t address = entry->d_un.d_ptr;
  return address < object->l_addr ? address + object->l_addr : address;
}

static struct tables tables_of(const struct link_map *object) {
  struct tables tables = {0};
  for (const ElfW(Dyn) *entry = object->l_ld; entry->d_tag != DT_NULL; entry++) {
    if (entry->d_tag == DT_SYMTAB)
      tables.symbols = (const void *)address_of(object, entry);
    else if (entry->d_tag == DT_STRTAB)
      tables.strings = (const void *)address_of(object, entry);
    else if (entry->d_tag == DT_GNU_HASH)
      tables.hash = (const void *)address_of(object, entry);
  }
  return tables;
}

static uint32_t gnu_hash(const char *name) {
  uint32_t hash = 5381;
  for (; *name; name++)
    hash = hash * 33 + (uint8_t)*name;
  return hash;
}

void *elf_function(const struct link_map *object, const char *name) {
  struct tables tables = tables_of(object);
  if (!tables.hash || !tables.symbols || !tables.strings)
    return NULL;
  /* DT_GNU_HASH: bucket count, first hashed symbol, words of the Bloom filter, its shift; the
     filter, the buckets, and for each symbol from the first its hash, whose lowest bit ends a
     chain. */
  uint32_t buckets = tables.hash[0], first = tables.hash[1], filter_words = tables.hash[2];
  const uint32_t *bucket = tables.hash + 4 + filter_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t *chain = bucket + buckets;
  uint32_t wanted = gnu_hash(name), index = buckets ? bucket[wanted % buckets] : 0;
  if (index < first)
    return NULL;
  for (;; index++) {
    uint32_t hash = chain[index - first];
    const ElfW(Sym) *symbol = &tables.symbols[index];
    if ((hash | 1) == (wanted | 1) && symbol->st_shndx != SHN_UNDEF &&
        ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && same(tables.strings + symbol->st_name, name))
      return (void *)(object->l_addr + symbol->st_value);
    if (hash & 1)
      return NULL;
  }
}

void *elf_next_function(const char *name) {
  bool after_us = false;
  for (const struct link_map *object = first_object(); object; object = object->l_next) {
    void *function = after_us ? elf_function(object, name) : NULL;
    if (function)
      return function;
    after_us = after_us || object->l_ld == _DYNAMIC;
  }
  return NULL;
}

static const char *base_name(const char *path) {
  const char *base = path;
  for (; *path; path++)
    if (*path == '/')
      base = path + 1;
  return base;
}

static const struct link_map *loaded(const char *file) {
  for (const struct link_map *object = first_object(); object; object = object->l_next)
    if (object->l_ld != _DYNAMIC && same(base_name(object->l_name), base_name(file)))
      return object;
  return NULL;
}

void *elf_needed_function(const struct link_map *object, const char *name) {
  void *function = elf_function(object, name);
  const char *strings = tables_of(object).strings;
  for (const ElfW(Dyn) *entry = object->l_ld; !function && entry->d_tag != DT_NULL; entry++) {
    if (entry->d_tag != DT_NEEDED || !strings)
      continue;
    const struct link_map *needed = loaded(strings + entry->d_un.d_val);
    function = needed ? elf_function(needed, name) : NULL;
  }
  return function;
}
