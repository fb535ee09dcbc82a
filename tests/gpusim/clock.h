/* The clock: how long the program's work would take on the machine that GPUSIM_PROFILE names.
   Operations are carried out as always, by threads whose pace means nothing; beside that they are
   logged, and at exit a discrete-event simulation replays the log.

     clock_log.c      what was submitted, what it waits for, what it costs   (called by the driver)
     clock_profile.c  the terms of a replay: policy/gpus.def, GPUSIM_KERNEL_TIME, GPUSIM_HOST_WORK
     clock_events.c   the replay, log and machine in, times out; with clock_work.c (what the CPU
                      does between two words) and clock_rates.c (how fast what runs goes)
     clock_trace.c    the timeline, the counters, the line at exit
     clock_replays.c  the same log on other terms: GPUSIM_REPLAYS

   The log is in causal order: calls that submit at their submission, calls that wait when they
   return. The replay keeps to it: nothing happens on the host before what was logged before it. */
#ifndef GPUSIM_CLOCK_H
#define GPUSIM_CLOCK_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum clock_engine {
  NO_ENGINE,
  UP_ENGINE,
  DOWN_ENGINE,
  DEVICE_ENGINE,
  PEER_ENGINE,
  KERNEL_ENGINE,
  CLOCK_ENGINES
};
enum clock_kind {
#define KIND(name, words, engine) CLOCK_##name,
#include "clock_kinds.def"
#undef KIND
  CLOCK_KINDS
};
/* What work uses up, each at a rate shared with whatever else uses it. All parts of one piece of
   work go on at once; it ends with the last. */
enum clock_resource {
  CLOCK_HBM,
  CLOCK_ISSUE, /* instructions of threads */
  CLOCK_UP,    /* the link, host to device */
  CLOCK_DOWN,
  CLOCK_PEER,
  CLOCK_DRAM, /* this device's share of host memory */
  CLOCK_DRIVE_READ,
  CLOCK_DRIVE_WRITE,
  CLOCK_TIME, /* nanoseconds, shared with nobody */
  CLOCK_RESOURCES
};

/* What one operation costs, filled in by operation_kind.cost; amounts in bytes, instructions, ns. */
struct clock_cost {
  enum clock_kind kind;
  double amount[CLOCK_RESOURCES];
  const char *name;     /* of a kernel or of declared work; the log makes a copy */
  uint64_t blocks;      /* kernels */
  bool measured;        /* kernels: the engine counted what it did */
  bool pageable;        /* copies */
  uintptr_t word;       /* value operations; WORKER: the word it waits for, or 0 */
  uint64_t value;       /* that is waited for or written */
  unsigned relation;    /* CUstreamWaitValue_flags */
  bool wide;            /* 64 bits */
  uintptr_t until_word; /* WORKER: the word it writes, or 0 */
  uint64_t until_value;
};

struct clock_entry {
  struct clock_cost cost;
  int device;
  unsigned queue;
  uint64_t thread, context, stream;
  size_t first_after, afters; /* in clock_log.after: entries that must be done before */
};
#define CLOCK_NO_ENTRY SIZE_MAX
struct clock_log {
  struct clock_entry *entries;
  size_t count, capacity;
  size_t *after;
  size_t after_count, after_capacity;
};

/* ---- clock_log.c: without GPUSIM_PROFILE nothing is logged ---- */
struct CUstream_st;
struct operation_kind;
/* A new operation of a stream, to be followed by clock_log_after for each of its dependencies and by
   clock_log_cost; gpusim_mutex held from the first to the last. Returns its entry. */
size_t clock_log_operation(const struct CUstream_st *);
void clock_log_after(size_t entry, uint64_t stream, uint64_t ticket);
/* Asks the kind for the cost: at the submission, and again when it was carried out. */
void clock_log_cost(size_t entry, const struct operation_kind *, void *argument);
/* This thread carries out the entry from now on (CLOCK_NO_ENTRY: none): work declared meanwhile is its. */
void clock_log_running(size_t entry);
/* The calling thread has waited for a stream's operation, for all of a context, or copied pageable
   memory aside. */
void clock_log_wait(uint64_t stream, uint64_t ticket);
void clock_log_wait_context(uint64_t context);
void clock_log_stage(int device, uint64_t bytes);
/* Calls `visit` with the log, which stands still meanwhile. */
void clock_log_read(void (*visit)(const struct clock_log *));
/* Room for item number `count`; what is new is zero. */
void *clock_room(void *items, size_t count, size_t *capacity, size_t item_bytes);

/* ---- clock_profile.c ---- */
struct clock_profile {
  const char *name;
  double memory, hbm, fp32, bf16, up, down, up_both, down_both, pageable, sm_read, sm_write, peer,
      dram, drive_read, drive_write, call, launch, copy;
  int sms, copy_engines, gpus;
};
struct clock_kernel_time { /* of kernels whose name fits the pattern */
  const char *pattern;
  double amount; /* ns, or FLOP at the machine's bf16 peak */
  bool flop;
};
/* A machine, and how what was logged counts on it. */
struct clock_terms {
  const struct clock_profile *profile;
  double scale;  /* bytes, instructions and blocks count so many times */
  double starts; /* so do calls and starts */
  struct clock_kernel_time *times;
  size_t time_count, time_capacity;
  /* What the CPU is taken to do for each byte that came down to it: CLOCK_DRAM, DRIVE_READ, DRIVE_WRITE. */
  double host_ratio[CLOCK_RESOURCES];
};
/* Reads GPUSIM_PROFILE and what belongs to it; ends the process on a bad value. */
void clock_profile_load(void);
/* The environment's; NULL: no clock. */
const struct clock_terms *clock_terms(void);
/* Each sets one of the terms from text; false when it is not understood. */
bool clock_terms_profile(struct clock_terms *, const char *name);
bool clock_terms_kernel_time(struct clock_terms *, const char *words);
bool clock_terms_host_work(struct clock_terms *, const char *words);
bool clock_terms_number(double *, const char *words);
/* Whether kernels of this name have a given duration. */
bool clock_kernel_time(const struct clock_terms *, const char *name, double *ns);

/* ---- clock_events.c ---- */
/* By clock_kinds.def. */
enum clock_engine clock_engine_of(enum clock_kind);
struct clock_span { /* ns; negative: never */
  double submitted, started, ended;
};
struct clock_worker { /* a piece of work of a host thread, declared or inferred */
  const char *name;
  uint64_t thread; /* 0: inferred */
  int device;
  struct clock_span span;
};
struct clock_sums {
  double kernel_ns, copy_ns, copy_exposed_ns, host_ns, host_exposed_ns, exposed_ns;
  /* in which kernels of given duration run; in which something else runs; in which both do */
  double given_ns, other_ns, hidden_ns;
  double full_ns[CLOCK_RESOURCES]; /* in which what runs can use no more of it */
  double amount[CLOCK_RESOURCES];
};
struct clock_mark {
  const char *name;
  double ns;
  struct clock_sums sums; /* up to then */
};
struct clock_result {
  struct clock_span *spans; /* one an entry */
  struct clock_worker *workers;
  size_t worker_count;
  struct clock_mark *marks;
  size_t mark_count, mark_capacity;
  double total_ns;
  struct clock_sums sums;
  uint64_t unmeasured; /* kernels without bytes, instructions or a given duration */
  uint64_t inferred;   /* value waits that only the CPU can have released */
  uint64_t assumed;    /* value waits that nothing in the log explains */
};
void clock_replay(const struct clock_log *, const struct clock_terms *, struct clock_result *);
void clock_result_free(struct clock_result *);

/* ---- clock_trace.c ---- */
/* Replays, sets the counters and writes GPUSIM_TIMELINE; at the end of the process also a line. */
void clock_report(bool at_exit);
/* As a string of JSON. */
void clock_print_text(FILE *, const char *words);

/* ---- clock_replays.c ---- */
/* Reads GPUSIM_REPLAYS; ends the process when it can't be read. */
void clock_replays_load(void);
/* Replays the log on each of its terms and writes what came out beside the file. */
void clock_replays_write(void);
#endif
