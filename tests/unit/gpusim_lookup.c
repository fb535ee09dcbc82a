/* The driver's table of names: the right form for each version and stream mode, and the generated
 * stubs. */
#include "tests/gpusim/internal.h"
#include "tests/lib/tap.h"
#include <string.h>

static char traced[256];

void gpusim_trace(int level, const char *format, ...) {
  va_list args;
  (void)level;
  va_start(args, format);
  vsnprintf(traced, sizeof traced, format, args);
  va_end(args);
}

struct expectation {
  const char *base;
  int version, per_thread;
  const char *symbol; /* NULL: no such function */
  const char *sentence;
};

static const struct expectation expectations[] = {
    {"cuInit", 13000, 0, "cuInit", "a function with one form is found"},
    {"cuMemAlloc", 2000, 0, "cuMemAlloc", "an old version gets the old form"},
    {"cuMemAlloc", 3019, 0, "cuMemAlloc", "a version just before a new form gets the old one"},
    {"cuMemAlloc", 3020, 0, "cuMemAlloc_v2", "the version of a new form gets it"},
    {"cuMemAlloc", 13000, 0, "cuMemAlloc_v2", "a later version gets the newest form"},
    {"cuCtxCreate", 11040, 0, "cuCtxCreate_v3", "the third of four forms is found"},
    {"cuGetProcAddress", 11030, 0, "cuGetProcAddress",
     "the resolver itself has two forms: the old"},
    {"cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2", "and the new"},
    {"cuLaunchKernel", 13000, 0, "cuLaunchKernel", "legacy streams get the plain form"},
    {"cuLaunchKernel", 13000, 1, "cuLaunchKernel_ptsz", "per-thread streams get theirs"},
    {"cuLaunchKernel", 4000, 1, "cuLaunchKernel",
     "per-thread streams get the plain form where theirs is newer than asked"},
    {"cuMemcpyHtoD", 13000, 1, "cuMemcpyHtoD_v2_ptds", "some per-thread forms begin at _v2"},
    {"cuStreamGetCaptureInfo", 11030, 1, "cuStreamGetCaptureInfo_v2_ptsz",
     "versions and per-thread forms combine"},
    {"cuMemAlloc", 13000, 1, "cuMemAlloc_v2", "what knows no stream has no per-thread form"},
    {"cuArray3DCreate", 13000, 0, "cuArray3DCreate_v2", "the first name of the table is found"},
    {"cuWaitExternalSemaphoresAsync", 13000, 0, "cuWaitExternalSemaphoresAsync",
     "the last name of the table is found"},
    {"cuMemAlloc_v2", 13000, 0, NULL, "a full symbol is not a base name"},
    {"cuNothing", 13000, 1, NULL, "an unknown name is not found"},
    {"", 13000, 0, NULL, "nor is the empty one"},
    {"zz", 13000, 0, NULL, "nor one after the last"},
};

#define ROW(base, version, symbol, per_thread) {base, version, per_thread, #symbol},
static const struct {
  const char *base;
  int version, per_thread;
  const char *symbol;
} rows[] = {
#include "gpusim/driver_table.inc"
};
#undef ROW
enum { ROWS = sizeof rows / sizeof *rows };

int main(void) {
  for (size_t i = 0; i < sizeof expectations / sizeof *expectations; i++) {
    const struct expectation *e = &expectations[i];
    const char *symbol = "unset";
    void *function = gpusim_lookup(e->base, e->version, e->per_thread, &symbol);
    bool good = e->symbol == NULL ? function == NULL && symbol == NULL
                                  : function != NULL && strcmp(symbol, e->symbol) == 0;
    if (!tap_ok(good, "%s", e->sentence))
      printf("# %s at %d: %s\n", e->base, e->version, symbol != NULL ? symbol : "none");
  }

  const char *symbol = NULL;
  void *function = gpusim_lookup("cuMemcpyBatchAsync", 12000, 0, &symbol);
  tap_ok(function == NULL && symbol != NULL && strcmp(symbol, "cuMemcpyBatchAsync") == 0,
         "a name that is newer than the version asked for is told from an unknown one");
  tap_ok(gpusim_lookup("cuInit", 13000, 0, NULL) != NULL, "the symbol need not be asked for");

  int wrong = 0, sorted = 1;
  for (int i = 0; i < ROWS; i++) {
    symbol = NULL;
    if (gpusim_lookup(rows[i].base, rows[i].version, rows[i].per_thread, &symbol) == NULL ||
        strcmp(symbol, rows[i].symbol) != 0)
      wrong++;
    if (i > 0 && strcmp(rows[i - 1].base, rows[i].base) > 0)
      sorted = 0;
  }
  tap_ok(ROWS > 600 && wrong == 0, "each of the %d rows is found by its own version", ROWS);
  tap_ok(sorted, "the table is sorted by base name");

  int (*stub)(void) = NULL;
  *(void **)&stub = gpusim_lookup("cuGraphCreate", 13000, 0, NULL);
  tap_ok(stub != NULL && stub() == 801, "a function that is not simulated answers NOT_SUPPORTED");
  tap_ok(strstr(traced, "cuGraphCreate") != NULL, "and says its name in the trace");
  return tap_done();
}
