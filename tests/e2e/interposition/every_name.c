/* Asks for every driver function by every version of CUDA and every flag, and prints a line for each
   answer that differs from that for the version before: the result, the status, and which function it
   is (its object, its exported name there). The names come from standard input, one line each:
   symbol, base name, first version, per-thread form (tests/gpusim/gen/driver_names.txt). */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#undef cuGetProcAddress

typedef CUresult first_form(const char *, void **, int, cuuint64_t);
typedef CUresult second_form(const char *, void **, int, cuuint64_t,
                             CUdriverProcAddressQueryResult *);

/* Every release of the toolkit, some that never were, and newer ones. */
static const int versions[] = {-1,    0,     1000,  2000,  2010,  2020,  2030,  3000,  3010,  3020,
                               4000,  4010,  4020,  5000,  5050,  6000,  6050,  7000,  7050,  8000,
                               9000,  9010,  9020,  10000, 10010, 10020, 11000, 11010, 11020, 11030,
                               11040, 11050, 11060, 11070, 11080, 12000, 12010, 12020, 12030, 12040,
                               12050, 12060, 12080, 12090, 13000, 13010, 14000, 99000};
enum { VERSIONS = sizeof versions / sizeof *versions, FLAGS = 5 };

/* Object and name of a function that begins exactly there. */
static void describe(char *text, size_t bytes, void *function) {
  Dl_info info = {0};
  if (!function)
    (void)snprintf(text, bytes, "none");
  else if (!dladdr(function, &info) || info.dli_saddr != function)
    (void)snprintf(text, bytes, "somewhere");
  else {
    const char *slash = strrchr(info.dli_fname, '/');
    (void)snprintf(text, bytes, "%s %s", slash ? slash + 1 : info.dli_fname, info.dli_sname);
  }
}

static void ask(first_form *first, second_form *second, const char *name, cuuint64_t flags) {
  char before[3][256] = {"", "", ""};
  static const char *const forms[] = {"first form", "without status", "with status"};
  for (int i = 0; i < VERSIONS; i++)
    for (int form = first ? 0 : 1; form < (second ? 3 : 1); form++) {
      void *function = (void *)&function; /* an answer that leaves it alone shows */
      CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)77;
      char what[160], answer[256];
      CUresult result =
          form == 0 ? first(name, &function, versions[i], flags)
                    : second(name, &function, versions[i], flags, form == 2 ? &status : NULL);
      if (function == (void *)&function)
        (void)snprintf(what, sizeof what, "untouched");
      else
        describe(what, sizeof what, function);
      (void)snprintf(answer, sizeof answer, "result %d, status %d, %s", (int)result, (int)status,
                     what);
      if (strcmp(answer, before[form]) != 0)
        printf("%s, flags %d, %s, from %d: %s\n", name, (int)flags, forms[form], versions[i],
               answer);
      memcpy(before[form], answer, sizeof answer);
    }
}

int main(void) {
  char line[256], symbol[128], base[128], what[160], last[128] = "";
  long asked = 0;
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library)
    return 1;
  first_form *first = NULL;
  second_form *second = NULL;
  *(void **)&first = dlsym(library, "cuGetProcAddress");
  *(void **)&second = dlsym(library, "cuGetProcAddress_v2");
  if (!first && !second)
    return 1;
  while (fgets(line, sizeof line, stdin)) {
    if (line[0] == '#' || sscanf(line, "%127s %127s", symbol, base) != 2)
      continue;
    describe(what, sizeof what, dlsym(library, symbol));
    printf("dlsym %s: %s\n", symbol, what);
    for (cuuint64_t flags = 0; flags < FLAGS; flags++) {
      if (strcmp(base, last) != 0)
        ask(first, second, base, flags);
      if (strcmp(symbol, base) != 0)
        ask(first, second, symbol, flags);
    }
    memcpy(last, base, sizeof last);
    asked++;
  }
  printf("%ld names\n", asked);
  return asked == 0;
}
