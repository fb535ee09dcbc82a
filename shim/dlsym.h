/* The real dlsym, for our own lookups: our own wrapper is never called by us. Its caller is this
   library, so RTLD_NEXT means "after liboffload". */
#ifndef OFFLOAD_DLSYM_H
#define OFFLOAD_DLSYM_H
#include <stdbool.h>
void *dlsym_real(void *handle, const char *name);
/* False when another library's dlsym stands between ours and libc's. */
bool dlsym_next_is_libc(void);
#endif
