/* Reaches the driver as a runtime does: by a handle, then by its cuGetProcAddress. A line for each answer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef int address_function(const char *, void **, int, unsigned long long, int *);
typedef int init_function(unsigned);
typedef int alloc_function(unsigned long long *, size_t);

/* The library that a function lies in. */
static const char *where(void *function) {
  Dl_info info;
  if (!function || !dladdr(function, &info) || !info.dli_fname)
    return "nowhere";
  const char *slash = strrchr(info.dli_fname, '/');
  return slash ? slash + 1 : info.dli_fname;
}

/* Which library answers goes to standard error: it is ours for the functions that are hooked. */
static void *ask(address_function *address, const char *name, int version) {
  void *found = NULL;
  const int result = address(name, &found, version, 0, NULL);
  printf("%s %d: %d %s\n", name, version, result, found ? "found" : "none");
  fprintf(stderr, "%s %d: %s\n", name, version, where(found));
  return found;
}

static void allocate(const char *what, alloc_function *alloc) {
  unsigned long long memory = 0;
  const int result = alloc ? alloc(&memory, 8) : -1;
  printf("%s %d %#llx\n", what, result, memory);
}

int main(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver)
    return 1;
  address_function *address = (address_function *)dlsym(driver, "cuGetProcAddress_v2");
  init_function *init = (init_function *)dlsym(driver, "cuInit");
  alloc_function *alloc = (alloc_function *)dlsym(driver, "cuMemAlloc_v2");
  printf("init %d\n", init(0));
  printf("again %d\n", init(0));
  allocate("alloc", alloc);
  allocate("alloc", (alloc_function *)ask(address, "cuMemAlloc", 12000));
  allocate("alloc", alloc);
  allocate("newer", (alloc_function *)ask(address, "cuMemAlloc", 99000));
  int (*unheard_of)(void) = (int (*)(void))ask(address, "cuUnheardOf", 99000);
  printf("unheard of says %d\n", unheard_of ? unheard_of() : -1);
  (void)ask(address, "cuNobodyKnows", 99000);
  return 0;
}
