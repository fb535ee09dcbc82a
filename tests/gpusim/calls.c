/* What happens to a call before its room sees it: the driver's age and injected faults. call.S comes
   here from every exported name, when a switch asks for it. Faults are read once, with the other
   switches; their counters are atomic, so that the third call is the third, whatever the thread. */
#include "tests/gpusim/driver.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
  const char *symbol, *base;
  int version; /* first CUDA version that has it */
} calls[] = {
#define CALL(symbol, base, version) {#symbol, #base, version},
#include "gpusim/driver_calls.inc"
#undef CALL
};
enum { CALLS = sizeof calls / sizeof *calls, MAX_FAULTS = 64 };

struct fault {
  char name[96]; /* of a symbol, or of all forms of a call */
  uint64_t from, to;
  CUresult error;
  _Atomic uint64_t seen;
};
static struct fault faults[MAX_FAULTS];
static int fault_count;

/* Nothing is known before the switches are read, at the first call. */
__attribute__((visibility("hidden"))) _Atomic unsigned char gpusim_calls_watched = 1;
__attribute__((visibility("hidden"))) int gpusim_call_enter(unsigned number);

/* ---- GPUSIM_FAULT=name:which:error,...; which: 3, 3- (from the third on), 2-5, * ---- */

static bool parse_which(const char *words, struct fault *fault) {
  char *end;
  if (strcmp(words, "*") == 0) {
    fault->from = 1;
    fault->to = UINT64_MAX;
    return true;
  }
  if (*words < '1' || *words > '9')
    return false;
  fault->from = fault->to = strtoull(words, &end, 10);
  if (*end == '-' && end[1] == 0) {
    fault->to = UINT64_MAX;
    return true;
  }
  if (*end == '-' && end[1] >= '1' && end[1] <= '9')
    fault->to = strtoull(end + 1, &end, 10);
  return *end == 0 && fault->to >= fault->from;
}

static bool known(const char *name) {
  for (int i = 0; i < CALLS; i++)
    if (strcmp(calls[i].symbol, name) == 0 || strcmp(calls[i].base, name) == 0)
      return true;
  return false;
}

static void parse_fault(char *words) {
  char whole[192];
  snprintf(whole, sizeof whole, "%s", words);
  char *which = strchr(words, ':');
  char *error = which != NULL ? strchr(which + 1, ':') : NULL;
  if (error == NULL)
    gpusim_settings_refuse(
        "GPUSIM_FAULT", whole,
        "expected name:which:error, such as cuMemCreate:3:CUDA_ERROR_OUT_OF_MEMORY");
  *which++ = 0;
  *error++ = 0;
  if (fault_count == MAX_FAULTS)
    gpusim_settings_refuse("GPUSIM_FAULT", whole, "at most 64 faults");
  struct fault *fault = &faults[fault_count++];
  snprintf(fault->name, sizeof fault->name, "%s", words);
  if (!known(words))
    gpusim_settings_refuse("GPUSIM_FAULT", whole, "no driver call of that name");
  if (!parse_which(which, fault))
    gpusim_settings_refuse(
        "GPUSIM_FAULT", whole,
        "expected which call: 3, 3- for the third and all later ones, 2-5, or *");
  fault->error = gpusim_error_by_name(error);
  if (fault->error == CUDA_SUCCESS)
    gpusim_settings_refuse(
        "GPUSIM_FAULT", whole,
        "expected an error by its number or name, such as 2 or CUDA_ERROR_OUT_OF_MEMORY");
}

void gpusim_calls_configure(void) {
  if (gpusim_settings.fault != NULL) {
    char *list = strdup(gpusim_settings.fault), *rest = list;
    if (list == NULL)
      abort();
    for (char *one; (one = strsep(&rest, ",")) != NULL;)
      parse_fault(one);
    free(list);
  }
  bool watched = fault_count > 0 || gpusim_driver_version() < CUDA_VERSION;
  /* release: whoever sees the flag set sees the faults; unset, it doesn't look at them */
  atomic_store_explicit(&gpusim_calls_watched, watched, memory_order_release);
}

static CUresult injected(unsigned number) {
  CUresult error = CUDA_SUCCESS;
  for (int i = 0; i < fault_count; i++) {
    struct fault *fault = &faults[i];
    if (strcmp(fault->name, calls[number].symbol) != 0 &&
        strcmp(fault->name, calls[number].base) != 0)
      continue;
    uint64_t seen = atomic_fetch_add_explicit(&fault->seen, 1, memory_order_relaxed) + 1;
    if (seen < fault->from || seen > fault->to || error != CUDA_SUCCESS)
      continue;
    error = fault->error;
    gpusim_count(GPUSIM_COUNT_injected_faults, 1);
    gpusim_trace(1, "%s, call %llu: %s by GPUSIM_FAULT", calls[number].symbol,
                 (unsigned long long)seen, gpusim_error_name(error));
  }
  return error;
}

int gpusim_call_enter(unsigned number) {
  gpusim_settings_load();
  /* A program finds no newer name by cuGetProcAddress. One linked against this library, which has
     all names, gets an error. */
  if (calls[number].version > gpusim_driver_version()) {
    gpusim_trace(1, "%s is newer than GPUSIM_DRIVER=%s", calls[number].symbol,
                 gpusim_settings.driver);
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return (int)injected(number);
}
