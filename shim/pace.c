/* The table of contexts that step (pace.h), and the number of steps of all of them (state.h). */
#include "pace.h"
#include "../policy/report.h"
#include "driver.h"
#include "state.h"
#include <stdatomic.h>

enum { CONTEXTS = 64, PUT_OFF_FIRST = 16, PUT_OFF_MOST = 4096 };

static struct pace paces[CONTEXTS];
static _Atomic uint64_t steps;

struct pace *pace_current(void) {
  CUcontext context = NULL;
  struct pace *unused = NULL;
  if (driver.cuCtxGetCurrent(&context) || !context)
    return NULL;
  for (size_t i = 0; i < CONTEXTS; i++) {
    if (paces[i].context == context)
      return &paces[i];
    if (!paces[i].context && !unused)
      unused = &paces[i];
  }
  if (unused)
    *unused = (struct pace){.context = context};
  else
    report_reason("optimizers step in more than %d contexts: state of the others stays where it is",
                  (int)CONTEXTS);
  return unused;
}

void pace_step(struct pace *pace) {
  pace->step++;
  atomic_fetch_add_explicit(&steps, 1, memory_order_relaxed);
  report_add(steps, 1);
}

void pace_put_off(struct pace *pace) {
  pace->put_off_steps = pace->put_off_steps ? 2 * pace->put_off_steps : PUT_OFF_FIRST;
  if (pace->put_off_steps > PUT_OFF_MOST)
    pace->put_off_steps = PUT_OFF_MOST;
  pace->put_off_until = pace->step + pace->put_off_steps;
}

void pace_forget(CUcontext context) {
  for (size_t i = 0; i < CONTEXTS; i++)
    if (context && paces[i].context == context)
      paces[i] = (struct pace){0};
}

uint64_t state_step(void) {
  return atomic_load_explicit(&steps, memory_order_relaxed);
}
