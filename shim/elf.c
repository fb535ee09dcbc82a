/* Reading the loader's list of objects and their symbol tables (elf.h). For those who can't ask the
   loader: dlsym.c because it stands in the loader's place, driver.c and hooks_resolve.c because
   their callers may be what a constructor waits for, or see another scope than we do.

   elf_next_function alone reads the list without a lock: what it looks for stands among the objects
   that were loaded at start, which are never removed. tests/check/dlsym holds it to that. */
#define _GNU_SOURCE
#include "elf.h"
#include <stdatomic.h>

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
static uintptr_t address_of(const struct elf_object *object, const ElfW(Dyn) * entry) {
  uintptr_t address = entry->d_un.d_ptr;
  return address < object->base ? address + object->base : address;
}

static struct tables tables_of(const struct elf_object *object) {
  struct tables tables = {0};
  for (const ElfW(Dyn) *entry = object->dynamic; entry->d_tag != DT_NULL; entry++) {
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

void *elf_function(const struct elf_object *object, const char *name) {
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
      return (void *)(object->base + symbol->st_value);
    if (hash & 1)
      return NULL;
  }
}

bool elf_bound(const struct elf_object *object) {
  const ElfW(Rela) *slots = NULL;
  size_t count = 0;
  for (const ElfW(Dyn) *entry = object->dynamic; entry->d_tag != DT_NULL; entry++) {
    if (entry->d_tag == DT_JMPREL)
      slots = (const void *)address_of(object, entry);
    else if (entry->d_tag == DT_PLTRELSZ)
      count = entry->d_un.d_val / sizeof *slots;
  }
  if (!slots)
    return false;
  /* In the file a slot holds an offset in the object (or nothing), afterwards an address, of the
     function or of the code that binds it lazily. */
  for (size_t i = 0; i < count; i++) {
    const _Atomic uintptr_t *slot = (const void *)(object->base + slots[i].r_offset);
    if (atomic_load_explicit(slot, memory_order_acquire) < object->base)
      return false;
  }
  return count > 0;
}

/* glibc's, 2.35 and later: takes no lock, and allocates nothing. `found` is its struct dl_find_object, of at most 16 words. */
typedef int find_object(void *code, void *found);

static int find_without(void *code, void *found) {
  (void)code, (void)found;
  return 0;
}

bool elf_unwindable(const void *code) {
  static find_object *_Atomic finder;
  uint64_t found[16];
  find_object *find = atomic_load_explicit(&finder, memory_order_relaxed);
  if (!find) {
    *(void **)&find = elf_loaded_function("_dl_find_object");
    find = find ? find : find_without;
    atomic_store_explicit(&finder, find, memory_order_relaxed);
  }
  return find((void *)code, found) == 0;
}

void *elf_next_function(const char *name) {
  bool after_us = false;
  for (const struct link_map *listed = first_object(); listed; listed = listed->l_next) {
    struct elf_object object = {.base = listed->l_addr, .dynamic = listed->l_ld};
    void *function = after_us ? elf_function(&object, name) : NULL;
    if (function)
      return function;
    after_us = after_us || object.dynamic == _DYNAMIC;
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

const char *elf_file_before_us(const char *name) {
  for (const struct link_map *listed = first_object(); listed; listed = listed->l_next) {
    struct elf_object object = {.base = listed->l_addr, .dynamic = listed->l_ld};
    if (object.dynamic == _DYNAMIC)
      return NULL;
    if (elf_function(&object, name))
      return base_name(listed->l_name);
  }
  return NULL;
}

static const char *string_of(const struct elf_object *object, const ElfW(Dyn) * entry) {
  const char *strings = tables_of(object).strings;
  return strings ? strings + entry->d_un.d_val : "";
}

static bool described(const struct dl_phdr_info *info, struct elf_object *object) {
  for (int i = 0; i < info->dlpi_phnum; i++)
    if (info->dlpi_phdr[i].p_type == PT_DYNAMIC) {
      *object = (struct elf_object){
          .base = info->dlpi_addr,
          .dynamic = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr)};
      return true;
    }
  return false;
}

static const char *own_name(const struct dl_phdr_info *info, const struct elf_object *object) {
  for (const ElfW(Dyn) *entry = object->dynamic; entry->d_tag != DT_NULL; entry++)
    if (entry->d_tag == DT_SONAME)
      return string_of(object, entry);
  return base_name(info->dlpi_name);
}

struct search {
  uintptr_t address;
  const char *file;
  struct elf_object *found;
};

static int is_at(struct dl_phdr_info *info, size_t size, void *data) {
  const struct search *search = data;
  (void)size;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
    uintptr_t start = info->dlpi_addr + segment->p_vaddr;
    if (segment->p_type == PT_LOAD && search->address - start < segment->p_memsz) {
      if (!described(info, search->found))
        return 0;
      search->found->start = start;
      search->found->bytes = segment->p_memsz;
      return 1;
    }
  }
  return 0;
}

bool elf_object_at(uintptr_t address, struct elf_object *found) {
  struct search search = {.address = address, .found = found};
  return dl_iterate_phdr(is_at, &search) != 0;
}

static int is_named(struct dl_phdr_info *info, size_t size, void *data) {
  const struct search *search = data;
  struct elf_object object;
  (void)size;
  if (!described(info, &object) || object.dynamic == _DYNAMIC)
    return 0;
  bool named =
      same(base_name(info->dlpi_name), search->file) || same(own_name(info, &object), search->file);
  if (named)
    *search->found = object;
  return named;
}

bool elf_object_named(const char *file, struct elf_object *found) {
  struct search search = {.file = base_name(file), .found = found};
  return dl_iterate_phdr(is_named, &search) != 0;
}

static bool needs(const struct elf_object *object, const char *file) {
  for (const ElfW(Dyn) *entry = object->dynamic; entry->d_tag != DT_NULL; entry++)
    if (entry->d_tag == DT_NEEDED && same(base_name(string_of(object, entry)), file))
      return true;
  return false;
}

/* The loader lists the program, what is preloaded, and then, breadth first, what those need: an
   object was loaded at start if one that was, and is listed before it, needs it. */
enum { STARTED = 256 };
struct started {
  const char *file;
  struct elf_object *found;
  unsigned count;
  bool preloaded; /* still in front of this library, or at it */
  struct {
    uintptr_t base;
    const ElfW(Dyn) * dynamic;
  } objects[STARTED]; /* on the program's stack, which may be small: nothing else of them */
};

static int is_started(struct dl_phdr_info *info, size_t size, void *data) {
  struct started *started = data;
  struct elf_object object;
  (void)size;
  if (!described(info, &object))
    return 0;
  bool with_program = started->preloaded;
  started->preloaded = started->preloaded && object.dynamic != _DYNAMIC;
  const char *name = own_name(info, &object), *file = base_name(info->dlpi_name);
  for (unsigned i = 0; !with_program && i < started->count; i++) {
    const struct elf_object user = {.base = started->objects[i].base,
                                    .dynamic = started->objects[i].dynamic};
    with_program = needs(&user, name) || needs(&user, file);
  }
  if (!with_program)
    return 0;
  if (same(name, started->file) || same(file, started->file)) {
    *started->found = object;
    return 1;
  }
  if (started->count < STARTED) {
    started->objects[started->count].base = object.base;
    started->objects[started->count++].dynamic = object.dynamic;
  }
  return 0;
}

bool elf_started_object(const char *file, struct elf_object *found) {
  struct started started = {.file = file, .found = found, .preloaded = true};
  return dl_iterate_phdr(is_started, &started) != 0;
}

void *elf_needed_function(const struct elf_object *object, const char *name) {
  void *function = elf_function(object, name);
  for (const ElfW(Dyn) *entry = object->dynamic; !function && entry->d_tag != DT_NULL; entry++) {
    struct elf_object needed;
    if (entry->d_tag == DT_NEEDED && elf_object_named(string_of(object, entry), &needed))
      function = elf_function(&needed, name);
  }
  return function;
}

struct next {
  const char *name;
  void *function;
  bool after_us;
};

static int is_next(struct dl_phdr_info *info, size_t size, void *data) {
  struct next *next = data;
  struct elf_object object;
  (void)size;
  if (!described(info, &object))
    return 0;
  if (next->after_us)
    next->function = elf_function(&object, next->name);
  next->after_us = next->after_us || object.dynamic == _DYNAMIC;
  return next->function != NULL;
}

void *elf_loaded_function(const char *name) {
  struct next next = {.name = name};
  (void)dl_iterate_phdr(is_next, &next);
  return next.function;
}

/* Only the counters: stops at the first object. */
static int read_generation(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  *(uint64_t *)data = info->dlpi_adds * 0x10001u + info->dlpi_subs;
  return 1;
}

uint64_t elf_generation(void) {
  uint64_t generation = 0;
  (void)dl_iterate_phdr(read_generation, &generation);
  return generation;
}
