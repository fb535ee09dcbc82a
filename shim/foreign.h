/* Optimizers that are not taken over (foreign.def): named in the report, with the bytes of state that stay on the device and what
   to change. They only are looked at: every launch goes to the driver unchanged. Caller: recognise.c, step.c. */
#ifndef OFFLOAD_FOREIGN_H
#define OFFLOAD_FOREIGN_H
#include "step.h"

struct foreign; /* a function of foreign.def; never freed */

/* The function, if its name is in foreign.def; NULL otherwise. Asks the driver for its parameters, at most
   once a function. */
const struct foreign *foreign_of(CUfunction, const char *name);

/* A launch of it: counts its state into the report's row. Any thread, no lock of ours may be needed after
   it. */
void foreign_launch(const struct foreign *, const struct launch *);
#endif
