/* See report_advice.h. Nothing is kept here but who gives advice: it is given anew for each report. */
#include "report_advice.h"
#include "report.h"
#include "scratch.h"
#include <stdatomic.h>

static advice_giver *_Atomic giver;
enum { LIST_BYTES = ADVICE_MOST * sizeof(struct advice) };

void report_advice_from(advice_giver *from) {
  atomic_store_explicit(&giver, from, memory_order_release);
}

/* The caller drops the list; NULL when there is no advice, or no memory. */
static struct advice *advice_now(bool final, size_t *count, uint64_t *state_bytes) {
  advice_giver *const give = atomic_load_explicit(&giver, memory_order_acquire);
  struct advice *advice = give ? scratch_take(LIST_BYTES) : NULL;
  *state_bytes = 0;
  *count = advice ? give(final, advice, state_bytes) : 0;
  return advice;
}

void report_advice_json(struct json *json, bool final) {
  size_t count;
  uint64_t state_bytes;
  struct advice *advice = advice_now(final, &count, &state_bytes);
  json_begin(json, "advice", '[');
  for (size_t i = 0; i < count; i++) {
    json_begin(json, NULL, '{');
    json_string(json, "kind", advice_kind_name(advice[i].kind));
    json_string(json, "text", advice[i].text);
    json_end(json, '}');
  }
  json_end(json, ']');
  scratch_drop(advice, LIST_BYTES);
}

/* Others are said by the line at exit, with its reasons, or by a line of their own when they were met. */
static bool worth_a_line(enum advice_kind kind) {
  switch (kind) {
  case ADVICE_unknown:
  case ADVICE_activations:
  case ADVICE_accumulate:
  case ADVICE_shard:
  case ADVICE_memlock:
  case ADVICE_way:
    return true;
  default:
    return false;
  }
}

void report_advice_lines(void) {
  enum { LINES = 2 };
  const uint64_t least_bytes = (uint64_t)16
                               << 20; /* of state: below that nothing is worth a line */
  size_t count, lines = 0;
  uint64_t state_bytes;
  struct advice *advice = advice_now(true, &count, &state_bytes);
  for (size_t i = 0; i < count && lines < LINES; i++)
    if (worth_a_line(advice[i].kind) && state_bytes >= least_bytes) {
      report_line(LOG_NORMAL, "advice: %s", advice[i].text);
      lines++;
    }
  scratch_drop(advice, LIST_BYTES);
}
