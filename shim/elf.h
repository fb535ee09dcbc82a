/* Looking symbols up in loaded objects by reading their dynamic sections, never by asking the
   loader: its lock is held while constructors run, and a constructor may be waiting for the very
   thread that calls us. Nothing here needs that lock, and nothing allocates. */
#ifndef OFFLOAD_ELF_H
#define OFFLOAD_ELF_H
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct elf_object {
  uintptr_t base; /* what its addresses are relative to */
  const ElfW(Dyn) * dynamic;
  uintptr_t start; /* the segment in which the address lies, where an address was asked for */
  size_t bytes;
};

/* The address at which this object defines a function, or NULL. Any symbol version counts. */
void *elf_function(const struct elf_object *, const char *name);

/* The first definition of a function in load order after the object that contains this code: what
   RTLD_NEXT means, also where the callers' own scope is not ours. Takes no lock at all; only for
   functions of which some definition was loaded at start. */
void *elf_next_function(const char *name);

/* The others read the list under the lock that guards its links alone, which is held for moments.
   An answer stays true while the object that was asked about stays loaded. */

/* Whether the loader has bound an object's calls to other objects: one that another thread is just opening is on the list
   before that. False where it makes no such calls. */
bool elf_bound(const struct elf_object *);

/* Whether unwinders find the object that holds this code. From 2.35 on glibc keeps a table for them, into which objects come once all that
   were opened together are bound, the last thing before constructors run; an unwinder that doesn't find itself there ends the
   program. True where there is no such table: then they read the list of objects. */
bool elf_unwindable(const void *code);

/* The object in whose segments an address lies. */
bool elf_object_at(uintptr_t address, struct elf_object *);

/* The loaded object that has this file name or calls itself so. */
bool elf_object_named(const char *file, struct elf_object *);

/* The same among the objects that were loaded with the program: they are never removed. */
bool elf_started_object(const char *file, struct elf_object *);

/* The definition that `object` would get from the libraries it names as needed, or from itself;
 * NULL where none has it. */
void *elf_needed_function(const struct elf_object *object, const char *name);

/* The same as elf_next_function, for objects that may have been loaded later. */
void *elf_loaded_function(const char *name);

/* The file name of an object in front of this library that defines a function, "" for the program,
   NULL for none: lookups that pass there never reach us. Takes no lock; those stay loaded. */
const char *elf_file_before_us(const char *name);

/* Changes whenever an object is loaded or unloaded. */
uint64_t elf_generation(void);
#endif
