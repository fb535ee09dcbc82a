/* What the parts of `offload check` share: the findings, and what they are made from. Each check of checks.def is called once, in that
   order, by offload_check.c, in a process of its own that has no other thread. Paths in /proc, /sys and /dev get OFFLOAD_SYSROOT in front. */
#ifndef OFFLOAD_CHECK_H
#define OFFLOAD_CHECK_H
#include "config.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum check_name {
#define CHECK(name, title) CHECK_##name,
#include "checks.def"
#undef CHECK
  CHECKS
};

/* limits: state moves, but not all, not as fast, or not as surely as it could. blocks: none moves. */
enum check_verdict { VERDICT_GOOD, VERDICT_LIMITS, VERDICT_BLOCKS };
const char *check_verdict_name(enum check_verdict);

struct finding {
  enum check_name check;
  enum check_verdict verdict;
  char found[512];
  char remedy[2048]; /* "" when there is nothing to do */
};

struct check_gpu {
  char name[96], bus[32], trouble[160]; /* trouble: why it could not be tried, "" */
  int major, minor;
  uint64_t bytes, free_bytes;
  bool integrated, vmm, mps;
  int compute_mode, node; /* node: of its host memory, -1 unknown */
  bool host_numa, host,
      used; /* handles that could be made; host memory that CPU and GPU both worked on */
  char numa_error[64], host_error[64], use_error[96];
};
enum { CHECK_GPUS = 64, CHECK_FINDINGS = 160 };

struct check {
  const char *root;    /* "" or OFFLOAD_SYSROOT */
  const char *library; /* as given with --library, or NULL */
  char **command;      /* NULL: none was given */
  unsigned timeout_s;  /* for the driver */
  struct config config;
  struct check_gpu gpus[CHECK_GPUS];
  unsigned gpu_count;
  int driver_version; /* 0: unknown */
  uint64_t budget_bytes;
  unsigned threads;
  bool needs_sys_nice, needs_io_uring, needs_memlock; /* for the flags of containers */
  struct finding findings[CHECK_FINDINGS];
  size_t count;
};

/* Adds a finding; never NULL. */
struct finding *find(struct check *, enum check_name, enum check_verdict, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void remedy(struct finding *, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define CHECK(name, title) void check_##name(struct check *);
#include "checks.def"
#undef CHECK

/* ---- helpers ---- */

/* words_bytes, in one of 8 buffers. */
const char *check_size(uint64_t bytes);
/* Whether a list as the kernel writes it ("0-3,8") has the number. */
bool check_list_has(const char *list, unsigned number);

/* Whether there is such a file below the root. */
bool check_is_there(const char *root, const char *path);

/* Runs a program (argv[0] a path) with OFFLOAD_MODE=off, LD_PRELOAD as given ("" for none of it), standard
   output into `output` (cut to fit, NUL at the end), standard error to nowhere. A child that takes longer is killed. */
enum check_end { END_EXITED, END_SIGNAL, END_TIMEOUT, END_NOT_RUN };
enum check_end check_run(char *const *argv, const char *preload, int timeout_ms, char *output,
                         size_t output_bytes, int *number);

/* This program's own path and the hidden arguments with which it is run as a child. */
#define CHECK_SELF "/proc/self/exe"
#define CHECK_CHILD_DRIVER "--child-driver"
#define CHECK_CHILD_LOADED "--child-loaded"
/* Called in such a child; the result is its exit status. */
int check_child_driver(void);
int check_child_loaded(void);

/* What LD_PRELOAD names beside the library, in a static buffer. */
const char *check_preload_without_ours(void);
#endif
