/* Meets the driver by the one way that the words name, and uses it (way.h):
     dlsym [FILE]              on the handle of the driver, or of FILE
     dlvsym VERSION            the same, by version
     main                      on the handle of the program itself, the driver being loaded globally
     default                   in RTLD_DEFAULT, the driver being loaded globally
     taken                     by a dlsym that was itself looked up by version, as other hookers do
     proc VERSION FLAGS        by cuGetProcAddress_v2; VERSION 0 means each name's own
     proc-v1 VERSION FLAGS     by cuGetProcAddress
     dlmopen                   in a linker namespace of its own
     library FILE, deepbind FILE   a library that is linked against the driver does it all
   A word `again` does it all once more, the driver's handle having been closed. */
#define _GNU_SOURCE
#include "way.h"
#include <dlfcn.h>

typedef void *lookup_function(void *, const char *);

static int missing(const char *what) {
  const char *why = dlerror();
  printf("%s is not there: %s\n", what, why ? why : "no reason given");
  return 1;
}

static int by_lookup(lookup_function *lookup, void *handle) {
  struct way way;
  void **slots = (void **)&way;
  for (int i = 0; i < WAY_NAMES; i++)
    if (!(slots[i] = lookup(handle, way_names[i].symbol)))
      return missing(way_names[i].symbol);
  return way_use(&way);
}

static const char *version_wanted;
static void *by_version(void *handle, const char *name) {
  return dlvsym(handle, name, version_wanted);
}

/* Wherever glibc's version of the day is: newest first, as others have it. */
static lookup_function *taken_dlsym(void) {
  static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
  lookup_function *found = NULL;
  for (unsigned i = 0; !found && i < sizeof versions / sizeof *versions; i++)
    found = (lookup_function *)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
  return found;
}

static int by_proc_address(void *library, bool first_form, int version, cuuint64_t flags) {
  struct way way;
  void **slots = (void **)&way;
  CUresult (*v1)(const char *, void **, int, cuuint64_t);
  CUresult (*v2)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
  *(void **)&v1 = dlsym(library, "cuGetProcAddress");
  *(void **)&v2 = dlsym(library, "cuGetProcAddress_v2");
  if (!v1 || !v2)
    return missing("cuGetProcAddress");
  for (int i = 0; i < WAY_NAMES; i++) {
    int wanted = version ? version : way_names[i].version;
    slots[i] = NULL;
    CUresult result = first_form ? v1(way_names[i].base, &slots[i], wanted, flags)
                                 : v2(way_names[i].base, &slots[i], wanted, flags, NULL);
    if (result != CUDA_SUCCESS || !slots[i])
      return missing(way_names[i].base);
  }
  return way_use(&way);
}

static int by_library(const char *file, int mode) {
  int (*use)(void) = NULL;
  void *library = dlopen(file, mode);
  if (library)
    *(void **)&use = dlsym(library, "use");
  return use ? use() : missing(file);
}

static int meet(int count, char **words) {
  const char *way = words[0];
  const char *file = count > 1 ? words[1] : "libcuda.so.1";
  if (!strcmp(way, "library"))
    return by_library(file, RTLD_NOW | RTLD_LOCAL);
  if (!strcmp(way, "deepbind"))
    return by_library(file, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (!strcmp(way, "dlmopen")) {
    void *library = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return library ? by_lookup(dlsym, library) : missing("the driver");
  }
  void *library = dlopen(strcmp(way, "dlsym") ? "libcuda.so.1" : file, RTLD_NOW | RTLD_GLOBAL);
  if (!library)
    return missing("the driver");
  int result = 2;
  if (!strcmp(way, "dlsym"))
    result = by_lookup(dlsym, library);
  else if (!strcmp(way, "dlvsym")) {
    version_wanted = file;
    result = by_lookup(by_version, library);
  } else if (!strcmp(way, "main"))
    result = by_lookup(dlsym, dlopen(NULL, RTLD_NOW));
  else if (!strcmp(way, "default"))
    result = by_lookup(dlsym, RTLD_DEFAULT);
  else if (!strcmp(way, "taken"))
    result = by_lookup(taken_dlsym(), library);
  else if (count == 3 && !strncmp(way, "proc", 4))
    result = by_proc_address(library, !strcmp(way, "proc-v1"), atoi(words[1]),
                             (cuuint64_t)atoi(words[2]));
  else
    fprintf(stderr, "unknown way %s\n", way);
  (void)dlclose(library);
  return result;
}

int main(int count, char **words) {
  bool again = count > 2 && !strcmp(words[count - 1], "again");
  if (count < 2)
    return 2;
  int result = meet(count - 1 - again, words + 1);
  return again ? result | meet(count - 2, words + 1) : result;
}
