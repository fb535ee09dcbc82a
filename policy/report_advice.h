/* The report's "advice", and its first sentences on standard error at exit. For report.c; who knows the facts registers at the start. */
#ifndef OFFLOAD_REPORT_ADVICE_H
#define OFFLOAD_REPORT_ADVICE_H
#include "advice.h"
#include "json.h"

/* Gives advice of what is known now, and how much state a step names; `final`: the process ends. Any thread, without calls of the driver. */
typedef size_t advice_giver(bool final, struct advice[ADVICE_MOST], uint64_t *state_bytes);
void report_advice_from(advice_giver *);

void report_advice_json(struct json *, bool final);
/* At exit: the first of those that the line at exit doesn't say already, where a job has enough state for it to matter. */
void report_advice_lines(void);
#endif
