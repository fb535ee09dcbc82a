/* The real dlsym, for our own lookups: our own wrapper is never called by us. Its caller is this
   library, so RTLD_NEXT means "after liboffload". */
#ifndef OFFLOAD_DLSYM_H
#define OFFLOAD_DLSYM_H
void *dlsym_real(void *handle, const char *name);
#endif
