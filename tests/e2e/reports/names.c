/* A library of a vendor whose names begin as the driver's do, and with hip's: each function looks its own name up, by RTLD_NEXT,
   by the default scope and by a handle to itself, and calls what comes after it. Built twice: the second is what
   stands behind the first. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

static const char *const level = LEVEL == 1 ? "one" : "two";

#define FUNCTION(name)                                                                             \
  int name(int depth);                                                                             \
  int name(int depth) {                                                                            \
    Dl_info info;                                                                                  \
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, #name);                                      \
    int (*first)(int) = (int (*)(int))dlsym(RTLD_DEFAULT, #name);                                  \
    void *self = dladdr((void *)&name, &info) ? dlopen(info.dli_fname, RTLD_NOW) : NULL;           \
    int (*own)(int) = self ? (int (*)(int))dlsym(self, #name) : NULL;                              \
    printf(#name " %s at %d: next %s, first %s, own %s\n", level, depth,                           \
           !next          ? "none"                                                                 \
           : next == name ? "itself"                                                               \
                          : "another",                                                             \
           first ? "found" : "none", own ? "found" : "none");                                      \
    return depth > 5 ? -1 : next ? 1 + next(depth + 1) : 1;                                        \
  }

FUNCTION(cudnnCreate)
FUNCTION(cublasCreate_v2)
FUNCTION(cufftPlan1d)
FUNCTION(cuvidCreateDecoder)
FUNCTION(hipInit)
FUNCTION(ompt_start_tool)

/* As an OpenMP runtime that looks for a tool while it is loaded. */
__attribute__((constructor)) static void probe(void) {
  (void)ompt_start_tool(0);
}
