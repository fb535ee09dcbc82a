/* State that stays where it is for where it lies, and why: in no range of ours, in a range that others
   have a hold on, or in pieces that are not all state. Called by state.c, under the enqueue lock. */
#ifndef OFFLOAD_ELSEWHERE_H
#define OFFLOAD_ELSEWHERE_H
#include "census.h"

/* The moments of the last step, those outside every range among them. */
void elsewhere_note(const struct moment *moments, size_t count);

/* State that would move but for who else has a hold on its memory. After the plan. */
void elsewhere_note_held(struct range *const *, size_t count);

/* At a step at whose beginning none moved: state that shares its pieces with other memory, when it is
   at least an eighth of all. After the plan. */
void elsewhere_note_shared(struct range *const *, size_t count);
#endif
