/* The library behind front_driver.c; also a driver from the future, which knows names and versions that no table of ours
   does. Its answers tell who was called. */
#include <stddef.h>
#include <string.h>

int cuInit(unsigned flags);
int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int cuGetProcAddress_v2(const char *name, void **pointer, int version, unsigned long long flags,
                        int *status);
static int calls;

int cuInit(unsigned flags) {
  return flags || calls++ ? 1 : 0;
}
int cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
  *address = 0x7000 + bytes;
  return 0;
}
static int alloc_v9(unsigned long long *address, size_t bytes) {
  *address = 0x9000 + bytes;
  return 0;
}
static int unheard_of(void) {
  return 77;
}
int cuGetProcAddress_v2(const char *name, void **pointer, int version, unsigned long long flags,
                        int *status) {
  (void)flags;
  *pointer = NULL;
  if (!strcmp(name, "cuMemAlloc"))
    *pointer = version >= 99000 ? (void *)alloc_v9 : (void *)cuMemAlloc_v2;
  else if (!strcmp(name, "cuUnheardOf") && version >= 99000)
    *pointer = (void *)unheard_of;
  else if (!strcmp(name, "cuInit"))
    *pointer = (void *)cuInit;
  if (status)
    *status = *pointer ? 0 : 1;
  return 0;
}
