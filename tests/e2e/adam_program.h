/* What programs share that are called with files and then name=value settings: their settings, how they end
   after a driver's error, and where they begin on the device. */
#ifndef ADAM_PROGRAM_H
#define ADAM_PROGRAM_H
#include "tests/e2e/adam_list.h"

static int argument_count;
static char **argument_list;

/* The text of a setting, or NULL. */
static inline const char *setting(const char *name) {
  const size_t length = strlen(name);
  for (int i = 1; i < argument_count; i++)
    if (strncmp(argument_list[i], name, length) == 0 && argument_list[i][length] == '=')
      return argument_list[i] + length + 1;
  return NULL;
}

static inline double option(const char *name, double otherwise) {
  const char *text = setting(name);
  return text ? strtod(text, NULL) : otherwise;
}

static inline size_t number(const char *name, size_t otherwise) {
  const char *text = setting(name);
  return text ? strtoull(text, NULL, 10) : otherwise;
}

/* abort=1: by a signal. */
static inline void __attribute__((noreturn)) give_up(void) {
  if (option("abort", 0) != 0)
    abort();
  exit(2);
}

#define CU(call)                                                                                   \
  do {                                                                                             \
    if (adam_failed((call), __FILE__, __LINE__, #call))                                            \
      give_up();                                                                                   \
  } while (0)

/* Keeps the arguments, and makes the first device's primary context current. `usage`: the arguments in words;
   `files`: how many must be there. */
static inline void program_start(int count, char **list, int files, const char *usage) {
  CUdevice device;
  CUcontext context;
  if (count <= files) {
    fprintf(stderr, "usage: %s\n", usage);
    exit(2);
  }
  argument_count = count;
  argument_list = list;
  CU(cuInit(0));
  CU(cuDeviceGet(&device, 0));
  CU(cuDevicePrimaryCtxRetain(&context, device));
  CU(cuCtxSetCurrent(context));
}
#endif
