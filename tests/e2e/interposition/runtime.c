/* Stands for a CUDA runtime: takes registrations of kernels (crt/host_runtime.h). */
#include <stdio.h>
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *,
                            void *, void *, int *);
long registered_count(void);
static long count;
#if RUNTIME == 2
/* Its functions lie elsewhere in the object than those of the first. */
__asm__(".text\n.skip 64, 0xcc\n");
#endif
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                            int limit, void *tid, void *bid, void *block, void *grid, int *size) {
  if (count++ == 0)
    printf("runtime %d: %s %s %s %s %d %ld %ld %ld %ld %d\n", RUNTIME, (const char *)handle, host,
           device, name, limit, (long)tid, (long)bid, (long)block, (long)grid, *size);
}
long registered_count(void) {
  return count;
}
