/* The report's "free" object: what OFFLOAD_FREE asked for and what is free by it. The shim tells from any thread; a copy is kept under a
   lock. */
#ifndef OFFLOAD_REPORT_FREE_H
#define OFFLOAD_REPORT_FREE_H
#include "config.h"
#include "json.h"

enum { REPORT_FREE_WHY_BYTES = 256 };

/* Bytes of state that are off a device now, and why not more. */
void report_free(int device, uint64_t freed_bytes, const char *why);

/* Nothing is to be off any device from now on. */
void report_free_ended(const char *why);

/* A line for each device of which less is free than was asked for. */
void report_free_lines(const struct config *);
/* For report.c. */
void report_free_json(struct json *, const struct config *);
/* In a forked child the lock may have been taken by a thread that it doesn't have. */
void report_free_forget(void);
#endif
