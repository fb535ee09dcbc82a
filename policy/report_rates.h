/* The report's object "rates": what the machine does in a second, as the shim knows it (shim/measure.h), of the device that made the
   first range. */
#ifndef OFFLOAD_REPORT_RATES_H
#define OFFLOAD_REPORT_RATES_H
#include "json.h"
#include "rates.h"

/* Keeps a copy. `path`: the file that they came from, or NULL; `why`: why they are assumed, or NULL. */
void report_rates(int device, const struct rates *, const char *path, const char *why);

/* For report.c alone. */
void report_rates_json(struct json *);
/* Nobody has told of any; in a forked child the lock may have been taken by a thread that it doesn't have. */
void report_rates_forget(void);
#endif
