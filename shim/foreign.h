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

/* What was seen so far, for advice: bytes of state of PyTorch's foreach Adam; of the others the one with the most, its name NULL where there
   is none, its bytes 0 where they can't be told. Any thread. */
void foreign_facts(uint64_t *foreach_bytes, const char **name, uint64_t *bytes);
#endif
