/* The answer to "where is driver function X?": the committed table of names, versions and symbols.

   gpusim_lookup is called by the driver's cuGetProcAddress rooms and by unit tests; it takes no
   lock and allocates nothing. The table takes addresses of the driver's own exported symbols, so
   the library must be linked with -Bsymbolic: otherwise a preloaded library of the same names would
   be found here as well. */
#include "tests/gpusim/internal.h"
#include <string.h>

struct row {
  const char *base;
  int version; /* first CUDA version that has it, 12080 = 12.8 */
  int per_thread;
  int (*function)(void);
  const char *symbol;
};

#define ROW(base, version, symbol, per_thread) int symbol(void);
#include "gpusim/driver_table.inc"
#undef ROW

static const struct row rows[] = {
#define ROW(base, version, symbol, per_thread) {base, version, per_thread, symbol, #symbol},
#include "gpusim/driver_table.inc"
#undef ROW
};
enum { ROWS = sizeof rows / sizeof *rows };

/* The first row whose base name is not less than `base`. */
static size_t first_row(const char *base) {
  size_t low = 0, high = ROWS;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (strcmp(rows[middle].base, base) < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

void *gpusim_lookup(const char *base, int version, int per_thread, const char **symbol) {
  /* Rows of one name lie together, legacy before per-thread and versions rising: the last one that
     fits is the best one. */
  const struct row *best = NULL;
  const char *newer = NULL;
  for (size_t i = first_row(base); i < ROWS && strcmp(rows[i].base, base) == 0; i++) {
    if (rows[i].per_thread && !per_thread)
      continue;
    if (rows[i].version <= version)
      best = &rows[i];
    else if (newer == NULL)
      newer = rows[i].symbol;
  }
  if (symbol != NULL)
    *symbol = best != NULL ? best->symbol : newer;
  return best != NULL ? (void *)best->function : NULL;
}
