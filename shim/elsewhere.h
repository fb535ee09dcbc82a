/* State that lies in no range of ours: it stays where it is, and the report says in what kind of
   memory, with what to change. Called by state.c, under the enqueue lock. */
#ifndef OFFLOAD_ELSEWHERE_H
#define OFFLOAD_ELSEWHERE_H
#include "census.h"

/* The moments of the last step, those outside every range among them. */
void elsewhere_note(const struct moment *moments, size_t count);
#endif
