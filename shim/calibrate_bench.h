/* One calibration's bench: the program's kernel, and the path that would replace it, over one set of data each, on the
   ring's calibration scratch. For calibrate.c alone, under the enqueue lock. Everything runs on the scratch stream, which the
   host polls with a deadline: the device may be waiting for what the program does next, with streams of one hardware queue
   behind it. CUDA_ERROR_NOT_READY: it was given up, and may still use its scratch, on both sides, until the stream is done. */
#ifndef OFFLOAD_CALIBRATE_BENCH_H
#define OFFLOAD_CALIBRATE_BENCH_H
#include "ring.h"

/* A list has room for the offset. */
enum { BENCH_ELEMENTS = 4160 };

/* The lists of a set, of whatever type. */
struct lists {
  double memory[LISTS_MOST][BENCH_ELEMENTS];
};
struct bench {
  struct lists in[CALIBRATION_SETS],
      out[CALIBRATION_SETS]; /* before and after the program's kernel */
  struct lists work;
  double gradient[BENCH_ELEMENTS];
  unsigned char metadata[METADATA_BYTES_MOST];
  struct {
    struct slot_words words;
    double update[BENCH_ELEMENTS];
  } slot;
};

/* What one calibration works with. */
struct run {
  struct ring *ring;
  const struct adam_api *api;
  const struct function *function;
  struct calibration_case what;
  struct calibration_set sets[CALIBRATION_SETS];
  struct adam_scalars scalars[CALIBRATION_SETS]; /* of the candidate that is left */
  struct bench *bench;
  uint64_t deadline_ns; /* of all of it */
};

/* How long calibration waits for the device at a time, and in all: one that is busy is left alone, one that is slow is not. */
#define CALIBRATION_WAIT_NS 2000000000u
#define CALIBRATION_ALL_NS 10000000000u

/* Lists as tensors, in the kernel's order: p, g, m, v and max_v. */
struct adam_tensors bench_tensors(const struct calibration_set *, struct lists *);

/* Fills set `index` and runs the program's kernel over it: bench->in[index] and bench->out[index]. */
CUresult bench_kernel(const struct run *, unsigned index);

/* Prologue, worker and apply kernel over the same; *same tells whether they gave the kernel's results. */
CUresult bench_replacement(struct run *, const struct adam_candidate *, unsigned index, bool *same);
#endif
