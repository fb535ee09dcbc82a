/* The report's "drives" object. For report.c alone. */
#ifndef OFFLOAD_REPORT_DRIVES_H
#define OFFLOAD_REPORT_DRIVES_H
#include "json.h"
#include "report.h"

/* Writes it; null when nobody has told of drives. */
void report_drives_json(struct json *);
/* Nobody has; in a forked child the lock may have been taken by a thread that it doesn't have. */
void report_drives_forget(void);
#endif
