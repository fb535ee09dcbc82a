/* See nearest.h. Called by config.c for variables and by the program `offload` for its commands; allocates and prints nothing. */
#include "nearest.h"
#include <string.h>

enum { NAME_MOST = 40, SLIP = 2 }; /* two edits are a slip, three another word */

static size_t edit_distance(const char *a, const char *b) {
  size_t row[NAME_MOST + 1];
  const size_t length = strlen(b);
  if (length > NAME_MOST || strlen(a) > NAME_MOST)
    return NAME_MOST;
  for (size_t j = 0; j <= length; j++)
    row[j] = j;
  for (size_t i = 0; a[i]; i++) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < length; j++) {
      const size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      size_t best = diagonal + 1 < row[j] + 1 ? diagonal + 1 : row[j] + 1;
      row[j + 1] = best < replaced ? best : replaced;
    }
  }
  return row[length];
}

const char *nearest_name(const char *name, const char *const *names, size_t count) {
  const char *nearest = NULL;
  size_t distance = SLIP + 1;
  for (size_t i = 0; i < count; i++) {
    const size_t edits = edit_distance(name, names[i]);
    if (edits < distance) {
      distance = edits;
      nearest = names[i];
    }
  }
  return nearest;
}
