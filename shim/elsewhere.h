/* State that lies in no range of ours: it stays where it is, and the report says in what kind of
   memory, with what to change. Called by state.c, under the enqueue lock. */
#ifndef OFFLOAD_ELSEWHERE_H
#define OFFLOAD_ELSEWHERE_H
#include "census.h"

/* The moments of the last step, those outside every range among them. */
void elsewhere_note(const struct moment *moments, size_t count);

/* Looks at the pieces of a step at whose beginning none moved: tells of state that shares its pieces with other memory, when it
   is at least an eighth of all. Under the enqueue lock, after the plan. */
void elsewhere_note_shared(struct range *const *, size_t count);
#endif
