/* What the programs of foreign.bats and capture.bats share: one tensor that a fused Adam kernel steps,
   and words on the command line that say what is done around it. Every answer is a line on stdout; the
   same lines are expected with and without the preload. */
#ifndef TRAINER_H
#define TRAINER_H
#include "tests/e2e/adam_list.h"

#define CU(call)                                                                                   \
  do {                                                                                             \
    if (adam_failed((call), __FILE__, __LINE__, #call))                                            \
      exit(2);                                                                                     \
  } while (0)

/* Does words in order, each cut at its colons; a part that isn't there is empty. */
enum { WORD_PARTS = 3 };
void run_words(int count, char **words, void (*run)(char **parts));

enum { ELEMENTS = 65536, ARRAY_BYTES = 4 * ELEMENTS }; /* of each array */

struct trainer {
  CUcontext context;
  struct adam_kernel adam;
  CUfunction copy; /* copy(to, from, elements): one thread a float */
  CUdeviceptr p, g, m, v, step;
  CUstream stream; /* doesn't wait for the legacy one */
  unsigned steps;
};

/* The primary context of a device, the kernels, and the arrays by `allocate`, filled: m and v small
   numbers. */
typedef CUresult allocate_function(CUdeviceptr *, size_t);
void trainer_open(struct trainer *, const char *kernel_path, CUdevice device,
                  allocate_function *allocate);

/* New arrays in place of those that were freed. */
void trainer_allocate(struct trainer *, allocate_function *allocate);

/* One step on a stream; nothing is waited for. */
void trainer_step(struct trainer *, CUstream stream);
void trainer_launch_adam(const struct trainer *, CUstream stream); /* its launch alone */

/* `count` steps on the trainer's stream, then waits. */
void trainer_train(struct trainer *, unsigned count);

/* Prints hashes of p, m and v. */
void trainer_print(const struct trainer *);

/* A hash of device memory, by a copy to the host. */
unsigned long long device_hash(CUdeviceptr from, size_t bytes);

/* Parameters of the copying kernel, for nodes: they live as long as the struct. */
struct copy_launch {
  CUdeviceptr to, from;
  unsigned elements;
  void *parameters[3];
};
void copy_launch_set(struct copy_launch *, CUdeviceptr to, CUdeviceptr from, unsigned elements);
void copy_launch(CUfunction copy, CUdeviceptr to, CUdeviceptr from, unsigned elements,
                 CUstream stream);
CUfunction copy_kernel(void); /* in the current context */
#endif
