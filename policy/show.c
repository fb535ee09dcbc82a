/* See show.h. Figures are those of the report: totals, the last step that was measured, the device's memory when it was last looked at. */
#include "show.h"
#include "registry.h"
#include "report.h"
#include "report_memory.h"
#include "report_policy.h"
#include <stdio.h>
#include <string.h>

static uint64_t total(const _Atomic uint64_t *counter) {
  return atomic_load_explicit(counter, memory_order_relaxed);
}

static uint64_t less(uint64_t a, uint64_t b) {
  return a > b ? a - b : 0;
}

/* The last reason, where something named by steps stayed where it was. */
static void note(struct registry_state *shown) {
  const unsigned count = atomic_load_explicit(&report.reason_count, memory_order_acquire);
  if (count && shown->moved_bytes + shown->drive_bytes < shown->state_bytes)
    snprintf(shown->note, sizeof shown->note, "%s", report.reasons[count - 1]);
}

void show_step(const struct config *config) {
  if (!registry_joined())
    return;
  const struct report_totals *t = &report.totals;
  struct registry_state shown = {.steps = total(&t->steps),
                                 .moved_bytes = total(&t->moved_bytes),
                                 .drive_bytes = total(&t->drive_bytes),
                                 .state_bytes = report_memory_state_now(),
                                 .budget_bytes = report.budget_bytes};
  struct report_step last;
  if (!report_memory_device_now(&shown.device_used_bytes, &shown.device_total_bytes))
    shown.device_total_bytes = 0;
  snprintf(shown.way, sizeof shown.way, "none");
  if (report_step_last(&last)) {
    snprintf(shown.way, sizeof shown.way, "%s", last.way);
    shown.step_ns = last.step_ns;
    shown.exposed_ns = less(last.optimizer_ns, last.stay_ns);
    shown.foretold_ns = less(last.foretold_ns, last.stay_ns);
    shown.link_down_bytes = last.link_down_bytes;
    shown.link_up_bytes = last.link_up_bytes;
  }
  snprintf(shown.mode, sizeof shown.mode, "%s", config_mode_name(config->mode));
  note(&shown);
  registry_show(&shown);
}
