/* Sorting in place: heap sort. qsort may ask the process's allocator for room, which what is written at exit must not do (scratch.h).
   What compares as equal comes in no particular order: comparisons of what is to come out the same each time are total. */
#ifndef OFFLOAD_SORT_H
#define OFFLOAD_SORT_H
#include <stddef.h>

void sort_in_place(void *items, size_t count, size_t item_bytes,
                   int (*compare)(const void *, const void *));
#endif
