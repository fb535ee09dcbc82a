/* What the drive tier costs its drives: the wear limit, the warning about a consumer drive, and what the report says of drives. Called
   by drive.c under the enqueue lock, and before reports are written. */
#ifndef OFFLOAD_WEAR_H
#define OFFLOAD_WEAR_H
#include "../nvme/store.h"
#include <cuda.h>

/* Whether OFFLOAD_NVME_WEAR_LIMIT is reached, or can't be held because a drive doesn't tell how much of its endurance is used. Says
   so once; once it is, it stays. */
bool wear_ended(struct store *);

/* A context's step begins, with state on drives. Of several contexts the steps of the first count. */
void wear_step(struct store *, CUcontext);

/* Tells the report what drives are and cost by now (and says it when a limit in bytes is passed by now), and asks them, which takes memory and may take seconds. Any thread, not under a lock, not
   in a signal's handler. Without it the report has what was so when the last step began. */
void wear_report(void);
#endif
