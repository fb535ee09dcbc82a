/* Looking a symbol up in a loaded object by reading its dynamic section. No libc call, no lock, no
   allocation: usable while allocators start and inside the loader. */
#ifndef OFFLOAD_ELF_H
#define OFFLOAD_ELF_H
#include <link.h>

/* The address at which this object defines a function, or NULL. Any symbol version counts. */
void *elf_function(const struct link_map *, const char *name);

/* The first definition of a function in load order after the object that contains this code: what
   RTLD_NEXT means, also where the callers' own scope is not ours. */
void *elf_next_function(const char *name);

/* The definition that `object` would get from the libraries it names as needed, or from itself;
 * NULL where none has it. */
void *elf_needed_function(const struct link_map *object, const char *name);
#endif
