/* See sort.h. */
#include "sort.h"

static void swap(char *one, char *other, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) {
    const char kept = one[i];
    one[i] = other[i];
    other[i] = kept;
  }
}

/* The first half of the rounds makes a heap, from its last inner item to its root; each of the others puts the largest item that is
   left in its place. In each the item at `root` goes down until neither of those below it is larger. */
void sort_in_place(void *items, size_t count, size_t item_bytes,
                   int (*compare)(const void *, const void *)) {
  char *const bytes = items;
  for (size_t inner = count / 2, left = count; left > 1;) {
    if (inner)
      inner--;
    else
      swap(bytes, bytes + --left * item_bytes, item_bytes);
    for (size_t root = inner, child; (child = 2 * root + 1) < left; root = child) {
      if (child + 1 < left &&
          compare(bytes + child * item_bytes, bytes + (child + 1) * item_bytes) < 0)
        child++;
      if (compare(bytes + root * item_bytes, bytes + child * item_bytes) >= 0)
        break;
      swap(bytes + root * item_bytes, bytes + child * item_bytes, item_bytes);
    }
  }
}

static int by_value(const void *a, const void *b) {
  const double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

double sort_median(double *values, size_t count) {
  if (!count)
    return 0;
  sort_in_place(values, count, sizeof *values, by_value);
  return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}
