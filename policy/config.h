/* The OFFLOAD_* variables as values. Read once per process, before the first hook acts; nothing is
   printed here: what is wrong is kept as sentences for the caller to print at the first successful
   cuInit. */
#ifndef OFFLOAD_CONFIG_H
#define OFFLOAD_CONFIG_H
#include "../nvme/endurance.h"
#include "ranks.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum config_mode { MODE_FULL, MODE_PRESSURE, MODE_OBSERVE, MODE_OFF };
enum config_step { STEP_AUTO, STEP_CPU, STEP_STREAM, STEP_DIRECT };
enum config_verify_action { VERIFY_STOP, VERIFY_WARN };
enum config_log { LOG_QUIET, LOG_NORMAL, LOG_VERBOSE };

/* A size that was given in bytes (percent == 0), as a share (percent 1..100), or not at all. Only
 * kind SIZE has shares. */
struct config_size {
  uint64_t bytes;
  unsigned percent;
  bool set;
};

/* How many pieces share one verification: every `VERIFY_ALL` means each, before it is applied. */
enum { VERIFY_MOST = 10000, VERIFY_ALL = VERIFY_MOST + 1 };

struct config {
  enum config_mode mode;
  enum config_step step;
  struct config_size host_memory, free_bytes, device_staging, min_allocation, piece;
  const char *callers; /* as given; config_caller_allowed reads it */
  bool overflow;
  unsigned threads;
  struct ranks ranks;   /* as the launcher said */
  unsigned local_ranks; /* of this job on this node, from its launcher's own variables; 1 or more */
  int local_rank;       /* of these, from 0; -1: not known */
  unsigned test_worker_lag_ms;
  bool test_ahead;
  int isa;         /* enum adam_isa */
  unsigned verify; /* 0: off; VERIFY_ALL */
  enum config_verify_action verify_action;
  enum config_log log;
  const char *report, *metrics, *trace, *rates; /* paths, or NULL */
  const char *sysroot;                          /* in front of /proc and /sys, or NULL */
  int switch_signal;                            /* number; 0: none */
  const char *test_ways;                        /* as given, or NULL */
  unsigned test_choose_from;
  unsigned test_record_ms;
  const char *nvme; /* absolute directories separated by ':', or NULL */
  struct config_size nvme_limit, nvme_staging;
  struct wear_limit nvme_wear_limit;
  bool nvme_checksum;
  const char *test_nvme, *test_nvme_rung; /* as given, or NULL; nvme/store.h judges them */
  bool strict;                            /* the sentences are about a command that is not run */
  char problems[2048]; /* sentences, one per line, each naming variable, value and remedy; "" when
                          all is well */
};

/* Reads the environment. Bad values keep the initial value and add a sentence; so does an unknown
   OFFLOAD_ name. No allocation beyond what strdup of paths needs, no output. A relative path of a
   file is taken from the present directory. The first of two entries with the same name counts, as
   with getenv. */
void config_load(struct config *, char **environment);

/* The same about settings that must be good: the sentences don't speak of what is ignored. */
void config_check(struct config *, char **settings);

/* Gives back what config_load or config_check allocated. */
void config_free(struct config *);

/* "20GiB", "512MiB", "4096", "80%". False when the text is none of these or too large. */
bool config_parse_size(const char *text, struct config_size *);

/* "20TB", "18TiB", plain bytes, "90%". False when the text is none of these, nothing, or too large. */
bool config_parse_wear(const char *text, struct wear_limit *);

/* Whether OFFLOAD_CALLERS names this file (by base name, up to the first ".so"). */
bool config_caller_allowed(const struct config *, const char *module_path);

/* Word for a value, for the report. */
const char *config_mode_name(enum config_mode);
const char *config_step_name(enum config_step);
const char *config_verify_action_name(enum config_verify_action);
const char *config_log_name(enum config_log);
const char *config_isa_name(int isa);

/* The words of a kind of variables.def that has words, NULL behind the last; else NULL. */
const char *const *config_words(const char *kind);

/* A signal's name as OFFLOAD_SIGNAL takes it: "RTMIN+9", "USR2", "none". */
enum { SIGNAL_NAME_BYTES = 16 };
const char *config_signal_name(int signal, char name[SIGNAL_NAME_BYTES]);
#endif
