/* Known state that stays on the device because of where it lies: says so, and what would make it movable. */
#ifndef OFFLOAD_OUTSIDE_H
#define OFFLOAD_OUTSIDE_H
#include "census.h"

/* Looks at the moments of a complete step that no range holds. Under the enqueue lock. */
void outside_tell(const struct moment *, size_t count);

/* Looks at the pieces of a step at whose beginning none moved: tells of state that shares its pieces with other memory, when it
   is at least an eighth of all. Under the enqueue lock, after the plan. */
void outside_tell_shared(struct range *const *, size_t count);
#endif
