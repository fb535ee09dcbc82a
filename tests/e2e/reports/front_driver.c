/* A libcuda.so.1 as WSL has one: it stands before the real driver, a library of its own, which it opens at its first call and
   whose functions it looks up by their names while it holds its once. What it hands out by cuGetProcAddress is that
   library's. A look-up that leads back here, or waits for the once, never ends. */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *library;
static struct {
  int (*init)(unsigned);
  int (*address)(const char *, void **, int, unsigned long long, int *);
} real;

static void open_real(void) {
  library = dlopen("libcuda_behind.so", RTLD_NOW | RTLD_LOCAL);
  if (!library)
    abort();
  *(void **)&real.init = dlsym(library, "cuInit");
  *(void **)&real.address = dlsym(library, "cuGetProcAddress_v2");
}

int cuInit(unsigned flags);
int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int cuGetProcAddress_v2(const char *name, void **pointer, int version, unsigned long long flags,
                        int *status);

int cuInit(unsigned flags) {
  pthread_once(&once, open_real);
  return real.init(flags);
}
/* Looked up at each call, also after the library's functions were handed out. */
int cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
  int (*alloc)(unsigned long long *, size_t) = NULL;
  pthread_once(&once, open_real);
  *(void **)&alloc = dlsym(library, "cuMemAlloc_v2");
  return alloc(address, bytes);
}
int cuGetProcAddress_v2(const char *name, void **pointer, int version, unsigned long long flags,
                        int *status) {
  pthread_once(&once, open_real);
  return real.address(name, pointer, version, flags, status);
}
