/* Sorting in place, and the median that all figures of steps have: heap sort. qsort may ask the process's allocator for room, which what is written at exit must not do (scratch.h).
   What compares as equal comes in no particular order: comparisons of what is to come out the same each time are total. */
#ifndef OFFLOAD_SORT_H
#define OFFLOAD_SORT_H
#include <stddef.h>

void sort_in_place(void *items, size_t count, size_t item_bytes,
                   int (*compare)(const void *, const void *));
/* Sorts the values. The mean of the middle two where their number is even, 0 of none. */
double sort_median(double *values, size_t count);
#endif
