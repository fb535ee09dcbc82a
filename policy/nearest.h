/* "Did you mean": the nearest of some names to one that is none of them. */
#ifndef OFFLOAD_NEAREST_H
#define OFFLOAD_NEAREST_H
#include <stddef.h>

/* The name that takes the fewest edits (insert, delete, replace a character), at most two; else NULL. */
const char *nearest_name(const char *name, const char *const *names, size_t count);
#endif
