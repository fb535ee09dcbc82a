/* Known state in memory that isn't ours to move: says once whose it is and what would make it movable. */
#ifndef OFFLOAD_OUTSIDE_H
#define OFFLOAD_OUTSIDE_H
#include "census.h"

/* Looks at the moments of a complete step that no range holds. Under the enqueue lock. */
void outside_tell(const struct moment *, size_t count);
#endif
