/* The report's "drives" object. For report.c alone. */
#ifndef OFFLOAD_REPORT_DRIVES_H
#define OFFLOAD_REPORT_DRIVES_H
#include "json.h"
#include "report.h"

/* Writes it, or null: `tell` is NULL, or says that there are none. */
void report_drives_json(struct json *, bool (*tell)(struct report_drives *));
#endif
