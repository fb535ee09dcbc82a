/* What the parts of endurance.h share, for them and their test alone. */
#ifndef OFFLOAD_NVME_ENDURANCE_INTERNAL_H
#define OFFLOAD_NVME_ENDURANCE_INTERNAL_H
#include "endurance.h"

enum { ENDURANCE_PAGE_BYTES = 512, ENDURANCE_RUN_MS = 2000 };

/* Consumer or not, and the rated bytes, by drives.def from model and capacity. */
void endurance_rate(struct drive_health *);

/* The NVMe log page 02h. False when it tells nothing: drives that are not real have pages of zeros. */
bool endurance_page(const uint8_t page[ENDURANCE_PAGE_BYTES], struct drive_health *);
/* What smartctl -j printed, NVMe or ATA. False when the part of the endurance that is used isn't in it. */
bool endurance_json(const char *text, struct drive_health *);
/* Asks the drive /dev/<name>: the log, then smartctl. */
void endurance_ask(struct drive_health *);

/* Runs a program and takes what it writes to stdout, with a NUL. It gets no descriptor and no variable of ours, is no child that the
   program could meet in wait(), and ends after `limit_ms`, rounded up to whole seconds. False when it couldn't be started, or was
   not done by then, or wrote more than there is room for. */
bool endurance_run(const char *program, char *const arguments[], unsigned limit_ms, char *output,
                   size_t output_bytes);
#endif
