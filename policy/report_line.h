/* What report.c needs of the lines on stderr (report.h: report_line). */
#ifndef OFFLOAD_REPORT_LINE_H
#define OFFLOAD_REPORT_LINE_H
#include <stdint.h>

/* How many lines were left out since the last of their kind, for each kind. At exit. */
void report_line_finish(void);
void report_line_forget(void);

extern uint64_t report_line_window_ns; /* a minute; shorter in tests */
#endif
