/* Sixteen threads meet a driver that nobody has used yet, at the same moment and each by another
   way, while one more opens and closes a library all the time. The words: a library that is linked
   against the driver, and one with a cuInit of its own to open and close. Compiled with DIRECT the program is linked against
   the driver, too, so that it is there from the start. */
#define _GNU_SOURCE
#include "way.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 16 };
static pthread_barrier_t start;
static const char *linked, *opened;
static _Atomic bool done;
static _Atomic int failures;

static int by_lookup(void *handle) {
  struct way way;
  void **slots = (void **)&way;
  for (int i = 0; i < WAY_NAMES; i++)
    if (!(slots[i] = dlsym(handle, way_names[i].symbol)))
      return 1;
  return way_use(&way);
}

static int by_proc_address(void *library, const char *form, cuuint64_t flags) {
  struct way way;
  void **slots = (void **)&way, *found = dlsym(library, form);
  CUresult (*v1)(const char *, void **, int, cuuint64_t);
  CUresult (*v2)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
  *(void **)&v1 = found;
  *(void **)&v2 = found;
  if (!found)
    return 1;
  for (int i = 0; i < WAY_NAMES; i++) {
    const struct way_name *name = &way_names[i];
    slots[i] = NULL;
    if (strstr(form, "_v2") ? v2(name->base, &slots[i], name->version, flags, NULL)
                            : v1(name->base, &slots[i], name->version, flags))
      return 1;
    if (!slots[i])
      return 1;
  }
  return way_use(&way);
}

static int by_library(void) {
  int (*use)(void) = NULL;
  void *library = dlopen(linked, RTLD_NOW | RTLD_LOCAL);
  if (library)
    *(void **)&use = dlsym(library, "use");
  return use ? use() : 1;
}

static int by_runtime(void) {
  int (*allocate)(void **, size_t) = NULL, (*release)(void *) = NULL;
  void *runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_LOCAL), *pointer = NULL;
  if (runtime) {
    *(void **)&allocate = dlsym(runtime, "cudaMalloc");
    *(void **)&release = dlsym(runtime, "cudaFree");
  }
  return allocate && release ? allocate(&pointer, WAY_BYTES) | release(pointer) : 1;
}

static int direct(void) {
#ifdef DIRECT
  return way_use_linked();
#else
  return by_library();
#endif
}

static int meet(int way) {
  if (way == 0)
    return direct();
  if (way == 1)
    return by_library();
  if (way == 2)
    return by_runtime();
  void *library = dlopen("libcuda.so.1", RTLD_NOW | (way == 3 ? RTLD_GLOBAL : RTLD_LOCAL));
  if (!library)
    return 1;
  if (way == 3)
    return by_lookup(RTLD_DEFAULT);
  if (way == 4)
    return by_lookup(library);
  return by_proc_address(library, way == 5 ? "cuGetProcAddress" : "cuGetProcAddress_v2",
                         way == 7 ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0);
}

static void *thread(void *number) {
  (void)pthread_barrier_wait(&start);
  int way = (int)(size_t)number % 8;
  if (meet(way)) {
    printf("way %d failed\n", way);
    atomic_fetch_add(&failures, 1);
  }
  return NULL;
}

static void *opening(void *unused) {
  (void)pthread_barrier_wait(&start);
  while (!atomic_load(&done)) {
    void *library = dlopen(opened, RTLD_NOW | RTLD_LOCAL);
    if (!library || !dlsym(library, "cuInit") || dlclose(library))
      atomic_fetch_add(&failures, 1);
  }
  return unused;
}

int main(int count, char **words) {
  pthread_t threads[THREADS + 1];
  if (count != 3 || pthread_barrier_init(&start, NULL, THREADS + 1))
    return 2;
  linked = words[1];
  opened = words[2];
  way_quiet = true;
  for (size_t i = 0; i <= THREADS; i++)
    if (pthread_create(&threads[i], NULL, i < THREADS ? thread : opening, (void *)i))
      return 2;
  for (int i = 0; i < THREADS; i++)
    (void)pthread_join(threads[i], NULL);
  atomic_store(&done, true);
  (void)pthread_join(threads[THREADS], NULL);
  printf("%d threads, %d failures\n", (int)THREADS, atomic_load(&failures));
  return atomic_load(&failures) != 0;
}
