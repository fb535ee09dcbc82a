/* What the programs of tests/e2e/life.bats share: PROGRAM KERNEL.ptx WORD [ARGUMENT], a table of words, and the first steps of a
   training. An unexpected error ends the program with 2 and the line. */
#ifndef TESTS_LIFE_H
#define TESTS_LIFE_H
#include "trainer.h"
#include <inttypes.h>
#include <unistd.h>

#define CU(call)                                                                                   \
  do {                                                                                             \
    if (adam_failed((call), __FILE__, __LINE__, #call))                                            \
      _exit(2);                                                                                    \
  } while (0)

#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      perror(#condition);                                                                          \
      _exit(2);                                                                                    \
    }                                                                                              \
  } while (0)

static const char *kernel_path;

/* The primary context of a device, current. */
static inline void start(int device) {
  CUcontext context;
  CU(cuInit(0));
  CU(cuDevicePrimaryCtxRetain(&context, device));
  CU(cuCtxSetCurrent(context));
}

/* A training on the first device; its last steps are in flight afterwards. */
static inline void train(struct trainer *trainer, unsigned steps) {
  start(0);
  CU(trainer_open(trainer, kernel_path, 0));
  CU(trainer_steps(trainer, steps));
}

static inline void print_hash(const char *what, struct trainer *trainer) {
  uint64_t hash;
  CU(trainer_hash(trainer, &hash));
  printf("%s: step %u, %016" PRIx64 "\n", what, trainer->step, hash);
  (void)fflush(stdout);
}

struct word {
  const char *name;
  void (*run)(const char *argument);
};

static inline int run_word(int count, char **list, const struct word *words) {
  kernel_path = count > 2 ? list[1] : "";
  for (; count > 2 && words->name; words++)
    if (strcmp(words->name, list[2]) == 0) {
      words->run(count > 3 ? list[3] : "");
      return 0;
    }
  fprintf(stderr, "usage: %s KERNEL.ptx WORD [ARGUMENT]\n", list[0]);
  return 2;
}
#endif
